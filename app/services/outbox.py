"""Domain events for subscribers, written in the transaction they tell of."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from app.db import repositories
from app.db.clock import now
from app.db.models import OutboxRow


def record(
    session: Session, *, type: str, deployment: str, promotion: str, version: int, payload: dict[str, Any]
) -> OutboxRow:
    """Append one event; its id is the same for every subscriber and every delivery."""
    event = OutboxRow(
        event_id=str(uuid.uuid4()),
        type=type,
        deployment=deployment,
        promotion=promotion,
        version=version,
        payload=payload,
        at=now(session),
    )
    return repositories.add(session, event)


def pending(session: Session) -> Sequence[OutboxRow]:
    """Events no relay has published yet, in the order they were committed."""
    return repositories.outbox(session, unpublished=True)
