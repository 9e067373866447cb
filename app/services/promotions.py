"""Promotions: started, stepped and read.

:func:`contracts.lifecycle.step` decides; this module makes each decision exactly one
transaction: the state by compare-and-swap, its transition, audit entry and outbox event, the
known-good build, the routing table, and the jobs to start or stop.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Literal

from pydantic import TypeAdapter
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.db import repositories
from app.db.clock import now
from app.db.models import DeploymentRow, PromotionRow, TransitionRow
from app.errors import ActivePromotion, Contention, IllegalEvent, NotFound
from app.services import audit, jobs, measurements, outbox, routing
from app.services.binding import Order, bind
from contracts import lifecycle
from contracts.promotion import (
    CancelMeasurement,
    Event,
    KnownGoodHealth,
    Measure,
    Notify,
    Page,
    Promotion,
    Reroute,
    Status,
    Supersede,
    Tick,
    Transition,
)

OnActive = Literal["supersede", "refuse"]
RETRIES = 10


def start(
    session: Session, order: Order, *, on_active: OnActive = "supersede", actor: str = audit.SYSTEM
) -> PromotionRow:
    """Start a promotion in offline CI, pinned to what the names stand for now.

    An active promotion of the same deployment is superseded in the same transaction.

    Raises:
        NotFound: the deployment does not exist.
        Unprocessable: a name is unknown, or what it stands for does not fit the contract.
        ActivePromotion: `on_active` is `refuse` and there is one.
        Contention: another promotion was started at the same moment.
    """
    deployment = repositories.named(session, DeploymentRow, order.deployment)
    if deployment is None:
        raise NotFound(f"no deployment is named {order.deployment!r}; register it first")
    promotion_id = str(uuid.uuid4())
    bound = bind(session, deployment, order)
    for active in repositories.promotions(session, deployment=deployment.name, active=True):
        if on_active == "refuse":
            raise ActivePromotion(
                f"promotion {active.id} of {deployment.name} is {active.status}: abort it, or supersede it",
                promotion=active.id,
            )
        _supersede(session, active.id, promotion_id, actor)
    at = now(session)
    transition = lifecycle.start(
        promotion_id,
        deployment.name,
        bound.digests,
        bound.contract.stages,
        bound.contract.escalation,
        at,
        known_good_healthy=deployment.known_good_healthy,
    )
    row = bound.row(transition.after, actor=actor, at=at)
    try:
        repositories.add(session, row)
    except IntegrityError:
        raise Contention(f"another promotion of {order.deployment} was started at this moment") from None
    _record(session, row, transition, actor)
    return row


def _supersede(session: Session, old: str, new: str, actor: str) -> None:
    try:
        apply(session, old, Supersede(by=new), actor=actor)
    except IllegalEvent:
        # It ended between our look and our swap: whoever ended it may have started another.
        raise Contention(f"promotion {old} was ended by someone else at this moment, try again") from None


def apply(session: Session, promotion_id: str, event: Event, *, actor: str | None = None) -> Transition:
    """Let one event happen to a promotion, with everything that must happen with it.

    Nothing is written when the event changes nothing. The actor is the event's own where it
    has one.

    Raises:
        NotFound: there is no such promotion.
        IllegalEvent: its state does not allow the event.
        Contention: others changed it each time; nothing was written.
    """
    for _ in range(RETRIES):
        row = get(session, promotion_id)
        at = now(session)
        try:
            transition = lifecycle.step(row.state, event, at)
        except lifecycle.IllegalTransition as error:
            raise IllegalEvent(
                str(error), promotion=promotion_id, promotion_status=row.status, allowed=list(error.allowed)
            ) from None
        if not transition.effects:
            return transition
        if repositories.swap(session, row.state, transition.after, at):
            session.refresh(row)
            _record(session, row, transition, actor or str(getattr(event, "actor", audit.SYSTEM)))
            return transition
    raise Contention(f"promotion {promotion_id} kept changing; nothing was done, try again")


def _record(session: Session, row: PromotionRow, transition: Transition, actor: str) -> None:
    after = transition.after
    at = now(session)
    session.add(
        TransitionRow(
            promotion=row.id,
            version=after.version,
            event=transition.event.model_dump_json(),
            event_type=transition.event.type,
            actor=actor,
            reason=transition.reason,
            state=after,
            at=at,
        )
    )
    detail: dict[str, object] = {
        "version": after.version,
        "from": _place(transition.before),
        "to": _place(after),
        "reason": transition.reason,
    }
    if transition.before is None and row.comparison is not None:
        detail["comparison"] = row.comparison.model_dump(mode="json")
    audit.record(
        session,
        actor=actor,
        action=f"promotion.{transition.event.type}",
        subject=f"promotion/{row.id}",
        detail=detail,
    )
    _update_known_good(session, row, transition)
    reroute = False
    for effect in transition.effects:
        match effect:
            case CancelMeasurement(attempt=attempt):
                jobs.cancel(session, row.id, attempt)
            case Measure():
                measurements.begin(session, row, effect)
            case Reroute():
                reroute = True
            case Notify() | Page():
                pass
    generation = routing.reroute(session, row).version if reroute else None
    _tell(session, row, transition, actor, generation)


def _place(state: Promotion | None) -> dict[str, object] | None:
    if state is None:
        return None
    return {"stage": state.stage, "step": state.step, "status": state.status, "attempt": state.attempt}


def _tell(
    session: Session, row: PromotionRow, transition: Transition, actor: str, routing_version: int | None
) -> None:
    named = [effect.event for effect in transition.effects if isinstance(effect, Notify)]
    outbox.record(
        session,
        type=named[0] if named else f"promotion.{transition.event.type}",
        deployment=row.deployment,
        promotion=row.id,
        version=transition.after.version,
        payload={
            "promotion": row.id,
            "deployment": row.deployment,
            "version": transition.after.version,
            "state": transition.after.model_dump(mode="json"),
            "event": transition.event.type,
            "actor": actor,
            "reason": transition.reason,
            "routing_version": routing_version,
            "page": [effect.reason for effect in transition.effects if isinstance(effect, Page)],
        },
    )


def _update_known_good(session: Session, row: PromotionRow, transition: Transition) -> None:
    """The candidate becomes known good when PROMOTED; leaving that takes it back.

    Except by a newer promotion superseding it: that one starts from what is promoted.
    """
    before, after = transition.before, transition.after
    if before is None or Status.PROMOTED not in (before.status, after.status):
        return
    if transition.event.type == "supersede":
        return
    promoted = lifecycle.known_good_after(after) == after.bound.inference_build
    name = row.inference_build if promoted else row.known_good_build
    deployment = repositories.registered(session, DeploymentRow, row.deployment)
    if deployment.known_good_build == name:
        return
    deployment.known_good_build = name
    deployment.updated_at = now(session)
    session.flush()
    audit.record(
        session,
        actor=audit.SYSTEM,
        action="deployment.known_good",
        subject=f"deployment/{deployment.name}",
        detail={"build": name, "promotion": row.id, "version": after.version},
    )


def get(session: Session, promotion_id: str) -> PromotionRow:
    """The promotion as it is now. Raises NotFound."""
    row = repositories.promotion(session, promotion_id)
    if row is None:
        raise NotFound(f"there is no promotion {promotion_id!r}")
    return row


def history(session: Session, promotion_id: str) -> Sequence[TransitionRow]:
    """Every transition of a promotion, oldest first. Raises NotFound."""
    get(session, promotion_id)
    return repositories.transitions(session, promotion_id)


def due(session: Session) -> list[str]:
    """Active promotions that a tick would change now; reads only."""
    at = now(session)
    return [
        row.id
        for row in repositories.promotions(session, active=True)
        if lifecycle.step(row.state, Tick(), at).effects
    ]


def tick_all(session: Session) -> list[Transition]:
    """Tick every active promotion that is due."""
    return [apply(session, promotion_id, Tick()) for promotion_id in due(session)]


def known_good_health(
    session: Session, deployment_name: str, *, healthy: bool, actor: str = audit.SYSTEM
) -> None:
    """Record whether a deployment's known-good build may be fallen back to. Raises NotFound."""
    deployment = repositories.named(session, DeploymentRow, deployment_name)
    if deployment is None:
        raise NotFound(f"no deployment is named {deployment_name!r}")
    if deployment.known_good_healthy != healthy:
        deployment.known_good_healthy = healthy
        deployment.updated_at = now(session)
        session.flush()
    for row in repositories.promotions(session, deployment=deployment_name, active=True):
        apply(session, row.id, KnownGoodHealth(healthy=healthy), actor=actor)


def active(session: Session, deployment: str) -> PromotionRow | None:
    """The one active promotion of a deployment."""
    rows = repositories.promotions(session, deployment=deployment, active=True)
    return rows[0] if rows else None


def replay(rows: Sequence[TransitionRow]) -> Promotion:
    """The state the recorded events lead to from nothing; equal to the recorded one [invariant 10]."""
    adapter: TypeAdapter[Event] = TypeAdapter(Event)
    return lifecycle.replay((adapter.validate_json(row.event), row.at) for row in rows)
