"""Words, marks and number formats of the status page: one word for one state, everywhere."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime

from contracts.metrics import METRICS
from contracts.model import ClauseKind, Comparator, Stage
from contracts.promotion import Status
from contracts.verdicts import Outcome, Verdict

NBSP = "\u00a0"  # between a number and its unit

STAGE_TITLES = {
    Stage.OFFLINE_CI: "Offline CI",
    Stage.SHADOW: "Shadow",
    Stage.CANARY: "Canary",
    Stage.FULL: "Full",
}


@dataclass(frozen=True, slots=True)
class Mark:
    """A word with its icon and tone; the word and the icon carry the meaning, the tone only helps."""

    word: str
    icon: str
    tone: str


OUTCOMES = {
    Outcome.HOLDS: Mark("Holds", "check", "good"),
    Outcome.VIOLATED: Mark("Violated", "cross", "bad"),
    Outcome.INCONCLUSIVE: Mark("Inconclusive", "question", "unsure"),
    Outcome.NO_DATA: Mark("No data", "empty", "unsure"),
    Outcome.UNMEASURABLE: Mark("Unmeasurable", "bang", "bad"),
}

STATUSES = {
    Status.MEASURING: Mark("Measuring", "pulse", "active"),
    Status.AWAITING_APPROVAL: Mark("Awaiting approval", "clock", "unsure"),
    Status.FROZEN: Mark("Frozen", "pause", "bad"),
    Status.PROMOTED: Mark("Promoted", "check", "good"),
    Status.FALLEN_BACK: Mark("Fallen back", "back", "bad"),
    Status.ABORTED: Mark("Aborted", "cross", "still"),
    Status.SUPERSEDED: Mark("Superseded", "skip", "still"),
    Status.EXPIRED: Mark("Expired", "clock", "still"),
}

CONVERGENCE = {
    True: Mark("Converged", "check", "good"),
    False: Mark("Violated", "cross", "bad"),
    None: Mark("Undecided", "question", "unsure"),
}

COMPARATORS = {Comparator.LTE: "≤", Comparator.GTE: "≥", Comparator.ABS_LTE: "within ±"}

EVENTS = {
    "start": "Started",
    "judged": "Judged",
    "measurement_failed": "Measurement failed",
    "tick": "Time passed",
    "approve": "Approved",
    "freeze": "Frozen by hand",
    "resume": "Resumed",
    "retry": "Retried",
    "override": "Verdict overridden",
    "abort": "Aborted",
    "supersede": "Superseded",
    "known_good_health": "Known-good health changed",
}


def number(value: float | None) -> str:
    """Four significant digits; a dash for nothing, and NaN and ∞ by name."""
    if value is None:
        return "—"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value and not 1e-4 <= abs(value) < 1e7:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−") if abs(value) < 1e4 else f"{value:.0f}".replace("-", "−")


def share(value: float) -> str:
    """A share in [0, 1], in per cent."""
    return f"{number(100 * value)}{NBSP}%"


def quantity(value: float | None, verdict: Verdict) -> str:
    """A value of the judged quantity with its unit: a share in per cent for a soft clause."""
    if value is None or not math.isfinite(value):
        return number(value)
    if verdict.kind is ClauseKind.SOFT:
        return share(value)
    return f"{number(value)}{NBSP}{verdict.unit}".rstrip()


def limit(verdict: Verdict) -> str:
    """The limit with its comparator: `≤ 1 %`, `≥ 0.8`, `within ± 0.03`."""
    comparator = COMPARATORS[Comparator.LTE if verdict.kind is ClauseKind.SOFT else verdict.comparator]
    return f"{comparator} {quantity(verdict.limit, verdict)}"


def interval(verdict: Verdict) -> str:
    """The confidence interval in words, `0 – 0.61 %`; open ends are infinite."""
    low, high = verdict.interval.low, verdict.interval.high
    if low is None and high is None:
        return "—"
    if low is None:
        return f"up to {quantity(high, verdict)}"
    if high is None:
        return f"from {quantity(low, verdict)}"
    if verdict.kind is ClauseKind.SOFT:
        return f"{number(100 * low)} – {number(100 * high)}{NBSP}%"
    return f"{number(low)} – {number(high)}{NBSP}{verdict.unit}".rstrip()


def promise(verdict: Verdict) -> str:
    """What the clause promises on this slice, in one line."""
    name = metric_name(verdict)
    if verdict.kind is ClauseKind.SOFT:
        threshold = (
            f"{COMPARATORS[verdict.comparator]} {number(verdict.threshold)}{NBSP}{verdict.unit}".rstrip()
        )
        return f"{name} {threshold}, all but {number(100 * verdict.limit)}{NBSP}%"
    return f"{name} {limit(verdict)}"


def metric_name(verdict: Verdict) -> str:
    """The metric with the statistic taken of it, `mean kl`."""
    known = {"mean", "p50", "p90", "p95", "p99"}
    return f"{verdict.statistic} {verdict.metric}" if verdict.statistic in known else verdict.metric


def meaning(verdict: Verdict) -> str:
    """The registry's explanation of the metric, with its symbol."""
    metric = METRICS.get(verdict.metric)
    return f"{metric.symbol}: {metric.summary}" if metric else ""


def short(digest: str) -> str:
    """A content digest cut to twelve hex digits; names that are no digest stay whole."""
    algorithm, _, rest = digest.partition(":")
    return f"{rest[:12]}…" if algorithm == "sha256" and len(rest) > 12 else digest


def instant(at: datetime) -> str:
    """A moment for people, always UTC: `2026-12-01 09:30:05`."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def ago(at: datetime, now: datetime) -> str:
    """How long ago, in the largest unit that is at least one: `4 min`, `2 h`, `3 d`."""
    seconds = max(0, int((now - at).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago" if seconds else "just now"
