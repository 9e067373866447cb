"""Values that are offered as evidence, and how far rounding may carry them."""

from __future__ import annotations

ROUNDING = 1e-9  # how far a bounded metric may stray out of its range and still be rounding

# What the two recorded columns of a metric end with that is known between two ends only [C1].
LOWER, UPPER = "_lower", "_upper"


class BadValues(ValueError):
    """Values that cannot be evidence: the message says which draw, phase and metric."""
