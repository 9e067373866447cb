"""A promotion as a value, the events that can happen to it and the effects they ask for.

:mod:`contracts.lifecycle` holds the one function that connects them. Times are aware UTC
datetimes and always the database's.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from contracts.model import Frozen, Level, LevelActions, Stage, StagePlans


class Status(StrEnum):
    """Where a promotion stands inside (or after) its stage."""

    MEASURING = "measuring"
    AWAITING_APPROVAL = "awaiting_approval"
    FROZEN = "frozen"
    PROMOTED = "promoted"
    FALLEN_BACK = "fallen_back"
    ABORTED = "aborted"
    SUPERSEDED = "superseded"
    EXPIRED = "expired"


TERMINAL = frozenset({Status.ABORTED, Status.SUPERSEDED, Status.EXPIRED})

Actor = Annotated[str, Field(min_length=1)]


class FrozenBy(StrEnum):
    """Why a promotion is FROZEN; it decides what may happen next (docs/lifecycle.md).

    Members:
        NO_DATA: nothing was there to judge; the next fresh judgement thaws it by itself.
        MEASUREMENT: the measurement ended in ERROR, TIMED_OUT or CANCELLED.
        INCONCLUSIVE: everything there is to measure was judged, and it decides nothing; the
            undecided verdict may be overridden.
        TIMER: the stage's deadline passed; an undecided verdict may still be overridden.
        VIOLATION: a clause is violated and the escalation froze.
        FALLBACK_OWED: a violation asked for a fallback while the candidate serves and no
            known-good build can take over; it falls back as soon as one can.
        PERSON: somebody froze it.
    """

    NO_DATA = "no_data"
    MEASUREMENT = "measurement"
    INCONCLUSIVE = "inconclusive"
    TIMER = "timer"
    VIOLATION = "violation"
    FALLBACK_OWED = "fallback_owed"
    PERSON = "person"


class Bound(Frozen):
    """Content digests a promotion is bound to; change one and the evidence is void."""

    contract: str
    checkpoint: str
    train_build: str
    inference_build: str
    suite: str
    known_good_build: str | None = None


class Passed(Frozen):
    """Proof that a stage (a canary step) was passed: which attempt, on which evidence."""

    stage: Stage
    step: int
    attempt: int
    evidence_digest: str
    overridden_by: str | None = None


class Promotion(Frozen):
    """The whole state; `version` grows by one with every transition (compare-and-swap).

    Attributes:
        step: index into the canary's traffic steps; 0 in the other stages.
        attempt: grows with every measurement started; evidence of another attempt is stale.
        pending_approval: the stage entered once approved, while AWAITING_APPROVAL.
        undecided: evidence digest of this attempt's last judgement when that was neither
            converged nor violated; the only thing an override can consume.
        frozen_by: why it is FROZEN; None in every other status.
        fallback_attempt: the last attempt in which a violation asked for a fallback; from then
            on only evidence that converges in a later attempt leads on, no override does.
        guarded: slices that guard routing keeps off the candidate.
        known_good_healthy: whether the known-good build may be fallen back to right now.
    """

    id: str
    target: str
    bound: Bound
    plans: StagePlans
    escalation: dict[Level, LevelActions]
    stage: Stage = Stage.OFFLINE_CI
    step: Annotated[int, Field(ge=0)] = 0
    status: Status = Status.MEASURING
    attempt: Annotated[int, Field(ge=1)] = 1
    version: Annotated[int, Field(ge=1)] = 1
    started_at: datetime
    stage_started_at: datetime
    deadline_at: datetime | None = None
    pending_approval: Stage | None = None
    approval_expires_at: datetime | None = None
    passed: tuple[Passed, ...] = ()
    undecided: str | None = None
    frozen_by: FrozenBy | None = None
    fallback_attempt: int | None = None
    guarded: tuple[str, ...] = ()
    known_good_healthy: bool = True
    reason: str = ""


class Start(Frozen):
    """The first event of every promotion: what it binds, so that replay begins from nothing."""

    type: Literal["start"] = "start"
    id: str
    target: str
    bound: Bound
    plans: StagePlans
    escalation: dict[Level, LevelActions]
    known_good_healthy: bool = True


class Judged(Frozen):
    """A judgement of evidence arrived. `converged`, `level` and `violated_slices` are the judge's.

    `complete` says that this attempt measures nothing more, as when a suite was evaluated in
    full: what does not pass then will not pass by waiting.

    Raises:
        ValidationError: a violation without its level, or a pass that names violated slices.
    """

    type: Literal["judged"] = "judged"
    bound: Bound
    stage: Stage
    step: int
    attempt: int
    prompts: Annotated[int, Field(ge=0)]
    converged: bool | None
    level: Level | None
    violated_slices: tuple[str, ...] = ()
    evidence_digest: Annotated[str, Field(min_length=1)]
    complete: bool = False
    reason: str

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.converged is False and self.level is None:
            raise ValueError("a violated judgement has the level of its worst violated clause")
        if self.converged and (self.level is not None or self.violated_slices):
            raise ValueError("a converged judgement has no level and no violated slices")
        return self


class MeasurementFailed(Frozen):
    """A measurement ended without usable evidence; never a pass."""

    type: Literal["measurement_failed"] = "measurement_failed"
    stage: Stage
    step: int
    attempt: int
    outcome: Literal["ERROR", "CANCELLED", "TIMED_OUT", "NO_DATA"]
    reason: str


class Tick(Frozen):
    """Time passed; carries nothing: `now` is an argument of step()."""

    type: Literal["tick"] = "tick"


class Approve(Frozen):
    """A person (or a policy) lets the pending stage begin."""

    type: Literal["approve"] = "approve"
    actor: Actor


class Freeze(Frozen):
    """Stop where it stands; what serves keeps serving."""

    type: Literal["freeze"] = "freeze"
    actor: Actor
    reason: str


class Resume(Frozen):
    """Leave FROZEN or FALLEN_BACK: measure afresh under a new attempt.

    A frozen promotion measures its stage again. A fallen-back one goes back to shadow (or
    stays in offline CI): only fresh converged evidence brings users to the candidate again.
    """

    type: Literal["resume"] = "resume"
    actor: Actor
    reason: str


class Retry(Frozen):
    """Measure the present stage afresh under a new attempt; no evidence is carried over."""

    type: Literal["retry"] = "retry"
    actor: Actor
    reason: str = ""


class Override(Frozen):
    """Accept exactly one undecided verdict, named by its evidence digest; never a violation."""

    type: Literal["override"] = "override"
    actor: Actor
    evidence_digest: str
    reason: str


class Abort(Frozen):
    """End the promotion and restore the known-good build."""

    type: Literal["abort"] = "abort"
    actor: Actor
    reason: str = ""


class Supersede(Frozen):
    """A newer promotion for the same target takes the lane."""

    type: Literal["supersede"] = "supersede"
    by: str


class KnownGoodHealth(Frozen):
    """Whether the known-good build may be fallen back to changed."""

    type: Literal["known_good_health"] = "known_good_health"
    healthy: bool


Event = Annotated[
    Start | Judged | MeasurementFailed | Tick | Approve | Freeze | Resume | Retry | Override | Abort | Supersede | KnownGoodHealth,
    Field(discriminator="type"),
]  # fmt: skip


class Measure(Frozen):
    """Start measuring this stage, step and attempt."""

    type: Literal["measure"] = "measure"
    stage: Stage
    step: int
    attempt: int


class CancelMeasurement(Frozen):
    """Whatever still measures for this attempt is to stop; its results are stale."""

    type: Literal["cancel_measurement"] = "cancel_measurement"
    attempt: int


class Reroute(Frozen):
    """The routing table must be derived anew from the promotion, in the same transaction."""

    type: Literal["reroute"] = "reroute"


class Notify(Frozen):
    """Tell subscribers; goes through the outbox in the same transaction.

    Attributes:
        event: what happened, one of the names in docs/lifecycle.md (`promotion.frozen` ...).
    """

    type: Literal["notify"] = "notify"
    event: str
    reason: str


class Page(Frozen):
    """Call a human."""

    type: Literal["page"] = "page"
    reason: str


Effect = Annotated[Measure | CancelMeasurement | Reroute | Notify | Page, Field(discriminator="type")]


class Transition(Frozen):
    """One step taken: both states, the event, why, and what must happen with it.

    Attributes:
        before: None for the start, and only there.
        effects: empty when nothing changed; else exactly one Notify is among them.
    """

    before: Promotion | None
    after: Promotion
    event: Event
    reason: str
    effects: tuple[Effect, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether anything at all happened (a stale result or an idle tick changes nothing)."""
        return self.before != self.after
