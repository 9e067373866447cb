"""Evidence: mergeable sufficient statistics per (clause, slice, phase).

The only thing the measurement hands to the decision. Merging is associative, commutative
and exact, so sharding, retrying and re-judging are all a merge: any order of any shards
gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError

from contracts.accumulators import (
    Count,
    Draws,
    EvidenceMismatch,
    Extreme,
    Gauge,
    Moments,
    Position,
    Sketch,
    Unmeasurable,
    Value,
)
from contracts.model import Phase, Stage
from contracts.paired_accumulators import Bin, Calibration, Outcomes, Rewards, Weights

__all__ = [
    "Bin",
    "Calibration",
    "Cell",
    "Count",
    "Draws",
    "Ends",
    "Evidence",
    "EvidenceMismatch",
    "Extreme",
    "Gauge",
    "Moments",
    "Outcomes",
    "Position",
    "Provenance",
    "RecordsRef",
    "Rewards",
    "Sketch",
    "Unmeasurable",
    "UnreadableEvidence",
    "Value",
    "Weights",
]

SCHEMA_VERSION: Literal[1] = 1


class UnreadableEvidence(ValueError):
    """Serialised evidence this version cannot read: another format, or no evidence at all."""


class Ends(Value):
    """The accumulators of a decision metric, of one end of what its values lie between [C1]."""

    draws: Draws | None = None
    moments: Moments | None = None
    extreme: Extreme | None = None

    def merge(self, other: Self) -> Self:
        """Both samples' accumulators."""
        return type(self)(**{name: _merged(self, other, name) for name in type(self).model_fields})


def _merged(mine: Value, theirs: Value, name: str) -> Any:
    a, b = getattr(mine, name), getattr(theirs, name)
    return a if b is None else b if a is None else a.merge(b)


class Cell(Value):
    """What was measured for one clause on one slice in one phase.

    Only the accumulators the clause's metric needs are set; `unmeasurable` always counts.
    `nll_gap` is the per-prompt difference of mean negative log-likelihoods, inference minus
    train, of which `ppl_ratio` is the exponential. Where values are known only to lie between two
    ends, `draws`, `moments` and `extreme` are of the lower ones and `upper` is of the upper ones;
    without `upper` both are the same.
    """

    clause: str
    slice: str
    phase: Phase | None = None
    unmeasurable: Unmeasurable = Field(default_factory=Unmeasurable)
    draws: Draws | None = None
    moments: Moments | None = None
    extreme: Extreme | None = None
    calibration: Calibration | None = None
    nll_train: Moments | None = None
    nll_inference: Moments | None = None
    nll_gap: Moments | None = None
    candidate: Sketch | None = None
    baseline: Sketch | None = None
    outcomes: Outcomes | None = None
    rewards: Rewards | None = None
    weights: Weights | None = None
    count: Count | None = None
    gauge: Gauge | None = None
    upper: Ends | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Identity of the cell inside its evidence."""
        return (self.clause, self.slice, self.phase or "")

    def merge(self, other: Self) -> Self:
        """Both cells' accumulators. Raises EvidenceMismatch when the keys differ."""
        if self.key != other.key:
            raise EvidenceMismatch(f"cells of different clauses: {self.key} and {other.key}")
        merged: dict[str, Any] = {"clause": self.clause, "slice": self.slice, "phase": self.phase}
        for name in type(self).model_fields.keys() - merged.keys() - {"upper"}:
            merged[name] = _merged(self, other, name)
        if self.upper is not None or other.upper is not None:
            merged["upper"] = self.highest.merge(other.highest)
        return type(self)(**merged)

    @property
    def highest(self) -> Ends:
        """The upper ends; of exact values, the values themselves."""
        return self.upper or Ends(draws=self.draws, moments=self.moments, extreme=self.extreme)


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

    schema_version: Literal[1] = SCHEMA_VERSION
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
            raise EvidenceMismatch(f"shard counted twice: {min(both)}")
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

    @classmethod
    def read(cls, serialised: bytes | str) -> Self:
        """Evidence from its serialised form. Raises UnreadableEvidence, and never guesses.

        A form of another schema version is refused, whatever else it holds.
        """
        try:
            plain = json.loads(serialised)
        except ValueError as error:
            raise UnreadableEvidence(f"evidence is not JSON: {error}") from None
        version = plain.get("schema_version") if isinstance(plain, dict) else None
        if type(version) is not int or version != SCHEMA_VERSION:
            raise UnreadableEvidence(
                f"evidence has schema_version {version!r}, and this version reads {SCHEMA_VERSION} only; "
                "measure again, or read it with the version that wrote it"
            )
        try:
            return cls.model_validate_json(serialised)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise UnreadableEvidence(f"evidence is malformed at {where}: {first['msg']}") from None

    def canonical(self) -> bytes:
        """The serialised form: UTF-8 JSON, sorted keys, no spaces or nulls, infinities as strings."""
        plain = json.loads(self.model_dump_json(exclude_none=True))
        return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    @property
    def digest(self) -> str:
        """`sha256:` and the hex digest of the canonical form."""
        return "sha256:" + hashlib.sha256(self.canonical()).hexdigest()
