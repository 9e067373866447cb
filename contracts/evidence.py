"""Evidence: mergeable sufficient statistics per (clause, slice, phase).

The only thing the measurement hands to the decision. Merging is associative, commutative
and exact (integers and exact sums, never rounded ones), so sharding, retrying and
re-judging are all a merge: any order of any shards gives the same bytes.

The unit of n is the prompt [S5]: every accumulator counts draws, not tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator

from contracts.model import Phase, Stage

SCHEMA_VERSION = 1
MAX_NAMED = 16  # positions of unmeasurable decisions kept by name; the count is exact regardless


class EvidenceMismatch(ValueError):
    """Two pieces of evidence that do not describe the same experiment cannot be merged."""


def _fraction(value: Any) -> Fraction:
    return value if isinstance(value, Fraction) else Fraction(value)


Exact = Annotated[Fraction, PlainValidator(_fraction), PlainSerializer(str, return_type=str)]


class Value(BaseModel):
    """Base of every accumulator: frozen, closed, JSON round-trips exactly."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Position(Value):
    """Where one decision stands: which draw, which token index, which path computed it."""

    draw: str
    index: Annotated[int, Field(ge=0)]
    phase: Phase | None = None


class Extreme(Value):
    """The largest and smallest value seen and where; ties go to the smallest position."""

    low: float
    low_at: Position
    high: float
    high_at: Position

    def merge(self, other: Self) -> Self:
        """The extremes of both."""

        def key(position: Position) -> tuple[str, int]:
            return (position.draw, position.index)

        low, low_at = min(
            (self.low, self.low_at), (other.low, other.low_at), key=lambda v: (v[0], key(v[1]))
        )
        high, high_at = min(
            (self.high, self.high_at), (other.high, other.high_at), key=lambda v: (-v[0], key(v[1]))
        )
        return type(self)(low=low, low_at=low_at, high=high, high_at=high_at)


class Moments(Value):
    """Exact first and second moments of one number a draw; weights are equal.

    `total` and `squares` are exact rationals of the float64 inputs, so that merging is
    associative to the last bit.
    """

    n: Annotated[int, Field(ge=0)] = 0
    total: Exact = Fraction(0)
    squares: Exact = Fraction(0)

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Moments of finite float64 `values`. Raises ValueError on NaN or infinity."""
        exact = [Fraction(v) for v in values]
        return cls(n=len(exact), total=sum(exact, Fraction(0)), squares=sum((v * v for v in exact), Fraction(0)))

    def merge(self, other: Self) -> Self:
        """The moments of both samples."""
        return type(self)(n=self.n + other.n, total=self.total + other.total, squares=self.squares + other.squares)

    @property
    def mean(self) -> float:
        """The mean, rounded once. Raises ZeroDivisionError when empty."""
        return float(self.total / self.n)

    @property
    def variance(self) -> float:
        """The unbiased sample variance (n − 1), rounded once; 0.0 for fewer than two draws."""
        if self.n < 2:
            return 0.0
        return float((self.squares - self.total * self.total / self.n) / (self.n - 1))


def _counter(value: Any) -> tuple[tuple[int, int, int], ...]:
    return tuple(sorted((int(a), int(b), int(c)) for a, b, c in value))


class Draws(Value):
    """The multiset of per-prompt exceedance shares, as sorted (exceeding, decisions, prompts).

    Exact and order-free: every bound we use on it is a function of the multiset.
    `per: prompt` clauses have one decision a draw, so shares are 0 or 1.
    """

    shares: Annotated[tuple[tuple[int, int, int], ...], PlainValidator(_counter)] = ()

    @classmethod
    def of(cls, shares: Iterable[tuple[int, int]]) -> Self:
        """From one (exceeding, decisions) pair a prompt. Raises ValueError on an impossible pair."""
        counts = Counter(shares)
        for exceeding, decisions in counts:
            if not 0 <= exceeding <= decisions or decisions == 0:
                raise ValueError(f"not a share: {exceeding} of {decisions} decisions")
        return cls(shares=tuple((k, n, c) for (k, n), c in counts.items()))

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
        return float(sum((Fraction(k, n) * c for k, n, c in self.shares), Fraction(0)) / self.n)


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
    """Equal-width confidence bins of both kernels over the same decisions [Q11]."""

    train: tuple[Bin, ...]
    inference: tuple[Bin, ...]
    prompts: int = 0

    def merge(self, other: Self) -> Self:
        """Both samples' bins. Raises EvidenceMismatch when the bin counts differ."""
        if len(self.train) != len(other.train):
            raise EvidenceMismatch("calibration evidence with different numbers of bins")
        return type(self)(
            train=tuple(a.merge(b) for a, b in zip(self.train, other.train, strict=True)),
            inference=tuple(a.merge(b) for a, b in zip(self.inference, other.inference, strict=True)),
            prompts=self.prompts + other.prompts,
        )


def _histogram(value: Any) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((int(a), int(b)) for a, b in value))


class Sketch(Value):
    """Quantile sketch of non-negative numbers: log-spaced buckets, relative error <= 0.5 %.

    Bucket i > `ZERO` holds values in (γ^(i−1), γ^i] with γ = 1.01; values at or below
    1e-9 share the bucket `ZERO`. Counts are exact, so rank statistics are exact up to
    the bucket's width.
    """

    buckets: Annotated[tuple[tuple[int, int], ...], PlainValidator(_histogram)] = ()

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

    def merge(self, other: Self) -> Self:
        """Both counts."""
        return type(self)(events=self.events + other.events, trials=self.trials + other.trials)


class Gauge(Value):
    """Readings of which the extremes count."""

    low: float
    high: float
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


class Cell(Value):
    """What was measured for one clause on one slice in one phase.

    Only the accumulators the clause's metric needs are set; `unmeasurable` always counts.
    """

    clause: str
    slice: str
    phase: Phase | None = None
    unmeasurable: Unmeasurable = Unmeasurable()
    draws: Draws | None = None
    moments: Moments | None = None
    extreme: Extreme | None = None
    calibration: Calibration | None = None
    nll_train: Moments | None = None
    nll_inference: Moments | None = None
    candidate: Sketch | None = None
    baseline: Sketch | None = None
    count: Count | None = None
    gauge: Gauge | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Identity of the cell inside its evidence."""
        return (self.clause, self.slice, self.phase or "")

    def merge(self, other: Self) -> Self:
        """Both cells' accumulators. Raises EvidenceMismatch when the keys differ."""
        if self.key != other.key:
            raise EvidenceMismatch(f"cells of different clauses: {self.key} and {other.key}")
        merged: dict[str, Any] = {"clause": self.clause, "slice": self.slice, "phase": self.phase}
        for name in type(self).model_fields.keys() - merged.keys():
            mine, theirs = getattr(self, name), getattr(other, name)
            merged[name] = mine if theirs is None else theirs if mine is None else mine.merge(theirs)
        return type(self)(**merged)


class Provenance(Value):
    """The content digests of everything that produced the evidence; change one, and it is void."""

    contract: str
    checkpoint: str
    train_build: str
    inference_build: str
    suite: str
    baseline_build: str | None = None
    stage: Stage
    attempt: str = ""


class RecordsRef(Value):
    """A pointer to per-decision records (Parquet)."""

    uri: str
    digest: str
    rows: Annotated[int, Field(ge=0)]


class Evidence(Value):
    """Everything measured in one attempt of one stage, mergeable over disjoint shards."""

    schema_version: int = SCHEMA_VERSION
    provenance: Provenance
    shards: tuple[str, ...]
    prompts: Annotated[int, Field(ge=0)]
    cells: tuple[Cell, ...] = ()
    records: tuple[RecordsRef, ...] = ()

    def cell(self, clause: str, slice: str, phase: Phase | None) -> Cell | None:
        """The cell, or None when nothing was measured there."""
        key = (clause, slice, phase or "")
        return next((cell for cell in self.cells if cell.key == key), None)

    def merge(self, other: Self) -> Self:
        """The evidence of both shards' prompts.

        Raises EvidenceMismatch when provenance differs or a shard is in both: adding the
        same draws twice would make intervals too narrow.
        """
        if self.provenance != other.provenance:
            raise EvidenceMismatch("evidence of different experiments: their provenance differs")
        if both := set(self.shards) & set(other.shards):
            raise EvidenceMismatch(f"shard counted twice: {sorted(both)[0]}")
        cells = {cell.key: cell for cell in self.cells}
        for cell in other.cells:
            cells[cell.key] = cells[cell.key].merge(cell) if cell.key in cells else cell
        return type(self)(
            provenance=self.provenance,
            shards=tuple(sorted((*self.shards, *other.shards))),
            prompts=self.prompts + other.prompts,
            cells=tuple(cells[key] for key in sorted(cells)),
            records=tuple(sorted((*self.records, *other.records), key=lambda r: r.uri)),
        )

    def canonical(self) -> bytes:
        """The serialised form: UTF-8 JSON, sorted keys, no spaces."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()

    @property
    def digest(self) -> str:
        """`sha256:` and the hex digest of the canonical form."""
        return "sha256:" + hashlib.sha256(self.canonical()).hexdigest()
