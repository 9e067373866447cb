"""Geometry of the interval drawing: interval, observed value and limit on one axis.

Only numbers leave this module; the template draws them, so nothing here can inject markup.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from contracts.model import ClauseKind, Comparator
from contracts.verdicts import Verdict

WIDTH = 168.0
INSET = 6.0


@dataclass(frozen=True, slots=True)
class Band:
    """A stretch of the axis in drawing units; an open end runs to the edge of the drawing."""

    start: float
    end: float
    open_start: bool = False
    open_end: bool = False

    @property
    def width(self) -> float:
        """Length, at least a hairline so that a point interval stays visible."""
        return max(round(self.end - self.start, 2), 1.0)


@dataclass(frozen=True, slots=True)
class Chart:
    """What to draw, x coordinates in [0, WIDTH]; `allowed` is where the limit is kept."""

    interval: Band | None
    observed: float | None
    limits: tuple[float, ...]
    allowed: Band
    width: float = WIDTH


def draw(verdict: Verdict) -> Chart | None:
    """The drawing of a verdict, or None when there is neither a value nor an interval."""
    observed = _finite(verdict.observed)
    low, high = _finite(verdict.interval.low), _finite(verdict.interval.high)
    if observed is None and low is None and high is None:
        return None
    limits = _limits(verdict)
    known = [v for v in (observed, low, high, *limits) if v is not None]
    bottom, top = min(known), max(known)
    if bottom >= 0:
        bottom = 0.0
    span = (top - bottom) or abs(top) or 1.0
    top += span * 0.12
    if bottom < 0:
        bottom -= span * 0.12
    span = top - bottom

    def x(value: float) -> float:
        return round(INSET + (value - bottom) / span * (WIDTH - 2 * INSET), 2)

    interval = None
    if low is not None or high is not None:
        interval = Band(
            0.0 if low is None else x(low), WIDTH if high is None else x(high), low is None, high is None
        )
    at = [x(value) for value in limits]
    allowed = Band(at[0] if _floor(verdict) or len(at) == 2 else 0.0, WIDTH if _floor(verdict) else at[-1])
    return Chart(interval, None if observed is None else x(observed), tuple(at), allowed)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _floor(verdict: Verdict) -> bool:
    return verdict.kind is ClauseKind.HARD and verdict.comparator is Comparator.GTE


def _limits(verdict: Verdict) -> tuple[float, ...]:
    if verdict.kind is ClauseKind.HARD and verdict.comparator is Comparator.ABS_LTE:
        return (-verdict.limit, verdict.limit)
    return (verdict.limit,)
