"""Words, marks and number formats of the status page: one word for one state, everywhere."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from contracts import report
from contracts.compare import Change, Direction
from contracts.metrics import METRICS
from contracts.model import Clause, ClauseKind, Comparator, Stage
from contracts.promotion import Status
from contracts.verdicts import Outcome

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

_SIGNED = re.compile(r"\b(abs_lte|lte|gte) ")

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


def share(value: float) -> str:
    """A share in [0, 1], in per cent."""
    return report.number(value, "%")


def promise(clause: Clause) -> str:
    """What a clause promises on each of its slices, in one line."""
    metric = METRICS.get(clause.metric)
    unit = "" if metric is None or clause.relative_to else metric.unit
    value = report.number(clause.limit.value, unit)
    if clause.relative_to is not None:
        value += f"× the {clause.relative_to}’s"
    limit = f"{COMPARATORS[clause.limit.comparator]} {value}"
    name = clause.metric if clause.statistic is None else f"{clause.statistic} {clause.metric}"
    if clause.aggregate is not None:
        name = f"{clause.aggregate} {name}"
    if clause.kind is ClauseKind.SOFT and clause.exceedance is not None:
        limit += f" for all but {share(clause.exceedance)} of {clause.per}s"
    return f"{name} {limit}"


def change(change: Change) -> str:
    """One change of a contract: `clause S2: limit ≤ 0.1 → ≤ 0.2`, `clause R1 removed`."""
    verb = {
        Direction.REMOVED: " removed",
        Direction.ADDED: " added",
        Direction.INCOMPARABLE: " changed, neither looser nor tighter",
    }.get(change.direction, "")
    how = "; ".join(_SIGNED.sub(_sign, detail) for detail in change.details)
    return f"{change.part}{verb}: {how}" if how else f"{change.part}{verb}"


def _sign(written: re.Match[str]) -> str:
    sign = COMPARATORS[Comparator(written[1])]
    return sign if sign.endswith("±") else f"{sign} "


def meaning(metric_id: str) -> str:
    """The registry's explanation of a metric, with its symbol."""
    metric = METRICS.get(metric_id)
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
