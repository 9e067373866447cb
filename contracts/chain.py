"""The chain of bounds with a contract's own numbers: [B1]-[B9], and [R1]-[R5] for post-training.

Every step names the clause it starts from. A step is about the decisions that keep the clause's
limit, unless it says what a soft clause's exceedance adds. G is the largest score norm, A the
largest advantage; both are the trainer's, so biases are in units of G·A.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict

from contracts import bounds
from contracts.implications import reachable
from contracts.lint_limits import VACUOUS_TV, bounds_each, oscillation
from contracts.model import Clause, ClauseKind, Comparator, Contract

TOKENS = (16, 256)  # response lengths the bounds on sequences are shown for
_LOGITS = ("logit_osc", "logit_linf", "logit_l2", "logit_l2_centered")


class Step(BaseModel):
    """One step of the chain.

    Attributes:
        label: of theory.md.
        clause: id of the clause it starts from; "" for none.
        text: the step in words and numbers.
        value: the bound itself; None where it is no single number.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    label: str
    clause: str
    text: str
    value: float | None = None


def chain(contract: Contract) -> Iterator[Step]:
    """From logits to total variation to rewards, clause by clause."""
    if contract.sampling.truncated:
        text = "sampling cuts the support, so no bound passes from logits or distributions to what is sampled"
        yield Step(label="S8", clause="", text=text)
        return
    for clause in contract.clauses:
        if clause.limit.comparator is Comparator.GTE or clause.aggregate == "min":
            continue  # one good decision says nothing of the others
        if clause.metric in _LOGITS:
            yield from _from_logits(clause, contract)
        elif clause.metric == "logit_weighted":
            yield from _from_weighted(clause, contract)
        elif clause.metric in ("kl", "kl_reverse", "tv"):
            yield from _from_distribution(clause, contract)
        elif clause.metric == "reward_drift" and contract.reward is not None:
            yield from _backwards(clause, contract, _range(contract))
        elif clause.metric == "ece_gap":
            text = f"{clause.id} is measured: binned calibration does not follow from any drift bound"
            yield Step(label="Q11", clause=clause.id, text=text)


def _range(contract: Contract) -> float:
    return contract.reward.range[1] - contract.reward.range[0] if contract.reward else 1.0


def _from_logits(clause: Clause, contract: Contract) -> Iterator[Step]:
    t, limit, means = contract.sampling.temperature, clause.limit.value, not bounds_each(clause)
    osc = reachable(clause.metric, limit, t, means=means)["logit_osc"][0]
    h = osc / t
    vacuous = "; vacuous as a bound on behaviour" if bounds.tv_from_osc(h) >= VACUOUS_TV else ""
    of = "mean " if means else ""
    start = f"{clause.id} ({of}{clause.metric} <= {limit:g}) gives {of}h = {of}logit_osc/T <= {h:.4g}"
    if clause.metric in ("logit_l2", "logit_l2_centered"):
        linear = bounds.tv_from_l2_linear(limit, t)
        form = f"tanh(eps2/(2 sqrt(2) T)), at most {linear:.4g} by its linear form"
    else:
        form = "tanh(h/4)"
    tv = bounds.tv_from_osc(h)
    yield _step("B1", clause, f"{start}, so {of}TV <= {form} = {tv:.4g}{vacuous}", tv)
    if means:
        yield from _to_rewards(clause, contract, tv, None)
        return
    kl = bounds.kl_from_osc(h)
    yield _step("B2", clause, f"{clause.id} gives KL <= h^2/8 = {kl:.4g} nats, either way", kl)
    ratio = bounds.log_ratio_from_osc(h)
    text = f"{clause.id} gives |log w| <= h = {ratio:.4g}, the ratio within a factor {_exp(ratio)}"
    yield _step("B3", clause, text, ratio)
    moment = bounds.second_moment_from_osc(h)
    text = (
        f"{clause.id} gives chi2 <= sinh^2(h/2) = {bounds.chi2_from_osc(h):.4g} and "
        f"E w^2 <= cosh^2(h/2) = {moment:.4g}"
    )
    yield _step("B4", clause, text, moment)
    yield from _to_rewards(clause, contract, tv, kl)


def _from_weighted(clause: Clause, contract: Contract) -> Iterator[Step]:
    widest, s, t = oscillation(clause, contract), clause.limit.value, contract.sampling.temperature
    if widest is None:
        text = f"{clause.id} (logit_weighted <= {s:g}) bounds nothing until another clause bounds logit_osc"
        yield Step(label="B9", clause=clause.id, text=text)
        return
    kl, tv = bounds.kl_from_weighted(s, widest, t), bounds.tv_from_weighted(s, widest, t)
    text = (
        f"{clause.id} (logit_weighted <= {s:g}) with logit_osc <= {widest:.4g} gives KL(q||p) <= {kl:.4g} "
        f"nats and TV <= {tv:.4g}; this is the bound that stays useful at real vocabularies"
    )
    yield _step("B9", clause, text, tv)
    yield from _to_rewards(clause, contract, tv, kl)


def _from_distribution(clause: Clause, contract: Contract) -> Iterator[Step]:
    limit, of = clause.limit.value, "" if bounds_each(clause) else "mean "
    tv, kl = limit, None
    if clause.metric != "tv":
        kl = limit
        tv = bounds.tv_from_kl(limit)
        text = f"{clause.id} ({of}{clause.metric} <= {limit:g} nats) gives {of}TV <= sqrt(KL/2) = {tv:.4g}"
        yield _step("B2", clause, text, tv)
    yield from _to_rewards(clause, contract, tv, kl)


def _to_rewards(clause: Clause, contract: Contract, tv: float, kl: float | None) -> Iterator[Step]:
    """[B5] or [B8] for one decision, [B6] for responses."""
    r = _range(contract)
    reward = f"R = {r:g}" if contract.reward else "R = 1, for want of a reward section"
    soft = clause.kind is ClauseKind.SOFT
    rho = clause.exceedance or 0.0
    mean_tv = min(1.0, (1.0 - rho) * tv + rho) if soft else tv
    shown = bounds.reward_from_tv(mean_tv, r)
    if soft:
        form = f"R((1 - rho) {tv:.4g} + rho), rho = {rho:g},"
        label = "B8"
    else:
        label, form = "B5", "R E[TV]"
    text = f"{clause.id} gives |reward drift| of one decision <= {form} = {shown:.4g} ({reward})"
    yield _step(label, clause, text, shown)
    if clause.statistic is not None or soft:
        return  # the sequence bound asks for a bound on every decision
    parts = [
        f"{bounds.sequence_tv([tv] * n, [kl if kl is not None else math.inf] * n):.4g} over {n} tokens"
        for n in TOKENS
    ]
    longest = bounds.sequence_tv([tv] * TOKENS[-1], [kl if kl is not None else math.inf] * TOKENS[-1])
    yield _step("B6", clause, f"{clause.id} gives TV of whole responses <= {', '.join(parts)}", longest)


def _backwards(clause: Clause, contract: Contract, r: float) -> Iterator[Step]:
    t = contract.sampling.temperature
    tau = bounds.l2_for_reward(clause.limit.value, r, t)
    text = (
        f"{clause.id} (reward drift within {clause.limit.value:g}) would follow for one decision from "
        f"logit_l2_centered <= 2 sqrt(2) T rho_r/R = {tau:.4g}; whole responses are measured"
    )
    yield _step("B7", clause, text, tau)


# Post-training


def post_training(contract: Contract) -> Iterator[Step]:
    """Bias of the policy gradient and the share of the clip range; nothing without an `rl` section."""
    if contract.rl is None:
        return
    low, high = contract.rl.clip.low, contract.rl.clip.high
    room = bounds.clip_room(low, high)
    budget = contract.rl.kernel_budget_share
    text = (
        f"clip [1 - {low:g}, 1 + {high:g}] leaves no update from |log w| = {room:.4g} nats on; the kernel "
        f"pair may spend {budget:.0%} of it, {budget * room:.4g} nats, that is logit_l2_centered < "
        f"{budget * room * contract.sampling.temperature / math.sqrt(2.0):.4g}"
    )
    yield Step(label="R4", clause="", text=text, value=room)
    for clause in contract.clauses:
        if clause.limit.comparator is Comparator.GTE or clause.aggregate == "min":
            continue  # one good decision says nothing of the others
        if clause.metric in ("abs_log_ratio", "log_ratio"):
            yield from _from_ratio(clause, low, high, budget)
        elif clause.metric in _LOGITS and bounds_each(clause):
            yield from _from_oscillation(clause, contract)
        elif clause.metric == "tv":
            rho = clause.exceedance or 0.0
            bias = bounds.gradient_bias_from_tv(min(1.0, (1.0 - rho) * clause.limit.value + rho), 1.0, 1.0)
            text = f"{clause.id} gives a bias of the uncorrected gradient <= 2 TV = {bias:.4g} G A"
            yield _step("R1", clause, text, bias)


def _from_ratio(clause: Clause, low: float, high: float, budget: float) -> Iterator[Step]:
    kappa = abs(clause.limit.value)
    share = bounds.budget_share(kappa, low, high)
    verdict = "within" if share <= budget else "beyond"
    left = bounds.update_range(kappa, low, high)
    rest = f"leaves the update [{left[0]:.4g}, {left[1]:.4g}] nats" if left else "leaves no update"
    text = (
        f"{clause.id} (|log w| <= {kappa:g}) uses {share:.1%} of the clip range, {verdict} the budget of "
        f"{budget:.0%}, and {rest}"
    )
    yield _step("R4", clause, text, share)
    error = math.expm1(kappa)
    if not bounds_each(clause):
        return  # a mean bounds no single weight
    beyond = f" on all but {clause.exceedance:.3g} of draws" if clause.exceedance else ""
    bias = bounds.gradient_bias_from_weight(error, 1.0, 1.0)
    yield _step(
        "R2", clause, f"{clause.id} gives |w - 1| <= {error:.4g}{beyond}, a bias <= {bias:.4g} G A", bias
    )
    text = f"with weights clipped to [1 - c, 1 + c] that bias is exactly 0 from c = {error:.4g} on"
    yield _step("R3", clause, text, error)


def _from_oscillation(clause: Clause, contract: Contract) -> Iterator[Step]:
    t = contract.sampling.temperature
    h = reachable(clause.metric, clause.limit.value, t, means=False)["logit_osc"][0] / t
    bias = bounds.gradient_bias_from_osc(h, 1.0, 1.0)
    kept = " over the decisions that keep it" if clause.exceedance else ""
    yield _step("R2", clause, f"{clause.id} gives a bias <= 2 tanh(h/4) = {bias:.4g} G A{kept}", bias)
    parts = [
        f"{bounds.trajectory_ess([h] * n):.3g} of N at {n} tokens, where |log w| <= "
        f"{bounds.trajectory_log_ratio([h] * n):.4g}"
        for n in TOKENS
    ]
    text = f"{clause.id} gives an effective sample size of trajectories of at least {', '.join(parts)}"
    yield _step("R5", clause, text, bounds.trajectory_ess([h] * TOKENS[-1]))


def _step(label: str, clause: Clause, text: str, value: float) -> Step:
    return Step(label=label, clause=clause.id, text=text, value=value if math.isfinite(value) else None)


def _exp(x: float) -> str:
    return f"{math.exp(x):.4g}" if x < 700.0 else "beyond float64"
