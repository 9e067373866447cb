"""Which clauses imply which: the arithmetic of limits, and the chain of bounds of theory.md section 3.

Only what holds for every pair of kernels is an implication. Binned ECE is measured, never implied;
rewards and outcomes of whole responses do not follow from bounds on one decision [B6]; with a cut
support (top-p, top-k, min-p) the chain does not hold and only clauses on one metric are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from contracts import bounds
from contracts.metrics import METRICS, Metric, Shape
from contracts.model import Clause, ClauseKind, Comparator, Contract, Statistic

Bound = Callable[[float, float], float]  # (source limit, temperature) -> target limit


@dataclass(frozen=True)
class Rule:
    """The target metric of a decision is at most `bound(source, T)`.

    `concave` says whether the bound is concave in the source, so that it also holds between means.
    """

    source: str
    target: str
    label: str
    bound: Bound
    concave: bool = True


@dataclass(frozen=True)
class Implication:
    """Clause `of` follows from clause `by` wherever `of` is judged.

    Attributes:
        by, of: clause ids.
        label: theory.md labels of the steps, "" where the clauses limit the same thing.
        limit: the limit `by` implies on the metric of `of`, in that metric's unit.
        exceedance: the share beyond that limit `by` still allows; 0.0 for none.
    """

    by: str
    of: str
    label: str
    limit: float
    exceedance: float


_TV_OSC: Bound = lambda x, t: bounds.tv_from_osc(x / t)  # noqa: E731 — a table of formulas reads better
_LINEAR: Bound = lambda x, _t: x  # noqa: E731

RULES: tuple[Rule, ...] = (
    Rule("logit_l2", "logit_l2_centered", "Q2", _LINEAR),
    Rule("logit_l2", "logit_linf", "Q3", _LINEAR),
    Rule("logit_l2_centered", "logit_osc", "B1", lambda x, _t: bounds.osc_from_l2(x)),
    Rule("logit_linf", "logit_osc", "B1", lambda x, _t: bounds.osc_from_linf(x)),
    Rule("logit_osc", "logit_weighted", "Q5", lambda x, _t: x / 2.0),
    Rule("logit_osc", "tv", "B1", _TV_OSC),
    Rule("logit_osc", "kl", "B2", lambda x, t: bounds.kl_from_osc(x / t), concave=False),
    Rule("logit_osc", "kl_reverse", "B2", lambda x, t: bounds.kl_from_osc(x / t), concave=False),
    Rule("logit_osc", "abs_log_ratio", "B3", lambda x, t: bounds.log_ratio_from_osc(x / t)),
    Rule("kl", "tv", "B2", lambda x, _t: bounds.tv_from_kl(x)),
    Rule("kl_reverse", "tv", "B2", lambda x, _t: bounds.tv_from_kl(x)),
    Rule("abs_log_ratio", "log_ratio", "Q6", _LINEAR),
)  # fmt: skip


def reachable(metric: str, limit: float, temperature: float, *, means: bool) -> dict[str, tuple[float, str]]:
    """Every metric bounded through `metric <= limit` on a decision, as {metric: (bound, labels)}.

    The smallest bound over all ways; the metric itself with label "". With `means` only steps that
    hold between means over decisions.
    """
    found = {metric: (limit, "")}
    queue = [metric]
    while queue:
        source = queue.pop(0)
        value, label = found[source]
        for rule in RULES:
            if rule.source != source or (means and not rule.concave):
                continue
            bound = rule.bound(value, temperature)
            steps = ", ".join(dict.fromkeys(filter(None, (*label.split(", "), rule.label))))
            if bound < found.get(rule.target, (math.inf, ""))[0]:
                found[rule.target] = (bound, steps)
                queue.append(rule.target)
    return found


def implications(contract: Contract) -> tuple[Implication, ...]:
    """Every clause that follows from another one, by the strongest single clause that implies it.

    Of two clauses that say the same, the later one follows from the earlier.
    """
    found = []
    for index, of in enumerate(contract.clauses):
        candidates = [
            implied
            for other, by in enumerate(contract.clauses)
            if other != index and _covers(by, of)
            for implied in _implied(by, of, contract)
            if other < index or not _mutual(by, of, contract)
        ]
        if candidates:
            found.append(min(candidates, key=lambda one: (one.limit, one.exceedance)))
    return tuple(found)


def _mutual(by: Clause, of: Clause, contract: Contract) -> bool:
    return _covers(of, by) and any(True for _ in _implied(of, by, contract))


def _covers(by: Clause, of: Clause) -> bool:
    """Whether `by` is judged wherever `of` is: on its slices, in its phases, at its stages."""
    everywhere = by.kind is ClauseKind.HARD and by.statistic is None and "all" in by.slices
    return (
        (everywhere or set(of.slices) <= set(by.slices))
        and set(of.stages) <= set(by.stages)
        and by.phase in (None, of.phase)
    )


def _implied(by: Clause, of: Clause, contract: Contract) -> Iterator[Implication]:
    source, target = METRICS[by.metric], METRICS[of.metric]
    if by.metric == of.metric and target.shape is not Shape.DECISION:
        alike = (by.relative_to, by.bins, by.binning) == (of.relative_to, of.bins, of.binning)
        if alike and further_out(by, of) and _tighter(by, of, by.limit.value):
            yield Implication(by.id, of.id, "", by.limit.value, 0.0)
        return
    if source.shape is not Shape.DECISION or target.shape is not Shape.DECISION:
        return
    if by.metric == of.metric and by.k == of.k:
        yield from _same_metric(by, of, target, by.limit.value, "")
        return
    if contract.sampling.truncated or by.limit.comparator is Comparator.GTE or by.metric == of.metric:
        return
    means = by.statistic is not None or by.aggregate == "mean"
    limit = abs(by.limit.value)
    bound, label = reachable(by.metric, limit, contract.sampling.temperature, means=means).get(
        of.metric, (math.inf, "")
    )
    if math.isfinite(bound):
        yield from _same_metric(by, of, target, bound, label)


def further_out(by: Clause, of: Clause) -> bool:
    """The same statistic, or one further out: p99 <= x gives p90 <= x, and p50 >= x gives p90 >= x."""
    if by.statistic is of.statistic:
        return True
    order = (Statistic.P50, Statistic.P90, Statistic.P95, Statistic.P99)
    if by.statistic not in order or of.statistic not in order:
        return False
    further = order.index(by.statistic) > order.index(of.statistic)
    return further != (by.limit.comparator is Comparator.GTE)


def _tighter(by: Clause, of: Clause, limit: float) -> bool:
    """Whether `by`'s side of its limit, moved to `limit`, lies within `of`'s."""
    mine, theirs = by.limit.comparator, of.limit.comparator
    if mine is Comparator.GTE or theirs is Comparator.GTE:
        return mine is theirs and limit >= of.limit.value
    # a metric without negative values has the same limit with and without |·|
    both_sides = mine is Comparator.ABS_LTE or METRICS[by.metric].low >= 0.0
    return limit <= of.limit.value and (theirs is Comparator.LTE or both_sides)


def _same_metric(by: Clause, of: Clause, metric: Metric, limit: float, label: str) -> Iterator[Implication]:
    """`by` bounds the metric of `of` by `limit` on whatever it counts: does that make `of` hold?"""
    if _tighter(by, of, limit):
        allowed = _exceedance(by, of)
        if allowed is not None and allowed <= (of.exceedance or 0.0):
            yield Implication(by.id, of.id, label, limit, allowed)
            return
    mean_of_soft = of.statistic is not None and by.kind is ClauseKind.SOFT and by.per == "decision"
    at_most = Comparator.GTE not in (by.limit.comparator, of.limit.comparator)
    if mean_of_soft and at_most and of.limit.comparator is Comparator.LTE and math.isfinite(metric.high):
        rho = by.exceedance or 0.0
        mean = (1.0 - rho) * limit + rho * metric.high
        if mean <= of.limit.value:
            yield Implication(by.id, of.id, ", ".join(filter(None, (label, "B8"))), mean, 0.0)


def _exceedance(by: Clause, of: Clause) -> float | None:
    """The share of what `of` counts that `by` leaves beyond a common limit; None where it says nothing.

    A prompt with no decision beyond has no aggregate beyond; a share of decisions is at most the
    share of prompts that have one at all.
    """
    if by.statistic is not None:  # a mean
        if of.statistic is not None:
            return 0.0
        return _markov(by, of)
    if by.kind is ClauseKind.HARD:
        return 0.0
    if of.statistic is not None or of.kind is ClauseKind.HARD:
        return None
    return by.exceedance if form_implies(by, of) else None


def form_implies(inner: Clause, outer: Clause) -> bool:
    """Whether, for soft clauses with one limit, `outer` counts no larger a share beyond than `inner`.

    Of at most: a prompt's smallest value is beyond only if all are, its largest if any is. So share of
    prompts by max >= by mean >= by min, and the share of decisions lies between max and min.
    """
    order = ("max", "mean", "min") if inner.limit.comparator is not Comparator.GTE else ("min", "mean", "max")
    if inner.per == outer.per == "decision":
        return True
    if inner.per == "decision":
        return outer.aggregate == order[2]
    if outer.per == "decision":
        return inner.aggregate == order[0]
    ranks = [order.index(one.aggregate) for one in (inner, outer) if one.aggregate is not None]
    return len(ranks) == 2 and ranks[0] <= ranks[1]


def _markov(by: Clause, of: Clause) -> float | None:
    """Pr[m > t] <= E[m]/t for what is never negative."""
    plain = by.metric == of.metric and METRICS[of.metric].low >= 0.0
    at_most = Comparator.GTE not in (by.limit.comparator, of.limit.comparator)
    if (
        not plain
        or not at_most
        or of.kind is ClauseKind.HARD
        or of.limit.value <= 0.0
        or of.aggregate == "max"
    ):
        return None
    return by.limit.value / of.limit.value
