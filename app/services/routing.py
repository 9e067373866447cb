"""Routing tables: derived from the promotion in the transaction that changes it, versions only grow."""

from __future__ import annotations

from sqlalchemy.orm import Session

from app.db import repositories
from app.db.clock import now
from app.db.models import DeploymentRow, PromotionRow, RoutingRow
from app.errors import NotFound
from app.services import measurements
from contracts.model import Contract
from contracts.promotion import TERMINAL
from contracts.routing import RoutingTable, derive, initial


def current(session: Session, deployment: str) -> RoutingTable:
    """The newest routing table of a deployment. Raises NotFound."""
    row = repositories.routing(session, deployment)
    if row is None:
        raise NotFound(f"no deployment is named {deployment!r}")
    return RoutingTable.model_validate_json(row.json)


def begin(session: Session, deployment: DeploymentRow) -> RoutingTable:
    """The first table of a deployment: its known-good build serves everything."""
    return _store(session, initial(deployment.name, deployment.known_good_build), None)


def reroute(session: Session, promotion: PromotionRow) -> RoutingTable:
    """Derive and store the table the promotion's present state asks for.

    A promotion that is over leaves the deployment to whatever is known good there now: its
    own candidate, when a newer promotion superseded it after it was promoted.
    """
    deployment = repositories.registered(session, DeploymentRow, promotion.deployment)
    over = promotion.state.status in TERMINAL
    contract = Contract.model_validate_json(measurements.contract_row(session, promotion).json)
    table = derive(
        promotion.state,
        contract,
        current(session, promotion.deployment),
        candidate=promotion.inference_build,
        known_good=deployment.known_good_build if over else promotion.known_good_build,
    )
    return _store(session, table, promotion.id)


def _store(session: Session, table: RoutingTable, promotion: str | None) -> RoutingTable:
    row = RoutingRow(
        deployment=table.target,
        version=table.version,
        promotion=promotion,
        json=table.model_dump_json(by_alias=True),
        at=now(session),
    )
    repositories.add(session, row)
    return table
