"""Promotions: started, read, and told what people decide."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fastapi import APIRouter, Response
from sqlalchemy.orm import Session

from app.api.dependencies import Actor, Before, Limit, Reading, Writing, problems
from app.api.schemas import (
    ComparisonOut,
    EvidenceOut,
    JobOut,
    JudgementOut,
    MaybeReasonIn,
    OverrideIn,
    Page,
    PromotionIn,
    PromotionOut,
    ReasonIn,
    TransitionOut,
    WaitingOut,
)
from app.db import repositories
from app.db.models import PromotionRow, TransitionRow
from app.db.pages import contract_names
from app.services import evidence, promotions, traffic
from app.services.binding import Order
from contracts.evidence import Evidence
from contracts.promotion import TERMINAL, Abort, Approve, Event, Freeze, Override, Resume, Retry
from contracts.verdicts import Judgement

router = APIRouter(prefix="/promotions", tags=["promotions"])
ACTING = problems(404, 409)
_OWN = (
    "deployment",
    "checkpoint",
    "train_build",
    "inference_build",
    "known_good_build",
    "suite",
    "updated_at",
)


def _shown(session: Session, rows: Sequence[PromotionRow]) -> list[PromotionOut]:
    contracts = contract_names(session, [row.contract for row in rows])
    return [
        PromotionOut(
            **{name: value for name, value in dict(row.state).items() if name in PromotionOut.model_fields},
            **{name: getattr(row, name) for name in _OWN},
            contract=contracts[row.contract],
            comparison=_compared(row),
            active=row.state.status not in TERMINAL,
            started_by=row.created_by,
        )
        for row in rows
    ]


def _compared(row: PromotionRow) -> ComparisonOut | None:
    found = row.comparison
    if found is None:
        return None
    return ComparisonOut(against=found.old, loosened=found.loosened, changes=found.changes)


@router.post("", status_code=201, responses=problems(404, 409, 413))
def start(body: PromotionIn, session: Writing, actor: Actor, response: Response) -> PromotionOut:
    """Start a promotion in offline CI, pinned to what the names stand for now."""
    order = Order(**body.model_dump(exclude={"on_active"}))
    row = promotions.start(session, order, on_active=body.on_active, actor=actor)
    response.headers["location"] = f"/v1/promotions/{row.id}"
    return _shown(session, [row])[0]


@router.get("")
def list_promotions(
    session: Reading,
    deployment: str | None = None,
    active: bool = False,
    before: Before = None,
    limit: Limit = 50,
) -> Page[PromotionOut]:
    """Promotions, newest first."""
    rows = repositories.promotions(
        session, deployment=deployment, active=active, before=before, limit=limit + 1
    )
    return Page(items=_shown(session, rows[:limit]), next=rows[limit - 1].seq if len(rows) > limit else None)


@router.get("/{promotion_id}", responses=problems(404))
def get_promotion(session: Reading, promotion_id: str) -> PromotionOut:
    """One promotion."""
    return _shown(session, [promotions.get(session, promotion_id)])[0]


@router.get("/{promotion_id}/jobs", responses=problems(404))
def list_jobs(session: Reading, promotion_id: str) -> Page[JobOut]:
    """Its evaluations, oldest first, with how far the present one is."""
    promotions.get(session, promotion_id)
    return Page(items=[JobOut.model_validate(row) for row in repositories.jobs(session, promotion_id)])


@router.get("/{promotion_id}/waiting", responses=problems(404))
def get_waiting(session: Reading, promotion_id: str) -> WaitingOut:
    """Served requests that wait for an evaluation."""
    return WaitingOut.model_validate(traffic.waiting(session, promotions.get(session, promotion_id)))


@router.get("/{promotion_id}/evidence", responses=problems(404))
def list_evidence(session: Reading, promotion_id: str) -> Page[EvidenceOut]:
    """Its evidence, oldest first: shards, merges, stale ones too."""
    return Page(items=[EvidenceOut.model_validate(row) for row in evidence.of(session, promotion_id)])


@router.get("/{promotion_id}/evidence/{digest}", response_model=Evidence, responses=problems(404))
def get_evidence(session: Reading, promotion_id: str, digest: str) -> Response:
    """One piece of evidence in its canonical form: its SHA-256 is the digest."""
    row = evidence.one(session, promotion_id, digest)
    return Response(row.json, media_type="application/json")


@router.get("/{promotion_id}/verdicts", responses=problems(404))
def list_verdicts(session: Reading, promotion_id: str) -> Page[JudgementOut]:
    """Its judgements with their verdicts, oldest first."""
    rows = evidence.judgement_rows(session, promotion_id)
    items = [
        JudgementOut(
            **dict(Judgement.model_validate_json(row.json)), step=row.step, attempt=row.attempt, at=row.at
        )
        for row in rows
    ]
    return Page(items=items)


@router.get("/{promotion_id}/transitions", responses=problems(404))
def list_transitions(session: Reading, promotion_id: str) -> Page[TransitionOut]:
    """Its history, oldest first; replaying the events gives the states."""
    return Page(items=[_transition(row) for row in promotions.history(session, promotion_id)])


def _transition(row: TransitionRow) -> TransitionOut:
    return TransitionOut(
        version=row.version,
        event_type=row.event_type,
        event=json.loads(row.event),
        actor=row.actor,
        reason=row.reason,
        state=row.state,
        at=row.at,
    )


def _act(session: Writing, promotion_id: str, event: Event) -> PromotionOut:
    promotions.apply(session, promotion_id, event)
    return _shown(session, [promotions.get(session, promotion_id)])[0]


@router.post("/{promotion_id}/approve", responses=ACTING)
def approve(session: Writing, actor: Actor, promotion_id: str) -> PromotionOut:
    """Let the stage that awaits approval begin."""
    return _act(session, promotion_id, Approve(actor=actor))


@router.post("/{promotion_id}/freeze", responses=ACTING)
def freeze(body: ReasonIn, session: Writing, actor: Actor, promotion_id: str) -> PromotionOut:
    """Stop where it stands; what serves keeps serving."""
    return _act(session, promotion_id, Freeze(actor=actor, reason=body.reason))


@router.post("/{promotion_id}/resume", responses=ACTING)
def resume(body: ReasonIn, session: Writing, actor: Actor, promotion_id: str) -> PromotionOut:
    """Leave frozen or fallen back: measure afresh under a new attempt."""
    return _act(session, promotion_id, Resume(actor=actor, reason=body.reason))


@router.post("/{promotion_id}/retry", responses=ACTING)
def retry(
    session: Writing, actor: Actor, promotion_id: str, body: MaybeReasonIn | None = None
) -> PromotionOut:
    """Measure the present stage afresh; no evidence is carried over."""
    return _act(session, promotion_id, Retry(actor=actor, reason=body.reason if body else ""))


@router.post("/{promotion_id}/override", responses=ACTING)
def override(body: OverrideIn, session: Writing, actor: Actor, promotion_id: str) -> PromotionOut:
    """Accept exactly one undecided verdict; never a violation."""
    event = Override(actor=actor, evidence_digest=body.evidence_digest, reason=body.reason)
    return _act(session, promotion_id, event)


@router.post("/{promotion_id}/abort", responses=ACTING)
def abort(
    session: Writing, actor: Actor, promotion_id: str, body: MaybeReasonIn | None = None
) -> PromotionOut:
    """End it and restore the known-good build."""
    return _act(session, promotion_id, Abort(actor=actor, reason=body.reason if body else ""))
