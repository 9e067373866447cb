"""Verdicts: what the judge says of a clause, and C-convergence over all of them.

Three-valued with two kinds of absence: only HOLDS passes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from contracts.model import ClauseKind, Comparator, Family, Level, Phase, Stage


class Outcome(StrEnum):
    """Outcome of one clause on one slice in one phase; only HOLDS counts towards a pass."""

    HOLDS = "HOLDS"
    VIOLATED = "VIOLATED"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_DATA = "NO_DATA"
    UNMEASURABLE = "UNMEASURABLE"


class Interval(BaseModel):
    """Confidence interval of the judged quantity; each end one-sided at the clause's alpha."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    low: float | None
    high: float | None


class Verdict(BaseModel):
    """The outcome for one clause on one slice in one phase, with its whole reason.

    Attributes:
        observed: for a soft clause the mean exceedance share over prompts, for a hard one
            the worst value or the statistic; None when nothing was observed.
        limit: what `observed` is compared with by `comparator`: for a soft clause the
            exceedance, for a hard one the limit in the metric's unit.
        threshold: for a soft clause the per-decision limit in the metric's unit.
        n: prompts (or requests) the verdict rests on.
        needed: how many prompts would decide at the observed rate, when inconclusive.
        interval: of the quantity `observed` estimates.
        alpha: error rate spent on this verdict.
        method: name of the bound used.
        reason: one plain sentence for people.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    clause: str
    family: Family
    metric: str
    statistic: str
    unit: str
    kind: ClauseKind
    level: Level
    slice: str
    phase: Phase | None
    verdict: Outcome
    observed: float | None
    comparator: Comparator
    limit: float
    threshold: float | None
    n: Annotated[int, Field(ge=0)]
    needed: int | None
    interval: Interval
    alpha: float
    method: str
    reason: str
    evidence_digest: str


class Judgement(BaseModel):
    """All verdicts of one evidence under one contract.

    `converged` is True when every clause holds everywhere, False when one is violated (or
    a hard one met an unmeasurable decision), None when it cannot be said.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    judge_version: str
    contract_digest: str
    evidence_digest: str
    stage: Stage
    prompts: int
    converged: bool | None
    level: Level | None
    reason: str
    verdicts: tuple[Verdict, ...]
