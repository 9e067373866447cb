"""What each page needs, read from the database in one snapshot and made ready to print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from app.db import clock, pages, repositories
from app.db.models import DeploymentRow, PromotionRow, TransitionRow
from app.errors import NotFound
from app.web import routing, view
from contracts.model import Contract
from contracts.promotion import TERMINAL, Promotion
from contracts.routing import RoutingTable
from contracts.verdicts import Judgement

LISTED = 50


def promotions(session: Session) -> dict[str, Any]:
    """The list of promotions and what serves on every deployment."""
    rows = repositories.promotions(session, limit=LISTED + 1)
    listed = _summaries(session, rows[:LISTED])
    deployments = repositories.all_named(session, DeploymentRow)
    return {
        "now": clock.now(session),
        "promotions": listed,
        "more": len(rows) > LISTED,
        "deployments": [routing.deployment(d.name, _table(session, d.name)) for d in deployments],
        "live": any(p.active for p in listed),
        "here": "promotions",
    }


def promotion(session: Session, promotion_id: str) -> dict[str, Any]:
    """One promotion with verdicts and timeline. Raises NotFound."""
    row = repositories.promotion(session, promotion_id)
    if row is None:
        raise NotFound(f"There is no promotion {promotion_id!r}.")
    state: Promotion = row.state
    contract = pages.contract_names(session, [row.contract]).get(row.contract, row.contract)
    return {
        "now": clock.now(session),
        "p": view.summary(state, contract, row.inference_build),
        "started": state.started_at,
        "deadline": state.deadline_at,
        "approval_expires": state.approval_expires_at,
        "attempt": state.attempt,
        "guarded": state.guarded,
        "known_good_healthy": state.known_good_healthy,
        "comparison": view.compared(row.comparison),
        "judgements": _judgements(session, row),
        "timeline": _timeline(repositories.transitions(session, promotion_id)),
        "bindings": view.bindings(
            state,
            {
                "contract": contract,
                "checkpoint": row.checkpoint,
                "suite": row.suite,
                "train_build": row.train_build,
                "inference_build": row.inference_build,
                "known_good_build": row.known_good_build,
            },
        ),
        "links": _links(row),
        "live": state.status not in TERMINAL,
    }


def deployment(session: Session, name: str) -> dict[str, Any]:
    """One deployment: routing now, promotions and the routing table's history. Raises NotFound."""
    row = repositories.named(session, DeploymentRow, name)
    if row is None:
        raise NotFound(f"There is no deployment {name!r}.")
    table = _table(session, name)
    summaries = _summaries(session, repositories.promotions(session, deployment=name, limit=LISTED))
    return {
        "now": clock.now(session),
        "d": routing.deployment(name, table),
        "routing": routing.facts(table) if table else (),
        "endpoints": sorted((build, routing.safe_url(url)) for build, url in row.endpoints.items()),
        "promotions": summaries,
        "history": [
            routing.version(RoutingTable.model_validate_json(past.json), past.at)
            for past in pages.routing_history(session, name, LISTED)
        ],
        "live": any(p.active for p in summaries),
    }


def _table(session: Session, name: str) -> RoutingTable | None:
    row = repositories.routing(session, name)
    return RoutingTable.model_validate_json(row.json) if row else None


def _summaries(session: Session, rows: Sequence[PromotionRow]) -> list[view.PromotionSummary]:
    names = pages.contract_names(session, [row.contract for row in rows])
    return [
        view.summary(row.state, names.get(row.contract, row.contract), row.inference_build) for row in rows
    ]


def _judgements(session: Session, row: PromotionRow) -> list[view.JudgementView]:
    contract = repositories.contract_by_digest(session, row.contract)
    clauses = Contract.model_validate_json(contract.json).clauses if contract else ()
    by_id = {clause.id: clause for clause in clauses}
    return [
        view.judgement(
            Judgement.model_validate_json(judged.json),
            by_id,
            promotion=row.state,
            step=judged.step,
            attempt=judged.attempt,
        )
        for judged in pages.latest_judgements(session, row.id)
    ]


def _timeline(rows: Sequence[TransitionRow]) -> list[view.TimelineEntry]:
    entries = []
    before: Promotion | None = None
    for row in rows:
        entries.append(view.timeline(row.event_type, before, row.state, row.at, row.actor, row.reason))
        before = row.state
    return entries[::-1]


def _links(row: PromotionRow) -> list[tuple[str, str]]:
    base = f"/v1/promotions/{row.id}"
    return [
        ("Promotion", base),
        ("Verdicts", f"{base}/verdicts"),
        ("Evidence", f"{base}/evidence"),
        ("Transitions", f"{base}/transitions"),
        ("Audit trail", f"/v1/audit?subject=promotion/{row.id}"),
        ("Routing table", f"/v1/deployments/{row.deployment}/routing"),
    ]
