"""Values known only to lie between two ends, and what can be said of a clause then [C1].

Everything a clause asks of decisions is monotone in their values, so what holds at both ends holds
for the values between, and what is violated at both is violated. Between, it is inconclusive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from contracts.evidence import Cell
from contracts.finding import Finding
from contracts.metrics import METRICS
from contracts.model import Clause, Comparator, Limit
from contracts.reductions import Measured, Prompt, limits_mean
from contracts.values import ROUNDING, BadValues

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


def raised(prompt: Prompt, upper: Mapping[str, Sequence[float] | Floats]) -> Prompt | None:
    """The prompt at the upper ends of its values, with those metrics only; None without any.

    Raises BadValues for an upper end of another length, outside the metric's range, missing where the
    value is not, below its lower end, or of a metric with a sign: the absolute value of what lies
    between two ends need not lie between theirs.
    """
    import numpy as np

    if not upper:
        return None
    where = f"draw {prompt.draw!r}, {prompt.phase.value}"
    found = {}
    for key, given in upper.items():
        high = np.asarray(given, dtype=np.float64)
        low = prompt.values.get(key)
        if low is None or low.shape != high.shape:
            raise BadValues(f"{where}: upper ends of {key} without lower ones of the same decisions")
        metric = METRICS[key.partition("@")[0]]
        if metric.low < 0.0:
            raise BadValues(f"{where}: {metric.id} has a sign and is known exactly or not at all")
        wrong = ~(high >= low - ROUNDING) | (high > metric.high + ROUNDING)
        wrong &= ~prompt.broken
        if wrong.any():
            at = int(wrong.argmax())
            raise BadValues(
                f"{where}: {key} is between {low[at]} and {high[at]} at decision {prompt.offset + at}"
            )
        found[key] = np.clip(np.maximum(high, low), metric.low, metric.high)
    return replace(prompt, values=found, calibration=None, nll=None)


def undecided(clause: Clause, low: Measured | None, high: Measured | None) -> bool:
    """Whether one prompt says something else of a clause at its lower ends than at its upper ones.

    False where the upper ends are infinite: they do not narrow.
    """
    if low is None or high is None or high.extreme is None or math.isinf(high.extreme.high):
        return False
    if limits_mean(clause):
        ends = [one.mean for one in (low, high) if one.mean is not None]
        return len({clause.limit.exceeded_by(mean) for mean in ends}) > 1
    return low.share != high.share


def sides(cell: Cell) -> tuple[Cell, Cell]:
    """The cell with the values at their lower ends, and at their upper ones."""
    top = cell.highest
    high = {"draws": top.draws, "moments": top.moments, "extreme": top.extreme}
    return cell.model_copy(update={"upper": None}), cell.model_copy(update={"upper": None} | high)


def between(clause: Clause, cell: Cell, low: Finding, high: Finding) -> Finding:
    """What is known of a clause whose values lie between two ends, from the finding at each.

    It holds where both hold, and is as surely violated as the end that is less so. `observed` is at
    the end nearer to a violation, unless that is at infinity.
    """
    top = cell.highest.extreme
    endless = top is not None and math.isinf(top.high)
    if high.n < low.n:  # a mean with infinite terms was left out; it is infinite
        high = _endless(low)
    worse, better = (low, high) if clause.limit.comparator is Comparator.GTE else (high, low)
    same = low.observed == high.observed
    return replace(
        low,
        observed=low.observed if endless else worse.observed,
        low=min(low.low, high.low),
        high=max(low.high, high.high),
        holds=low.holds and high.holds,
        p_value=max(low.p_value, high.p_value),
        log_e=min(low.log_e, high.log_e),
        certain=low.certain and high.certain,
        needed=low.needed if same else partial(_needed, worse, better, endless),
        sentence=low.sentence if same else _sentence(low, high, endless),
    )


def _endless(low: Finding) -> Finding:
    found = replace(low, observed=math.inf, high=math.inf, sentence="")
    if low.comparator is Comparator.GTE:
        return replace(found, holds=True, p_value=1.0, log_e=0.0, certain=False)
    return replace(found, holds=False, p_value=0.0, log_e=math.inf, certain=True)


def _needed(worse: Finding, better: Finding, endless: bool) -> int | None:
    """Draws that would decide; None where no number of them would, since the ends stay apart."""
    limit = Limit(**{worse.comparator.value: worse.limit})
    ends = [one.observed for one in (worse, better)]
    if endless or len({end is None or limit.exceeded_by(end) for end in ends}) > 1:
        return None
    counts = [worse.needed(), better.needed()]
    known = [count for count in counts if count is not None]
    return max(known) if len(known) == len(counts) else None


def _sentence(low: Finding, high: Finding, endless: bool) -> str:
    least = f"from truncated log-probabilities, at the lower ends {low.sentence}"
    if endless:
        return f"{least}; there are no upper ends"
    return f"{least}; at the upper ends {high.sentence}"
