"""The mergeable accumulators evidence is made of; those of paired metrics are in `paired_accumulators`.

Merging is associative, commutative and exact (integers and exact sums, never rounded
ones). The unit of n is the prompt [S5]: every accumulator counts draws, not tokens.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from functools import cached_property
from operator import index
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    model_validator,
)

from contracts.model import Phase

GRID = 2**30  # parts of a share that is a real number, not a count
_RATIONAL = re.compile(r"-?[0-9]{1,4000}(/[1-9][0-9]{0,3999})?")
_MOST = 2**53
MAX_NAMED = 16  # positions of unmeasurable decisions kept by name; the count is exact regardless


class EvidenceMismatch(ValueError):
    """Two pieces of evidence that do not describe the same experiment cannot be merged."""


def _fraction(value: Any) -> Fraction:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is no number to add up")
    if isinstance(value, str) and not _RATIONAL.fullmatch(value):  # "1e999999999" would fill the memory
        raise ValueError(f"not a rational number: {value[:40]!r}")
    return value if isinstance(value, Fraction) else Fraction(value)


def _not_nan(value: float) -> float:
    if math.isnan(value):
        raise ValueError("NaN is no reading: count it as unmeasurable")
    return value + 0.0  # -0.0 becomes 0.0


# NaN and -0.0 would make merging depend on the order.
Reading = Annotated[float, AfterValidator(_not_nan)]
Exact = Annotated[Fraction, PlainValidator(_fraction), PlainSerializer(str, return_type=str)]


class Value(BaseModel):
    """Base of every accumulator: frozen, closed, JSON round-trips exactly."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", defer_build=True)


class Position(Value):
    """Where one decision stands: which draw, which token index, which path computed it."""

    draw: str
    index: Annotated[int, Field(ge=0)]
    phase: Phase | None = None


class Extreme(Value):
    """The largest and smallest value seen and where; ties go to the smallest position."""

    low: Reading
    low_at: Position
    high: Reading
    high_at: Position

    def merge(self, other: Self) -> Self:
        """The extremes of both."""

        def key(position: Position) -> tuple[str, int]:
            return (position.draw, position.index)

        low, low_at = min((self.low, self.low_at), (other.low, other.low_at), key=lambda v: (v[0], key(v[1])))
        high, high_at = min(
            (self.high, self.high_at), (other.high, other.high_at), key=lambda v: (-v[0], key(v[1]))
        )
        return type(self)(low=low, low_at=low_at, high=high, high_at=high_at)


class Moments(Value):
    """Exact first three moments of one number a draw; weights are equal.

    `total`, `squares` and `cubes` are exact rationals of the float64 inputs, so that merging
    is associative to the last bit.
    """

    n: Annotated[int, Field(ge=0)] = 0
    total: Exact = Fraction(0)
    squares: Exact = Fraction(0)
    cubes: Exact = Fraction(0)

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Moments of finite float64 `values`. Raises ValueError on NaN, OverflowError on infinity."""
        exact = [Fraction(v) for v in values]
        total, squares, cubes = (sum((v**power for v in exact), Fraction(0)) for power in (1, 2, 3))
        return cls(n=len(exact), total=total, squares=squares, cubes=cubes)

    def times(self, factor: Fraction) -> Self:
        """The moments `factor` times as many draws of the same kind would have."""
        return type(self)(
            n=round(self.n * factor),
            total=self.total * factor,
            squares=self.squares * factor,
            cubes=self.cubes * factor,
        )

    def merge(self, other: Self) -> Self:
        """The moments of both samples."""
        return type(self)(
            n=self.n + other.n,
            total=self.total + other.total,
            squares=self.squares + other.squares,
            cubes=self.cubes + other.cubes,
        )

    @cached_property
    def mean(self) -> float:
        """The mean, rounded once. Raises ZeroDivisionError when empty."""
        return float(self.total / self.n)

    @cached_property
    def variance(self) -> float:
        """The unbiased sample variance (n − 1), rounded once; 0.0 for fewer than two draws."""
        if self.n < 2:
            return 0.0
        return float((self.squares - self.total * self.total / self.n) / (self.n - 1))

    @cached_property
    def skewness(self) -> float:
        """The sample skewness m₃/m₂^1.5; 0.0 without variance or with fewer than three draws."""
        if self.n < 3:
            return 0.0
        mean, second = self.total / self.n, self.squares / self.n
        m2 = second - mean * mean
        if m2 <= 0:
            return 0.0
        m3 = self.cubes / self.n - 3 * mean * second + 2 * mean**3
        sign = 1.0 if m3 > 0 else -1.0
        return sign * math.sqrt(float(m3 * m3 / m2**3))


def _rows(value: Any, width: int) -> list[tuple[int, ...]]:
    """Sorted rows of whole numbers float64 can tell apart. Raises ValueError for anything else."""
    try:
        rows = sorted(tuple(index(number) for number in row) for row in value)
    except TypeError:
        raise ValueError("rows of whole numbers are needed") from None
    for row in rows:
        if len(row) != width or any(abs(number) > _MOST for number in row):
            raise ValueError(f"not {width} whole numbers of at most {_MOST:,}: {row}")
    return rows


def _counter(value: Any) -> tuple[tuple[int, ...], ...]:
    rows = tuple(_rows(value, 3))
    for exceeding, decisions, prompts in rows:
        if not 0 <= exceeding <= decisions or decisions == 0:
            raise ValueError(f"not a share: {exceeding} of {decisions} decisions")
        if prompts < 1:
            raise ValueError(f"{prompts} prompts with a share")
    return rows


class Draws(Value):
    """The multiset of per-prompt exceedance shares, as sorted (exceeding, decisions, prompts).

    Exact and order-free: every bound we use on it is a function of the multiset.
    `per: prompt` clauses have one decision a draw, so shares are 0 or 1. The mean of a
    metric in [0, 1] is kept as a share too, of `GRID` parts (rounding error <= 2^-31 a prompt).
    """

    shares: Annotated[tuple[tuple[int, int, int], ...], BeforeValidator(_counter)] = ()

    @classmethod
    def of_means(cls, means: Iterable[float]) -> Self:
        """From one mean in [0, 1] a prompt, rounded to `GRID` parts. Raises ValueError outside."""
        return cls.of((round(mean * GRID), GRID) for mean in means)

    @classmethod
    def of(cls, shares: Iterable[tuple[int, int]]) -> Self:
        """From one (exceeding, decisions) pair a prompt. Raises ValueError on an impossible pair."""
        return cls(shares=tuple((k, n, c) for (k, n), c in Counter(shares).items()))

    def merge(self, other: Self) -> Self:
        """The union of both multisets."""
        counts: Counter[tuple[int, int]] = Counter()
        for k, n, c in (*self.shares, *other.shares):
            counts[k, n] += c
        return type(self)(shares=tuple((k, n, c) for (k, n), c in counts.items()))

    @property
    def n(self) -> int:
        """Prompts."""
        return sum(c for _, _, c in self.shares)

    @property
    def decisions(self) -> int:
        """Decisions over all prompts."""
        return sum(n * c for _, n, c in self.shares)

    @property
    def exceeding(self) -> int:
        """Decisions beyond the limit."""
        return sum(k * c for k, _, c in self.shares)

    @property
    def mean(self) -> float:
        """Mean of the per-prompt shares, rounded once. Raises ZeroDivisionError when empty."""
        exceeding: Counter[int] = Counter()  # by denominator: integers are quicker to add
        for k, n, c in self.shares:
            exceeding[n] += k * c
        return float(sum((Fraction(k, n) for n, k in exceeding.items()), Fraction(0)) / self.n)


def _histogram(value: Any) -> tuple[tuple[int, ...], ...]:
    rows = tuple(_rows(value, 2))
    if any(count < 1 for _, count in rows):
        raise ValueError("a bucket that holds nothing")
    return rows


class Sketch(Value):
    """Quantile sketch of non-negative numbers: log-spaced buckets, relative error <= `ERROR`.

    Bucket i > `ZERO` holds values in (γ^(i−1), γ^i] with γ = 1.01; values at or below
    1e-9 share the bucket `ZERO`. Counts are exact, so the value of any rank is within
    `ERROR` of the middle of the bucket the rank falls in, relatively to that middle (absolutely
    within TINY/2 in `ZERO`).
    """

    GAMMA: ClassVar[float] = 1.01
    ZERO: ClassVar[int] = -2083
    TINY: ClassVar[float] = 1e-9
    ERROR: ClassVar[float] = (GAMMA - 1.0) / (GAMMA + 1.0)  # 0.4975 %: half a bucket over its middle

    buckets: Annotated[tuple[tuple[int, int], ...], BeforeValidator(_histogram)] = ()

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """From finite non-negative float64 `values`. Raises ValueError on any other."""
        counts: Counter[int] = Counter()
        for value in values:
            if not 0.0 <= value < math.inf:
                raise ValueError(f"a quantile sketch takes finite non-negative numbers, not {value}")
            exponent = math.ceil(math.log(value) / math.log(cls.GAMMA)) if value > cls.TINY else cls.ZERO
            counts[exponent] += 1
        return cls(buckets=tuple(counts.items()))

    @classmethod
    def edges(cls, bucket: int) -> tuple[float, float]:
        """The half-open range (low, high] a bucket stands for; `ZERO` starts at 0 inclusive."""
        if bucket <= cls.ZERO:
            return 0.0, cls.TINY
        return max(cls.GAMMA ** (bucket - 1), cls.TINY), cls.GAMMA**bucket

    def merge(self, other: Self) -> Self:
        """The sketch of both samples."""
        counts: Counter[int] = Counter()
        for bucket, count in (*self.buckets, *other.buckets):
            counts[bucket] += count
        return type(self)(buckets=tuple(counts.items()))

    @property
    def n(self) -> int:
        """Values seen."""
        return sum(count for _, count in self.buckets)


class Count(Value):
    """Events among trials."""

    events: Annotated[int, Field(ge=0)] = 0
    trials: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.events > self.trials:
            raise ValueError(f"{self.events} events among {self.trials} trials")
        return self

    def merge(self, other: Self) -> Self:
        """Both counts."""
        return type(self)(events=self.events + other.events, trials=self.trials + other.trials)


class Gauge(Value):
    """Readings of which the extremes count."""

    low: Reading
    high: Reading
    readings: Annotated[int, Field(ge=1)] = 1

    def merge(self, other: Self) -> Self:
        """The extremes of both."""
        return type(self)(
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            readings=self.readings + other.readings,
        )


class Unmeasurable(Value):
    """Decisions that could not be measured: how many, and the first few by position."""

    count: Annotated[int, Field(ge=0)] = 0
    first: tuple[Position, ...] = ()

    def merge(self, other: Self) -> Self:
        """Both counts; the positions kept are the smallest ones."""
        named = sorted({*self.first, *other.first}, key=lambda p: (p.draw, p.index))
        return type(self)(count=self.count + other.count, first=tuple(named[:MAX_NAMED]))
