"""Accumulators of the paired metrics: calibration, graded outcomes, rewards, importance weights.

The same laws as in :mod:`contracts.accumulators`: merging is associative, commutative, exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from typing import Annotated, Literal, Self

from pydantic import Field

from contracts.accumulators import EvidenceMismatch, Exact, Moments, Value

CALIBRATION_UNIT = 2**20  # fixed point of the calibration cross-moments


class Bin(Value):
    """One calibration bin of one side: decisions, confidence summed, hits counted."""

    count: int = 0
    confidence: Exact = Fraction(0)
    hits: int = 0

    def merge(self, other: Self) -> Self:
        """Both bins' decisions."""
        return type(self)(
            count=self.count + other.count,
            confidence=self.confidence + other.confidence,
            hits=self.hits + other.hits,
        )


class Calibration(Value):
    """Equal-width confidence bins of both kernels over the same decisions [Q11].

    `cross` is what an interval over *prompts* needs: the upper triangle, row by row, of
    Σ v vᵀ over prompts, v = (decisions, confidence − hits of each train bin, the same of
    each inference bin) in units of 1/CALIBRATION_UNIT, rounded to integers. Length
    D(D + 1)/2 with D = 2·bins + 1.
    """

    train: tuple[Bin, ...]
    inference: tuple[Bin, ...]
    prompts: int = 0
    cross: tuple[Exact, ...] = ()

    @property
    def decisions(self) -> int:
        """Decisions in the bins, the same on both sides."""
        return sum(b.count for b in self.train)

    def merge(self, other: Self) -> Self:
        """Both samples' bins. Raises EvidenceMismatch when the bin counts differ."""
        if len(self.train) != len(other.train):
            raise EvidenceMismatch("calibration evidence with different numbers of bins")
        return type(self)(
            train=tuple(a.merge(b) for a, b in zip(self.train, other.train, strict=True)),
            inference=tuple(a.merge(b) for a, b in zip(self.inference, other.inference, strict=True)),
            prompts=self.prompts + other.prompts,
            cross=tuple(a + b for a, b in zip(self.cross, other.cross, strict=True)),
        )


class Outcomes(Value):
    """The 2×2 table of graded outcomes of tasks under both kernels [Q13]."""

    both: Annotated[int, Field(ge=0)] = 0
    train_only: Annotated[int, Field(ge=0)] = 0
    inference_only: Annotated[int, Field(ge=0)] = 0
    neither: Annotated[int, Field(ge=0)] = 0

    @classmethod
    def of(cls, outcomes: Iterable[tuple[bool, bool]]) -> Self:
        """From one (train, inference) pair a task, true where it was passed."""
        counts = Counter(outcomes)
        return cls(
            both=counts[True, True],
            train_only=counts[True, False],
            inference_only=counts[False, True],
            neither=counts[False, False],
        )

    def merge(self, other: Self) -> Self:
        """Both tables."""
        return type(self)(
            both=self.both + other.both,
            train_only=self.train_only + other.train_only,
            inference_only=self.inference_only + other.inference_only,
            neither=self.neither + other.neither,
        )

    @property
    def n(self) -> int:
        """Tasks."""
        return self.both + self.train_only + self.inference_only + self.neither

    @property
    def flips(self) -> int:
        """Tasks whose outcome differs, in either direction."""
        return self.train_only + self.inference_only


class Rewards(Value):
    """Rewards of the prompts under both kernels, and their differences train − inference [Q12].

    `paired`: each kernel generated and was graded. `weighted`: inference generated, and with the
    sequence weight w = π_train(y|x)/π_inf(y|x) and c the middle of the reward's range the train
    side is c + w·(r − c), whose mean over rollouts is E_train r.
    """

    form: Literal["paired", "weighted"]
    train: Moments = Field(default_factory=Moments)
    inference: Moments = Field(default_factory=Moments)
    gap: Moments = Field(default_factory=Moments)

    def merge(self, other: Self) -> Self:
        """Both samples. Raises EvidenceMismatch when one is paired and the other weighted."""
        if self.form != other.form:
            raise EvidenceMismatch("paired and importance-weighted rewards are not one sample")
        return type(self)(
            form=self.form,
            train=self.train.merge(other.train),
            inference=self.inference.merge(other.inference),
            gap=self.gap.merge(other.gap),
        )


class Weights(Value):
    """Importance weights w of the decisions, by prompt, for their effective sample size [Q16].

    `sums` are those of v = (decisions, Σ w, Σ w²) over prompts, `cross` the upper triangle, row by
    row, of Σ v vᵀ over prompts: what an interval with prompts as draws needs. Exact rationals of
    float64 sums within a prompt.
    """

    prompts: Annotated[int, Field(ge=0)] = 0
    sums: tuple[Exact, Exact, Exact] = (Fraction(0), Fraction(0), Fraction(0))
    cross: tuple[Exact, Exact, Exact, Exact, Exact, Exact] = (Fraction(0),) * 6

    @classmethod
    def of(cls, rows: Iterable[tuple[int, float, float]]) -> Self:
        """From one (decisions, Σ w, Σ w²) a prompt. Raises ValueError or OverflowError if not finite."""
        exact = [tuple(map(Fraction, row)) for row in rows]
        zero = Fraction(0)
        sums = tuple(sum((v[i] for v in exact), zero) for i in range(3))
        cross = tuple(sum((v[i] * v[j] for v in exact), zero) for i in range(3) for j in range(i, 3))
        return cls.model_validate({"prompts": len(exact), "sums": sums, "cross": cross})

    def merge(self, other: Self) -> Self:
        """The weights of both samples."""
        return type(self).model_validate(
            {
                "prompts": self.prompts + other.prompts,
                "sums": tuple(a + b for a, b in zip(self.sums, other.sums, strict=True)),
                "cross": tuple(a + b for a, b in zip(self.cross, other.cross, strict=True)),
            }
        )
