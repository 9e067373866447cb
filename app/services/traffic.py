"""Served requests: recorded by the gateway, taken up by evaluations of the live stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy.orm import Session

from app.db import repositories
from app.db.clock import now
from app.db.models import JobRow, PromotionRow, TrafficRow
from app.services import measurements
from app.services.specs import TrafficRequest
from contracts import lifecycle
from contracts.model import Stage
from contracts.promotion import Measure
from contracts.slices import Attributes

MAX_REQUESTS = 20_000  # in one evaluation; what is left goes into the next

Role = Literal["baseline", "candidate", "mirror", "guard"]


@dataclass(frozen=True, slots=True)
class Served:
    """One request as one build answered it.

    Attributes:
        promotion, stage, step, attempt: what the routing table said it is evidence of;
            None where there was no promotion.
        served_by: the build's name.
        role: `guard` answers are kept for the record and are no evidence.
        latency_s, ttft_s: seconds; None when the request failed before.
        dual: whether its ids are to be run through both kernels.
    """

    request_id: str
    deployment: str
    served_by: str
    role: Role
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    attributes: Attributes
    latency_s: float | None
    ttft_s: float | None
    ok: bool
    dual: bool = False
    promotion: str | None = None
    stage: Stage | None = None
    step: int | None = None
    attempt: int | None = None


def record(session: Session, served: Served) -> None:
    """Store one answer, timed by the database's clock; written when the session is flushed."""
    attributes = served.attributes
    session.add(
        TrafficRow(
            request_id=served.request_id,
            deployment=served.deployment,
            promotion=served.promotion,
            stage=served.stage.value if served.stage else None,
            step=served.step,
            attempt=served.attempt,
            at=now(session),
            prompt_ids=list(served.prompt_ids),
            output_ids=list(served.output_ids),
            attributes={
                "prompt_tokens": attributes.prompt_tokens,
                "language": attributes.language,
                "tags": sorted(attributes.tags),
            },
            served_by=served.served_by,
            role=served.role,
            latency_s=served.latency_s,
            ttft_s=served.ttft_s,
            ok=served.ok,
            dual=served.dual,
        )
    )


def attributes(row: TrafficRow) -> Attributes:
    """What is known of a recorded request."""
    known = row.attributes
    return Attributes(known["prompt_tokens"], known["language"], frozenset(known["tags"]))


def pending(session: Session, promotion: PromotionRow, limit: int | None = None) -> Sequence[TrafficRow]:
    """Requests of the present attempt that no evaluation took up yet, oldest first."""
    return repositories.pending_traffic(session, promotion.id, promotion.state.attempt, limit)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Requests of the present attempt that no evaluation took up; how many of them are dual.

    `min_prompts` is the stage's.
    """

    requests: int
    dual_evaluated: int
    min_prompts: int


def waiting(session: Session, promotion: PromotionRow) -> Waiting:
    """What waits for an evaluation now."""
    state = promotion.state
    requests, dual = repositories.count_pending(session, promotion.id, state.attempt)
    return Waiting(requests, dual, state.plans.min_prompts(state.stage))


def ready(session: Session, promotion: PromotionRow) -> bool:
    """Whether an evaluation of live traffic is to be enqueued now; reads only.

    The first of an attempt waits for as many dual-evaluated requests as the stage's
    `min_prompts`, later ones take whatever has come. One at a time.
    """
    state = promotion.state
    if state.stage is Stage.OFFLINE_CI or not lifecycle.observed(state):
        return False
    if repositories.open_jobs(session, promotion.id, state.attempt):
        return False
    found = waiting(session, promotion)
    place = (state.stage.value, state.step, state.attempt)
    if repositories.latest_judged(session, promotion.id, *place) is None:
        return found.dual_evaluated >= found.min_prompts
    return found.requests > 0


def evaluate(session: Session, promotion_id: str) -> JobRow | None:
    """Enqueue an evaluation of what has come, when there is enough; None otherwise."""
    promotion = repositories.promotion(session, promotion_id, lock=True)
    if promotion is None or not ready(session, promotion):
        return None
    state = promotion.state
    rows = pending(session, promotion, MAX_REQUESTS)
    measure = Measure(stage=state.stage, step=state.step, attempt=state.attempt)
    job = measurements.enqueue(session, promotion, measure, [_request(row) for row in rows])
    repositories.take_traffic(session, [row.id for row in rows], job.id)
    return job


def _request(row: TrafficRow) -> TrafficRequest:
    return TrafficRequest.model_validate(
        {
            "id": row.request_id,
            # Only dual requests are run again: of the others the timing and the length count.
            "prompt_ids": row.prompt_ids if row.dual else row.prompt_ids[:1],
            "output_ids": row.output_ids,
            "attributes": attributes(row),
            "role": row.role,
            "latency_s": row.latency_s,
            "ttft_s": row.ttft_s,
            "ok": row.ok,
            "dual": row.dual,
        }
    )
