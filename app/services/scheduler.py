"""What time brings about: deadlines, approvals that expire, leases that ran out, traffic to evaluate.

Any number of replicas may tick: each finding is acted on in a transaction of its own that
looks again first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog
from sqlalchemy.orm import Session

from app.db import repositories
from app.db.clock import now
from app.db.session import Database
from app.errors import DomainError
from app.services import evidence, promotions, traffic
from contracts.promotion import Tick

log = structlog.get_logger(__name__)


def tick(database: Database) -> int:
    """Do what is due now; how many things that were. An idle tick only reads."""
    with database.reading() as session:
        silent = repositories.any_expired(session, now(session))
        due = promotions.due(session)
        ready = [
            row.id for row in repositories.promotions(session, active=True) if traffic.ready(session, row)
        ]
    work: list[tuple[str, Callable[[Session], object]]] = []
    if silent:
        work.append(("leases", evidence.time_out))
    work += [(promotion_id, _tick_one(promotion_id)) for promotion_id in due]
    work += [(promotion_id, _evaluate_one(promotion_id)) for promotion_id in ready]
    return sum(_done(database, subject, action) for subject, action in work)


def run(database: Database, stop: threading.Event, interval: float = 1.0) -> None:
    """Tick every `interval` seconds until `stop` is set; an error costs one tick, never the loop."""
    while not stop.is_set():
        try:
            tick(database)
        except Exception:
            log.exception("scheduler tick failed")
        stop.wait(interval)


def _tick_one(promotion_id: str) -> Callable[[Session], object]:
    return lambda session: promotions.apply(session, promotion_id, Tick())


def _evaluate_one(promotion_id: str) -> Callable[[Session], object]:
    return lambda session: traffic.evaluate(session, promotion_id)


def _done(database: Database, subject: str, action: Callable[[Session], object]) -> bool:
    # One promotion in trouble must not keep the others from their deadlines.
    try:
        with database.unit_of_work() as session:
            action(session)
    except DomainError as error:
        # Someone else got there first: the promotion moved on between the two looks.
        log.info("scheduler finding is gone", subject=subject, detail=error.detail)
        return False
    except Exception:
        log.exception("scheduler action failed", subject=subject)
        return False
    return True
