"""Calibration sums of one or more prompts, for the gap of expected calibration errors [Q11].

Bins are equal-width and closed on the right: bin i of M holds confidences in (i/M, (i+1)/M]. For
equal-mass ones `FINE` bins are kept, equally wide in 1 − √(1 − c), so finest where confidence piles
up; `intervals.calibration_gap` joins them once all are seen.
Within a prompt sums are float64 math.fsum; over prompts they are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from contracts.paired_accumulators import CALIBRATION_UNIT, Bin, Calibration

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


FINE = 64


class Calibrated(NamedTuple):
    """Per decision [n]: confidence (largest probability, in [0, 1]) and hit (0 or 1) of both kernels.

    A hit is a most likely token that is the realised one.
    """

    confidence_train: Sequence[float] | Floats
    hit_train: Sequence[float] | Floats
    confidence_inference: Sequence[float] | Floats
    hit_inference: Sequence[float] | Floats

    def arrays(self) -> tuple[Floats, Floats, Floats, Floats]:
        """The four as float64 arrays."""
        import numpy as np

        a, b, c, d = (np.asarray(v, dtype=np.float64) for v in self)
        return a, b, c, d


@dataclass(frozen=True)
class CalibrationSums:
    """A `Calibration` under construction; bins of both sides side by side, train first."""

    counts: tuple[int, ...]
    confidence: tuple[Fraction, ...]
    hits: tuple[int, ...]
    prompts: int
    cross: tuple[int, ...]

    @classmethod
    def of(cls, calibrated: Calibrated, bins: int, *, equal_mass: bool = False) -> CalibrationSums:
        """The sums of one prompt's measurable decisions, in `bins` bins or the fine ones."""
        confidence_train, hit_train, confidence_inference, hit_inference = calibrated.arrays()
        train = _side(confidence_train, hit_train, bins, equal_mass)
        inference = _side(confidence_inference, hit_inference, bins, equal_mass)
        counts, hits = train[0] + inference[0], train[2] + inference[2]
        confidence = train[1] + inference[1]
        gaps = [c - h for c, h in zip(confidence, hits, strict=True)]
        v = [len(confidence_train) * CALIBRATION_UNIT, *(round(g * CALIBRATION_UNIT) for g in gaps)]
        cross = tuple(a * b for i, a in enumerate(v) for b in v[i:])
        return cls(tuple(counts), tuple(map(Fraction, confidence)), tuple(hits), 1, cross)

    def plus(self, other: CalibrationSums | None) -> CalibrationSums:
        """The sums of both."""
        if other is None:
            return self
        return CalibrationSums(
            tuple(a + b for a, b in zip(self.counts, other.counts, strict=True)),
            tuple(a + b for a, b in zip(self.confidence, other.confidence, strict=True)),
            tuple(a + b for a, b in zip(self.hits, other.hits, strict=True)),
            self.prompts + other.prompts,
            tuple(a + b for a, b in zip(self.cross, other.cross, strict=True)),
        )

    def frozen(self) -> Calibration:
        """As evidence."""
        bins = [
            Bin(count=n, confidence=c, hits=h)
            for n, c, h in zip(self.counts, self.confidence, self.hits, strict=True)
        ]
        half = len(bins) // 2
        return Calibration(
            train=tuple(bins[:half]),
            inference=tuple(bins[half:]),
            prompts=self.prompts,
            cross=tuple(map(Fraction, self.cross)),
        )


def _side(
    confidence: Floats, hit: Floats, bins: int, equal_mass: bool
) -> tuple[list[int], list[float], list[int]]:
    import numpy as np

    place = confidence
    if equal_mass:
        bins, place = FINE, 1.0 - np.sqrt(np.maximum(1.0 - confidence, 0.0))
    index = np.clip(np.ceil(place * bins).astype(int) - 1, 0, bins - 1)
    members = [index == b for b in range(bins)]
    return (
        [int(m.sum()) for m in members],
        [math.fsum(confidence[m]) for m in members],
        [int(hit[m].sum()) for m in members],
    )
