"""Multiplicity of alarms [S4]: which of several cells may be called VIOLATED.

Any one VIOLATED stops a promotion, so this side is corrected across clauses × slices ×
phases. The HOLDS side is an intersection-union test and needs no correction. P-values reject
strictly below alpha, as an interval does whose lower end lies strictly above the limit [S2].
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def holm(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Rejections with the family-wise error rate at most alpha, in the given order."""
    m = len(p_values)
    rejected = [False] * m
    for rank, i in enumerate(sorted(range(m), key=lambda i: (p_values[i], i))):
        if not p_values[i] < alpha / (m - rank):
            break
        rejected[i] = True
    return rejected


def bonferroni(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Rejections with the family-wise error rate at most alpha: p < alpha/m."""
    return [p < alpha / len(p_values) for p in p_values]


def e_bh(log_e_values: Sequence[float], alpha: float) -> list[bool]:
    """Rejections with the false discovery rate at most alpha, however the e-values depend.

    The k largest are rejected for the largest k with e_(k) >= m/(k·alpha).
    """
    m = len(log_e_values)
    ordered = sorted(log_e_values, reverse=True)
    passing = [k for k in range(1, m + 1) if ordered[k - 1] >= math.log(m / (k * alpha))]
    cut = ordered[max(passing) - 1] if passing else math.inf
    return [value >= cut and bool(passing) for value in log_e_values]


def log_e_from_p(p_value: float) -> float:
    """Log of the calibrator 1/(2√p), whose expectation under a p-value's null is at most 1."""
    return -math.log(2.0) - 0.5 * math.log(max(p_value, 1e-300))
