"""What the decisions of one prompt in one phase become for one clause.

Float64 throughout; means with math.fsum. A decision that is NaN is unmeasurable: it is an
exceedance, and is in no mean or extreme.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from contracts.accumulators import Extreme, Position
from contracts.calibration import Calibrated, CalibrationSums
from contracts.generations import MOST_LOG_WEIGHT, Rewarded, token_weights
from contracts.metrics import METRICS
from contracts.model import Clause, ClauseKind, Clip, Comparator, Phase

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Mask = NDArray[np.bool_]

DEFAULT_BINS = 15


def metric_key(clause: Clause) -> str:
    """The name a clause's per-decision values go by: `topk_agreement@10`, else the metric's id."""
    return f"{clause.metric}@{clause.k}" if clause.k is not None else clause.metric


def phases_of(clause: Clause) -> tuple[Phase | None, ...]:
    """The phases a clause is judged in: the one it names, else both; (None,) where none are told apart.

    Requests and whole generations have no phase.
    """
    if not METRICS[clause.metric].phased:
        return (None,)
    return (clause.phase,) if clause.phase is not None else tuple(Phase)


def limits_mean(clause: Clause) -> bool:
    """Whether a clause limits a mean over prompts, rather than an exceedance or every decision."""
    return clause.kind is ClauseKind.HARD and clause.statistic is not None


@dataclass(frozen=True)
class Prompt:
    """One prompt's decisions in one phase; every array is float64 [n].

    `broken` [n] marks the unmeasurable ones; `offset` is the trace index of the first.
    """

    draw: str
    phase: Phase
    offset: int
    values: Mapping[str, Floats]
    broken: Mask
    calibration: Calibrated | None = None
    nll: tuple[Floats, Floats] | None = None

    def positions(self, mask: Mask) -> list[Position]:
        """Where the marked decisions stand."""
        return [self.at(int(i)) for i in mask.nonzero()[0]]

    def at(self, index: int) -> Position:
        """Where decision `index` of this prompt stands."""
        return Position(draw=self.draw, index=self.offset + index, phase=self.phase)


@dataclass(frozen=True)
class Measured:
    """What one prompt adds to every cell of one clause that it falls in.

    Attributes:
        missed: positions of unmeasurable decisions.
        share: (exceeding, decisions).
        mean: of the measurable decisions, or the `per: prompt` aggregate; None without any or
            where it is not finite.
        extreme: of the same values, which may be infinite.
    """

    missed: Sequence[Position] = ()
    share: tuple[int, int] | None = None
    mean: float | None = None
    extreme: Extreme | None = None
    calibration: CalibrationSums | None = None
    nll: tuple[float, float] | None = None
    weights: tuple[int, float, float] | None = None
    reward: Rewarded | None = None
    outcome: tuple[bool, bool] | None = None


def measure(clause: Clause, prompt: Prompt, clip: Clip | None) -> Measured | None:
    """One prompt under one decision or paired clause; None where its metric was not measured."""
    if clause.metric == "ece_gap":
        return _calibration(clause, prompt)
    if clause.metric == "ppl_ratio":
        return _nll(prompt)
    if clause.metric == "ess":
        return _weights(prompt)
    values = _values(clause, prompt, clip)
    if values is None:
        return None
    if clause.per == "prompt" and not limits_mean(clause):
        return _aggregated(clause, prompt, values)
    return _decisions(clause, prompt, values)


def exceeds(clause: Clause, values: Floats) -> Mask:
    """Which of `values` [n] break the clause's limit; NaN always does."""
    import numpy as np

    limit = clause.limit.value
    held = {
        Comparator.LTE: lambda: values <= limit,
        Comparator.GTE: lambda: values >= limit,
        Comparator.ABS_LTE: lambda: np.abs(values) <= limit,
    }[clause.limit.comparator]()
    return ~held


def _values(clause: Clause, prompt: Prompt, clip: Clip | None) -> Floats | None:
    import numpy as np

    if clause.metric == "unmeasurable":
        return prompt.broken.astype(np.float64)
    if clause.metric != "clip_fraction_at_zero":
        values = prompt.values.get(metric_key(clause))
        return None if values is None else np.where(prompt.broken, np.nan, values)
    ratios = prompt.values.get("log_ratio")
    if ratios is None or clip is None:
        return None
    outside = (ratios < math.log1p(-clip.low)) | (ratios > math.log1p(clip.high))
    return np.where(prompt.broken, np.nan, outside.astype(np.float64))


def _decisions(clause: Clause, prompt: Prompt, values: Floats) -> Measured:
    import numpy as np

    broken = np.isnan(values)
    if limits_mean(clause):
        broken = ~np.isfinite(values)  # a mean with an infinite term is no number to bound
    kept = np.flatnonzero(~np.isnan(values))
    seen = values[~broken]
    finite = seen.size > 0 and bool(np.isfinite(seen).all())
    return Measured(
        missed=prompt.positions(broken),
        share=(int(exceeds(clause, values).sum()), int(values.size)),
        mean=math.fsum(seen) / seen.size if finite else None,
        extreme=_extreme(prompt, values, kept) if kept.size else None,
    )


def _extreme(prompt: Prompt, values: Floats, kept: NDArray[np.intp]) -> Extreme:
    low, high = kept[values[kept].argmin()], kept[values[kept].argmax()]
    return Extreme(
        low=float(values[low]),
        low_at=prompt.at(int(low)),
        high=float(values[high]),
        high_at=prompt.at(int(high)),
    )


def _aggregated(clause: Clause, prompt: Prompt, values: Floats) -> Measured:
    """`per: prompt`: one number of all decisions, unmeasurable as soon as one of them is.

    Under abs_lte max and min go by absolute value and keep the sign.
    """
    import numpy as np

    broken = np.isnan(values)
    if broken.any():
        return Measured(missed=prompt.positions(broken), share=(1, 1))
    aggregate = clause.aggregate or ("min" if clause.limit.comparator is Comparator.GTE else "max")
    size = np.abs(values) if clause.limit.comparator is Comparator.ABS_LTE else values
    if aggregate == "mean":
        index = 0
        finite = bool(np.isfinite(values).all())
        value = math.fsum(values) / values.size if finite else float(values[~np.isfinite(values)].sum())
        if math.isnan(value):
            return Measured(missed=prompt.positions(~np.isfinite(values)), share=(1, 1))
    else:
        pick: Callable[[], np.intp] = size.argmax if aggregate == "max" else size.argmin
        index = int(pick())
        value = float(values[index])
    at = prompt.at(index)
    return Measured(
        share=(int(clause.limit.exceeded_by(value)), 1),
        mean=value if math.isfinite(value) else None,
        extreme=Extreme(low=value, low_at=at, high=value, high_at=at),
    )


def _calibration(clause: Clause, prompt: Prompt) -> Measured | None:
    if prompt.calibration is None:
        return None
    kept = Calibrated(*(row[~prompt.broken] for row in prompt.calibration.arrays()))
    sums = calibration_sums(clause, kept) if len(kept.hit_train) else None
    return Measured(missed=prompt.positions(prompt.broken), calibration=sums)


def calibration_sums(clause: Clause, calibrated: Calibrated) -> CalibrationSums:
    """The sums of one prompt in the bins an `ece_gap` clause asks for."""
    bins = clause.bins or DEFAULT_BINS
    return CalibrationSums.of(calibrated, bins, equal_mass=clause.binning == "equal_mass")


def _weights(prompt: Prompt) -> Measured | None:
    """The prompt's importance weights [Q16], and where the largest stands."""
    import numpy as np

    ratios = prompt.values.get("log_ratio")
    if ratios is None:
        return None
    broken = prompt.broken | ~(np.abs(ratios) <= MOST_LOG_WEIGHT)
    kept = np.flatnonzero(~broken)
    if not kept.size:
        return Measured(missed=prompt.positions(broken))
    return Measured(
        missed=prompt.positions(broken),
        weights=token_weights(ratios[kept]),
        extreme=_extreme(prompt, np.exp(np.where(broken, 0.0, ratios)), kept),
    )


def _nll(prompt: Prompt) -> Measured | None:
    import numpy as np

    if prompt.nll is None:
        return None
    train, inference = prompt.nll
    broken = prompt.broken | ~np.isfinite(train) | ~np.isfinite(inference)
    missed = prompt.positions(broken)
    if broken.all():
        return Measured(missed=missed)
    n = int((~broken).sum())
    return Measured(missed=missed, nll=(math.fsum(train[~broken]) / n, math.fsum(inference[~broken]) / n))
