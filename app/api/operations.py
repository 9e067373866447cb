"""Audit trail, health and metrics."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response
from fastapi.responses import JSONResponse
from sqlalchemy.exc import SQLAlchemyError

from app.api import metrics
from app.api.dependencies import Before, Limit, Reading, database
from app.api.schemas import AuditOut, Page
from app.db import clock, migrate
from app.db.session import Database
from app.services import audit

router = APIRouter(tags=["audit"])
health = APIRouter(tags=["health"])


@router.get("/audit")
def list_audit(
    session: Reading, subject: str | None = None, before: Before = None, limit: Limit = 100
) -> Page[AuditOut]:
    """Who did what to what, newest first; `subject` is `kind/name`."""
    rows = audit.entries(session, subject=subject, before=before, limit=limit + 1)
    items = [AuditOut.model_validate(row) for row in rows[:limit]]
    return Page(items=items, next=items[-1].seq if len(rows) > limit else None)


@health.get("/healthz")
def healthz() -> dict[str, str]:
    """This process answers."""
    return {"status": "ok"}


@health.get("/readyz", responses={503: {"description": "Something it needs is missing"}})
def readyz(db: Annotated[Database, Depends(database)]) -> JSONResponse:
    """It can do its work: the database answers and has this release's schema."""
    checks: dict[str, str] = {}
    try:
        with db.reading() as session:
            clock.now(session)
            revision = migrate.current(session)
        checks["database"] = "ok"
        checks["migrations"] = "ok" if revision == migrate.HEAD else f"at {revision}, needs {migrate.HEAD}"
    except SQLAlchemyError as error:
        checks["database"] = f"does not answer: {type(error).__name__}"
    ready = checks.get("migrations") == "ok"
    return JSONResponse({"status": "ok" if ready else "unavailable", "checks": checks}, 200 if ready else 503)


@health.get("/metrics", response_class=Response)
def read_metrics(session: Reading) -> Response:
    """Prometheus metrics, read from the database."""
    text, media_type = metrics.render(session)
    return Response(text, media_type=media_type)
