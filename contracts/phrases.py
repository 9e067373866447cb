"""How numbers and limits read in a verdict's reason."""

from __future__ import annotations

import math
from collections.abc import Sequence

from contracts.accumulators import Position
from contracts.model import Comparator

NAMED_IN_REASON = 3


def number(value: float, unit: str = "") -> str:
    """`0.0123 nats`, four significant digits."""
    if math.isinf(value):
        text = "∞" if value > 0 else "−∞"
    else:
        text = f"{value:.4g}" if abs(value) < 1e5 else f"{value:,.0f}"
    return f"{text} {unit}".rstrip()


def percent(share: float) -> str:
    """`31.2%`, three significant digits."""
    return f"{100.0 * share:.3g}%"


def at_most(comparator: Comparator, value: str) -> str:
    """The limit in words."""
    words = {Comparator.LTE: "at most", Comparator.GTE: "at least", Comparator.ABS_LTE: "within ±"}
    return f"limit {words[comparator]} {value}".replace("± ", "±")


def beyond(comparator: Comparator, value: str) -> str:
    """Breaking the limit, in words."""
    words = {Comparator.LTE: "above", Comparator.GTE: "below", Comparator.ABS_LTE: "beyond ±"}
    return f"{words[comparator]} {value}".replace("± ", "±")


def counted(n: int, noun: str) -> str:
    """`96 prompts`, `1 prompt`."""
    return f"{n:,} {noun if n == 1 else noun + 's'}"


def interval(low: str, high: str, alpha: float) -> str:
    """`95% interval [a, b]`, each end one-sided."""
    return f"{100.0 * (1.0 - alpha):.3g}% interval [{low}, {high}]"


def place(position: Position) -> str:
    """Where a decision stands."""
    return f"{position.draw} decision {position.index}"


def places(positions: Sequence[Position], count: int) -> str:
    """The first few of `count` positions."""
    shown = "; ".join(place(p) for p in positions[:NAMED_IN_REASON])
    return shown + (" and others" if count > min(len(positions), NAMED_IN_REASON) else "")
