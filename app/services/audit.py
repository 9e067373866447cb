"""The audit trail: who did what to what, and why; appended in the transaction it tells of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from app.db import repositories
from app.db.clock import now
from app.db.models import AuditRow

SYSTEM = "system"


def record(session: Session, *, actor: str, action: str, subject: str, detail: dict[str, Any]) -> AuditRow:
    """Append one entry. `subject` is `kind/name`, such as `promotion/<id>`."""
    entry = AuditRow(at=now(session), actor=actor, action=action, subject=subject, detail=detail)
    return repositories.add(session, entry)


def entries(
    session: Session, *, subject: str | None = None, before: int | None = None, limit: int = 100
) -> Sequence[AuditRow]:
    """Entries newest first; `before` is the `seq` of the last one already seen."""
    return repositories.audit(session, subject=subject, before=before, limit=limit)
