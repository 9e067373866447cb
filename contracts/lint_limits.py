"""Lint of limits: what no pair can keep or break, vacuous bounds, implied clauses, the clip budget."""

from __future__ import annotations

import math
from collections.abc import Iterator

from contracts import bounds
from contracts.diagnostics import Path, Problem
from contracts.implications import implications, reachable
from contracts.metrics import METRICS, Shape
from contracts.model import Clause, Comparator, Contract, RlBudget
from contracts.semantics import possible

VACUOUS_TV = 0.5  # theory.md, Vacuity
VACUOUS_RATIO = 10.0
LOG_PROBABILITIES = frozenset({"log_ratio", "abs_log_ratio", "clip_fraction_at_zero", "ess", "ppl_ratio"})
DISTRIBUTIONS = frozenset({"kl", "kl_reverse", "tv"})


def limits(contract: Contract) -> Iterator[Problem]:
    """Every finding about limits."""
    yield from _admission(contract)
    yield from _vacuous(contract)
    yield from _implied(contract)
    yield from _budget(contract)
    yield from _truncated(contract)


# What no pair can keep, or none can break


def _admission(contract: Contract) -> Iterator[Problem]:
    harmless = 0
    for index, clause in enumerate(contract.clauses):
        metric, limit = METRICS[clause.metric], clause.limit
        at: Path = ("clauses", index, "limit", limit.comparator.value)
        wrong = _wrong_way(clause)
        if _cannot_fail(clause, contract):
            harmless += 1
            low, high = possible(metric, contract.reward)
            message = f"clause {clause.id} can never fail: {metric.id} lies in [{low:g}, {high:g}]"
            # a share of failures that tolerates all of them is what a gate must never be
            code = "tolerates-all" if metric.shape is Shape.COUNT and metric.worse == "up" else "cannot-fail"
            yield Problem(at, code, message)
        elif metric.ideal is not None and limit.exceeded_by(metric.ideal):
            message = (
                f"clause {clause.id} refuses even two identical kernels, whose {metric.id} is "
                f"{metric.ideal:g}{wrong}"
            )
            yield Problem(at, "no-conforming-pair", message)
        elif wrong:
            side = "least" if limit.comparator is Comparator.GTE else "most"
            message = f"clause {clause.id} asks for {metric.id} of at {side} {limit.value:g}{wrong}"
            yield Problem(at, "direction", message)
    yield from _contradictions(contract)
    if harmless == len(contract.clauses):
        message = "no pair of kernels can violate this contract: none of its clauses can fail"
        yield Problem(("clauses",), "no-violating-pair", message)


def _cannot_fail(clause: Clause, contract: Contract) -> bool:
    limit = clause.limit
    low, high = possible(METRICS[clause.metric], contract.reward)
    if clause.relative_to is not None:
        low, high = 0.0, math.inf
    match limit.comparator:
        case Comparator.LTE:
            return limit.value >= high
        case Comparator.GTE:
            return limit.value <= low
        case Comparator.ABS_LTE:
            return limit.value >= max(abs(low), abs(high))


def _wrong_way(clause: Clause) -> str:
    metric, comparator = METRICS[clause.metric], clause.limit.comparator
    if metric.worse == "up" and comparator is Comparator.GTE and math.isfinite(metric.low):
        return ": did you mean lte?"
    if metric.worse == "down" and comparator is not Comparator.GTE:
        return ": did you mean gte?"
    return ""


def _contradictions(contract: Contract) -> Iterator[Problem]:
    """Two runtime clauses of which one asks for at least what the other forbids."""
    for index, clause in enumerate(contract.clauses):
        if clause.limit.comparator is not Comparator.GTE or METRICS[clause.metric].ideal is not None:
            continue
        for other in contract.clauses:
            same = (other.metric, other.statistic, other.relative_to) == (
                clause.metric,
                clause.statistic,
                clause.relative_to,
            )
            meet = set(other.slices) & set(clause.slices) and set(other.stages) & set(clause.stages)
            below = other.limit.comparator is not Comparator.GTE and other.limit.value < clause.limit.value
            if same and meet and below:
                message = f"clauses {other.id} and {clause.id} exclude each other: no pair keeps both"
                yield Problem(("clauses", index, "limit"), "no-conforming-pair", message)


# Bounds that say nothing


def _vacuous(contract: Contract) -> Iterator[Problem]:
    """Logit clauses whose bound on total variation says nothing, or nothing beside a tv clause."""
    measured = [
        c.limit.value for c in contract.clauses if c.metric == "tv" and c.limit.comparator is Comparator.LTE
    ]
    for index, clause in enumerate(contract.clauses):
        at: Path = ("clauses", index, "limit")
        if clause.limit.comparator is Comparator.GTE or not clause.metric.startswith("logit_"):
            continue
        implied = implied_tv(clause, contract)
        label = "B9" if clause.metric == "logit_weighted" else "B1"
        if implied is None:
            message = (
                f"clause {clause.id} alone bounds nothing: [B9] also needs the largest deviation, so add a "
                f"logit_osc clause on {', '.join(clause.slices)}"
            )
            yield Problem(at, "weighted-alone", message)
        elif implied >= VACUOUS_TV:
            message = (
                f"clause {clause.id} implies no more than total variation <= {implied:.3g} [{label}]: as a "
                "bound on behaviour it is vacuous; state a tv or kl clause for that"
            )
            if label == "B1":
                message += (
                    ", or logit_weighted beside logit_osc, which stays useful at real vocabularies [B9]"
                )
            yield Problem(at, "vacuous-bound", message)
        elif measured and implied > VACUOUS_RATIO * min(measured):
            message = (
                f"clause {clause.id} implies total variation <= {implied:.3g} [{label}], more than "
                f"{VACUOUS_RATIO:g} times the tv clause's {min(measured):g}: it cannot stand in for it"
            )
            yield Problem(at, "vacuous-bound", message)


def implied_tv(clause: Clause, contract: Contract) -> float | None:
    """The total variation a logit clause's limit implies for one decision.

    [B1] through the oscillation; for `logit_weighted` [B9] with the smallest oscillation another
    clause grants on a slice and phase of its own. None where nothing follows, and for other metrics.
    """
    t = contract.sampling.temperature
    if clause.metric == "logit_weighted":
        widest = oscillation(clause, contract)
        return None if widest is None else bounds.tv_from_weighted(clause.limit.value, widest, t)
    found = reachable(clause.metric, clause.limit.value, t, means=False).get("tv")
    return found[0] if found else None


def bounds_each(clause: Clause) -> bool:
    """Whether the limit is on single decisions, of all prompts or of all but an exceedance; not on means."""
    return clause.statistic is None and clause.aggregate in (None, "max")


def oscillation(clause: Clause, contract: Contract) -> float | None:
    """The smallest bound on `logit_osc`, logits, that other clauses grant wherever `clause` is judged."""
    found = [
        reachable(other.metric, other.limit.value, 1.0, means=False)["logit_osc"][0]
        for other in contract.clauses
        if other.metric in ("logit_osc", "logit_linf", "logit_l2", "logit_l2_centered")
        and other.limit.comparator is not Comparator.GTE
        and bounds_each(other)
        and set(clause.slices) <= set(other.slices)
        and other.phase in (None, clause.phase)
    ]
    return min(found, default=None)


def _implied(contract: Contract) -> Iterator[Problem]:
    places = {clause.id: index for index, clause in enumerate(contract.clauses)}
    by_id = {clause.id: clause for clause in contract.clauses}
    for one in implications(contract):
        if _cannot_fail(by_id[one.of], contract):
            continue
        why = f" [{one.label.replace(', ', '], [')}]" if one.label else ""
        share = f" on all but {100.0 * one.exceedance:.3g}%" if one.exceedance else ""
        message = (
            f"clause {one.of} says nothing new: clause {one.by} implies {by_id[one.of].metric} within "
            f"{one.limit:.3g}{share}{why}; tighten it or leave it out"
        )
        yield Problem(("clauses", places[one.of]), "implied", message)


# Post-training


def _budget(contract: Contract) -> Iterator[Problem]:
    """Log-ratio limits against the clip range the update needs [R4]."""
    if contract.rl is None:
        return
    room = clip_room(contract.rl)
    budget = contract.rl.kernel_budget_share
    bounded = any(_implied_ratio(c, contract) <= budget * room for c in contract.clauses)
    for index, clause in enumerate(contract.clauses):
        if clause.metric not in ("abs_log_ratio", "log_ratio") or clause.limit.comparator is Comparator.GTE:
            continue
        bounded = True
        at: Path = ("clauses", index, "limit")
        share = bounds.budget_share(abs(clause.limit.value), contract.rl.clip.low, contract.rl.clip.high)
        if share >= 1.0:
            message = (
                f"clause {clause.id} lets the kernel pair use the whole clip range [R4]: the limit must be "
                f"below {room:.3g} nats"
            )
            yield Problem(at, "beyond-clip", message)
        elif share > budget:
            message = (
                f"clause {clause.id} lets the kernel pair use {share:.0%} of the clip range [R4], the budget "
                f"is {budget:.0%}: at most {budget * room:.3g} nats"
            )
            yield Problem(at, "beyond-budget", message)
    if not bounded:
        message = (
            f"no clause limits the log-ratio, so nothing keeps the kernel pair within its {budget:.0%} of "
            f"the clip range [R4]: add abs_log_ratio of at most {budget * room:.3g} nats"
        )
        yield Problem(("rl",), "unbounded-ratio", message)


def _implied_ratio(clause: Clause, contract: Contract) -> float:
    """The |log w|, nats, that a logit clause on single decisions leaves [B3]; inf where it says nothing."""
    if clause.limit.comparator is Comparator.GTE or not bounds_each(clause):
        return math.inf
    t = contract.sampling.temperature
    found = reachable(clause.metric, abs(clause.limit.value), t, means=False).get("abs_log_ratio")
    return found[0] if found and clause.metric.startswith("logit_") else math.inf


def clip_room(rl: RlBudget) -> float:
    """min(−log(1 − ε_lo), log(1 + ε_hi)) in nats: log-ratio drift at which no update is left [R4]."""
    return bounds.clip_room(rl.clip.low, rl.clip.high)


def _truncated(contract: Contract) -> Iterator[Problem]:
    if not contract.sampling.truncated:
        return
    for clause in contract.clauses:
        if clause.metric in LOG_PROBABILITIES | DISTRIBUTIONS:
            message = (
                f"sampling cuts the support, and clause {clause.id} is about log-probabilities: both sides "
                "must be normalised over the same kept set, or every log-ratio is shifted by the log of "
                "the kept mass [S8]"
            )
            yield Problem(("sampling",), "truncated-sampling", message)
            return
