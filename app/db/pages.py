"""Queries only the status page makes: the latest of each, never a whole history."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.db.models import ContractRow, JudgementRow, RoutingRow


def latest_judgements(session: Session, promotion_id: str) -> Sequence[JudgementRow]:
    """The last judgement of each stage and step, newest first."""
    last = (
        select(func.max(JudgementRow.id))
        .where(JudgementRow.promotion == promotion_id)
        .group_by(JudgementRow.stage, JudgementRow.step)
    )
    return session.scalars(
        select(JudgementRow).where(JudgementRow.id.in_(last)).order_by(JudgementRow.id.desc())
    ).all()


def routing_history(session: Session, deployment: str, limit: int) -> Sequence[RoutingRow]:
    """The newest `limit` versions of a deployment's routing table, newest first."""
    query = (
        select(RoutingRow)
        .where(RoutingRow.deployment == deployment)
        .order_by(RoutingRow.version.desc())
        .limit(limit)
    )
    return session.scalars(query).all()


def contract_names(session: Session, digests: Sequence[str]) -> dict[str, str]:
    """`name@version` by digest."""
    query = select(ContractRow.digest, ContractRow.name, ContractRow.version).where(
        ContractRow.digest.in_(digests)
    )
    return {digest: f"{name}@{version}" for digest, name, version in session.execute(query)}
