"""Findings on drift of decisions; paired metrics are in `paired_findings`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from contracts import intervals, phrases
from contracts.accumulators import Draws, Extreme, Moments, Position
from contracts.evidence import Cell
from contracts.finding import Bound, Finding, Setting, asymptotic, limited, plug_in, said, share
from contracts.metrics import METRICS
from contracts.model import Clause, Comparator


def soft_finding(clause: Clause, cell: Cell, setting: Setting, blank: Finding) -> Finding:
    """Share of decisions, or of prompts, beyond the limit, against the exceedance [S2], [S3], [S5]."""
    draws = cell.draws or Draws()
    if not draws.n:
        return blank
    found = share(draws, setting, blank, exact=clause.per == "prompt")
    unit = METRICS[clause.metric].unit
    what = f"{clause.aggregate or 'worst'} {clause.metric}" if clause.per == "prompt" else clause.metric
    return said(
        found,
        f"{what} {phrases.beyond(clause.limit.comparator, phrases.number(clause.limit.value, unit))} "
        f"on {phrases.percent(draws.mean)} of {clause.per}s (limit {phrases.percent(found.limit)})",
        setting,
        phrases.percent,
    )


def every_finding(clause: Clause, cell: Cell, setting: Setting, blank: Finding) -> Finding:
    """A hard clause on each decision: one counterexample violates [S2]."""
    draws, extreme = cell.draws or Draws(), cell.extreme
    if extreme is None:
        return replace(blank, n=draws.n)
    worst, at = _worst(extreme, clause.limit.comparator)
    size = intervals.hard_sample_size(setting.hard_exceedance, setting.alpha)
    broken = clause.limit.exceeded_by(worst)
    unit = METRICS[clause.metric].unit
    side = "smallest" if clause.limit.comparator is Comparator.GTE else "largest"
    what = f"{side} {clause.metric} {phrases.number(worst, unit)} at {phrases.place(at)}"
    if clause.metric == "unmeasurable":
        what = f"unmeasurable decision at {phrases.place(at)}" if worst else "no unmeasurable decision"
    limit = phrases.at_most(clause.limit.comparator, phrases.number(clause.limit.value, unit))
    sentence = f"{what} ({limit}), {phrases.counted(draws.n, 'prompt')}"
    return replace(
        blank,
        observed=worst,
        n=draws.n,
        low=worst if blank.comparator is not Comparator.GTE else -math.inf,
        high=worst if blank.comparator is Comparator.GTE or setting.census else math.inf,
        method="census" if setting.census else "counterexample",
        holds=not broken and (setting.census or draws.n >= size),
        p_value=0.0 if broken else 1.0,
        certain=broken,
        needed=lambda: size,
        sentence=sentence,
    )


def _worst(extreme: Extreme, comparator: Comparator) -> tuple[float, Position]:
    if comparator is Comparator.GTE or (
        comparator is Comparator.ABS_LTE and abs(extreme.low) > abs(extreme.high)
    ):
        return extreme.low, extreme.low_at
    return extreme.high, extreme.high_at


def mean_finding(clause: Clause, cell: Cell, setting: Setting, blank: Finding) -> Finding:
    """Mean of the per-prompt means: by bets where the metric is in [0, 1], else asymptotic."""
    moments = cell.moments or Moments()
    if not moments.n:
        return blank
    if cell.draws is not None and not setting.census:
        found = share(cell.draws, setting, blank, exact=False)
    else:
        found = average(moments, setting, blank, lambda v: v)
    return limited(replace(found, observed=moments.mean), f"mean {clause.metric}", setting)


def average(moments: Moments, setting: Setting, blank: Finding, shown: Callable[[float], float]) -> Finding:
    """An unbounded mean, through the increasing function `shown`, against a limit."""
    blank = replace(blank, observed=safely(shown, moments.mean), n=moments.n)
    if setting.census:
        return plug_in(blank, safely(shown, moments.mean))

    def bound_of(sample: Moments) -> Bound:
        def bound(alpha: float) -> tuple[float, float]:
            low, high = setting.mean_bounds(sample, alpha)
            return safely(shown, low), safely(shown, high)

        return bound

    return asymptotic(replace(blank, method=setting.mean_method), moments, bound_of, setting)


def safely(shown: Callable[[float], float], value: float) -> float:
    """`shown(value)`, infinite where it overflows."""
    try:
        return shown(value)
    except OverflowError:
        return math.inf
