"""A judgement as rows of words: the verdict table of the command line and of the pages."""

from __future__ import annotations

import math
from dataclasses import dataclass

from contracts.metrics import METRICS, Shape
from contracts.model import ClauseKind, Comparator
from contracts.verdicts import Interval, Judgement, Outcome, Verdict

NOTHING = "–"
_SIGNS = {Comparator.LTE: "≤", Comparator.GTE: "≥", Comparator.ABS_LTE: "|·| ≤"}
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_BYTES = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))


@dataclass(frozen=True, slots=True)
class Row:
    """One verdict in words, ready to print; every field is text.

    Attributes:
        clause: the clause's id.
        metric: metric and statistic, such as `mean kl`.
        observed, limit, interval: with units, three significant digits; `–` for none.
        n: prompts or requests; with those needed to decide, where that is known.
        verdict: HOLDS, VIOLATED, INCONCLUSIVE, NO_DATA or UNMEASURABLE.
        reason: the verdict's sentence.
    """

    clause: str
    metric: str
    slice: str
    phase: str
    observed: str
    limit: str
    n: str
    interval: str
    verdict: str
    reason: str


def rows(judgement: Judgement) -> list[Row]:
    """One row a verdict, in the judgement's order."""
    return [_row(verdict) for verdict in judgement.verdicts]


def headline(judgement: Judgement) -> str:
    """The outcome in one sentence; a violation names the clause, slice, observed value and limit."""
    stage = judgement.stage.value.replace("_", " ")
    total = len(judgement.verdicts)
    prompts = _counted(judgement.prompts, "prompt")
    if judgement.converged:
        return f"Converged in {stage}: {_counted(total, 'verdict')} hold on {prompts}."
    broken = [v for v in judgement.verdicts if v.verdict in _broken(judgement)]
    if not broken:
        return f"{'Undecided' if judgement.converged is None else 'Violated'} in {stage}: {judgement.reason}"
    worst = max(broken, key=lambda v: v.level)
    more = f" ({len(broken) - 1} more of {total})" if len(broken) > 1 else ""
    word = "Violated" if judgement.converged is False else "Undecided"
    return f"{word} in {stage} on {prompts}: {_sentence(worst)}{more}."


def _broken(judgement: Judgement) -> set[Outcome]:
    if judgement.converged is None:
        return {Outcome.INCONCLUSIVE, Outcome.NO_DATA, Outcome.UNMEASURABLE}
    violated = any(v.verdict is Outcome.VIOLATED for v in judgement.verdicts)
    return {Outcome.VIOLATED} if violated else {Outcome.UNMEASURABLE}


def _sentence(verdict: Verdict) -> str:
    place = f"slice {verdict.slice}" + (f", {verdict.phase}" if verdict.phase else "")
    row = _row(verdict)
    name = f"{row.clause} {row.metric} on {place}"
    match verdict.verdict:
        case Outcome.NO_DATA:
            return f"{name} has no data"
        case Outcome.UNMEASURABLE:
            return f"{name} met decisions that could not be measured"
        case Outcome.INCONCLUSIVE:
            return f"{name} is undecided at n {row.n}, interval {row.interval}, limit {row.limit}"
        case _:
            return f"{name} is {row.observed}, limit {row.limit}"


def _row(verdict: Verdict) -> Row:
    unit = shown_unit(verdict)
    return Row(
        clause=verdict.clause,
        metric=metric_name(verdict),
        slice=verdict.slice,
        phase=verdict.phase or NOTHING,
        observed=NOTHING if verdict.observed is None else number(verdict.observed, unit),
        limit=limit_of(verdict),
        n=f"{verdict.n:,}" + (f" of {verdict.needed:,}" if verdict.needed is not None else ""),
        interval=_interval(verdict.interval, unit),
        verdict=verdict.verdict.value,
        reason=verdict.reason,
    )


def metric_name(verdict: Verdict) -> str:
    """`mean kl`, `p99 latency`, or the metric alone where the statistic adds nothing."""
    statistics = METRICS[verdict.metric].statistics if verdict.metric in METRICS else ()
    named = verdict.statistic in statistics
    return f"{verdict.statistic} {verdict.metric}" if named else verdict.metric


def shown_unit(verdict: Verdict) -> str:
    """The unit `observed`, `limit` and the interval are shown in: `%` for shares and rates.

    A soft clause's are exceedance shares whatever the metric; a ratio to the baseline is `×`.
    """
    metric = METRICS.get(verdict.metric)
    if verdict.kind is ClauseKind.SOFT or (metric is not None and metric.shape is Shape.COUNT):
        return "%"
    if metric is not None and metric.shape is Shape.RUNTIME and verdict.unit == "":
        return "×"
    return verdict.unit


def limit_of(verdict: Verdict) -> str:
    """What is compared with and how, for example `≤ 1% beyond 0.18 nats`."""
    unit = shown_unit(verdict)
    text = f"{_SIGNS[verdict.comparator]} {number(verdict.limit, unit)}"
    if verdict.threshold is None:
        return text
    return f"{text} beyond {number(verdict.threshold, verdict.unit)}"


def _interval(interval: Interval, unit: str) -> str:
    if interval.low is None and interval.high is None:
        return NOTHING
    low = -math.inf if interval.low is None else interval.low
    high = math.inf if interval.high is None else interval.high
    return f"[{number(low, unit)}, {number(high, unit)}]"


def number(value: float, unit: str = "") -> str:
    """A value in base units for people: `12.3 ms`, `1.5 GiB`, `4.2%`, `0.0123 nats`.

    Three significant digits; `%` takes a share in [0, 1]. Infinite and undefined values are
    shown as such, never as numbers.
    """
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if unit == "%":
        return f"{_digits(100.0 * value)}%"
    if unit in ("s", "B"):
        scale = _SECONDS if unit == "s" else _BYTES
        factor, unit = next((s for s in scale if abs(value) >= s[0]), scale[-1] if value else (1.0, unit))
        value /= factor
    text = _digits(value)
    return f"{text}{unit}" if unit == "×" else f"{text} {unit}".rstrip()


def _digits(value: float) -> str:
    if value == 0.0:
        return "0"
    rounded = float(f"{value:.2e}")
    if abs(rounded) >= 1e15 or abs(rounded) < 1e-4:
        mantissa, _, exponent = f"{rounded:.2e}".partition("e")
        text = f"{float(mantissa):g}e{int(exponent)}"
    elif abs(rounded) >= 1000.0:
        text = f"{rounded:,.0f}"
    else:
        text = f"{rounded:.3g}"
    return text.replace("-", "−", 1) if text.startswith("-") else text


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
