"""Findings on the service: runtime of requests, counts among them, gauges."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from contracts import intervals, phrases, sequential
from contracts.accumulators import Sketch
from contracts.evidence import Cell
from contracts.finding import (
    Bound,
    Finding,
    Setting,
    bounded,
    excludes,
    limited,
    plug_in,
    said,
    share,
    within,
)
from contracts.model import Clause, Comparator, Statistic

QUANTILES = {Statistic.P50: 0.5, Statistic.P90: 0.9, Statistic.P95: 0.95, Statistic.P99: 0.99}
Estimate = Callable[[Sketch], float]
SketchBound = Callable[[Sketch, float], tuple[float, float]]
WINDOW_COUNTS = frozenset({"dual_evaluation_coverage", "logprob_capture_rate"})


def runtime_finding(clause: Clause, cell: Cell, setting: Setting, blank: Finding) -> Finding:
    """A quantile or mean over requests, or its ratio to the concurrent baseline's.

    Of a ratio each side is bounded at alpha/2. Without a statistic there is nothing to judge.
    """
    candidate, baseline = cell.candidate or Sketch(), cell.baseline
    relative = clause.relative_to is not None
    if clause.statistic is None or not candidate.n or (relative and not (baseline and baseline.n)):
        return blank
    q = QUANTILES.get(clause.statistic)
    estimate, one_bound, method = _quantile(q, setting) if q is not None else _mean_of_sketch(setting)
    observed = estimate(candidate)
    sketches = [candidate]
    if relative and baseline is not None:
        observed = observed / estimate(baseline) if estimate(baseline) > 0.0 else math.inf
        sketches.append(baseline)

    def bound_of(of: list[Sketch]) -> Bound:
        def bound(alpha: float) -> tuple[float, float]:
            low, high = one_bound(of[0], alpha / len(of))
            if len(of) == 1:
                return low, high
            base_low, base_high = one_bound(of[1], alpha / 2.0)
            return (
                low / base_high if base_high > 0.0 else 0.0,
                high / base_low if base_low > 0.0 else math.inf,
            )

        return bound

    blank = replace(blank, observed=observed, n=min(s.n for s in sketches), method=method)
    found = bounded(blank, bound_of(sketches), setting)

    def decides(m: int) -> bool:
        grown = [_grown(s, m / blank.n) for s in sketches]
        ends = bound_of(grown)(setting.alpha)
        return within(blank, ends) or excludes(blank, ends)

    found = replace(found, needed=lambda: sequential.smallest(decides, blank.n))
    if q is None and blank.n < intervals.ASYMPTOTIC_MINIMUM:
        found = replace(found, holds=False, p_value=1.0, log_e=0.0)
    name = f"{blank.statistic} {clause.metric}" + (" relative to baseline" if relative else "")
    return limited(found, name, setting)


def _quantile(q: float, setting: Setting) -> tuple[Estimate, SketchBound, str]:
    bounds = sequential.quantile_bounds if setting.stream else intervals.quantile_bounds
    return (
        lambda sketch: sum(intervals.sketch_quantile(sketch, q)) / 2.0,
        lambda sketch, alpha: bounds(sketch, q, alpha),
        "order-statistic-cs" if setting.stream else "order-statistic",
    )


def _mean_of_sketch(
    setting: Setting,
) -> tuple[Estimate, SketchBound, str]:
    def bound(sketch: Sketch, alpha: float) -> tuple[float, float]:
        moments, error = intervals.sketch_moments(sketch)
        low, high = setting.mean_bounds(moments, alpha)
        return max(low, 0.0) * (1.0 - error), high * (1.0 + error)

    return (
        lambda sketch: intervals.sketch_moments(sketch)[0].mean,
        bound,
        setting.mean_method,
    )


def _grown(sketch: Sketch, factor: float) -> Sketch:
    return Sketch(buckets=tuple((bucket, round(count * factor)) for bucket, count in sketch.buckets))


def count_finding(clause: Clause, cell: Cell, setting: Setting, blank: Finding) -> Finding:
    """Events among requests; coverage is a complete count of its window.

    A limit of no event at all is certified like a hard clause on each decision [S2].
    """
    if cell.count is None or not cell.count.trials:
        return blank
    events, trials = cell.count.events, cell.count.trials
    observed = events / trials
    blank = replace(blank, n=trials, observed=observed)
    if setting.census or clause.metric in WINDOW_COUNTS:
        found = plug_in(blank, observed)
    elif clause.limit.comparator is not Comparator.GTE and clause.limit.value <= 0.0:
        size = intervals.hard_sample_size(setting.hard_exceedance, setting.alpha)
        found = replace(
            blank,
            low=observed,
            high=1.0,
            method="counterexample",
            certain=events > 0,
            p_value=0.0 if events else 1.0,
            holds=events == 0 and trials >= size,
            needed=lambda: size,
        )
    else:
        found = share(sequential.binary(events, trials), setting, blank, exact=True)
    limit = phrases.at_most(clause.limit.comparator, phrases.percent(clause.limit.value))
    return said(found, f"{clause.metric} {phrases.percent(observed)} ({limit})", setting, phrases.percent)


def gauge_finding(clause: Clause, cell: Cell, setting: Setting, blank: Finding) -> Finding:
    """The worst reading against the limit."""
    gauge = cell.gauge
    if gauge is None:
        return blank
    worst = {
        Comparator.LTE: gauge.high,
        Comparator.GTE: gauge.low,
        Comparator.ABS_LTE: max(gauge.low, gauge.high, key=abs),
    }[clause.limit.comparator]
    found = replace(plug_in(replace(blank, n=gauge.readings), worst), method="gauge")
    return limited(found, clause.metric, setting)
