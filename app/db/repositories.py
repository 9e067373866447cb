"""Every query the services make. Functions take a session and never commit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar, cast

from sqlalchemy import CursorResult, func, select, update
from sqlalchemy.orm import Session, aliased

from app.db.models import (
    AuditRow,
    Base,
    CheckpointRow,
    ContractRow,
    DeploymentRow,
    EvidenceRow,
    JobRow,
    JudgementRow,
    KernelBuildRow,
    OutboxRow,
    PromotionRow,
    RoutingRow,
    SuiteRow,
    TrafficRow,
    TransitionRow,
    VerdictRow,
)
from contracts.promotion import TERMINAL, Promotion, Status

Named = TypeVar("Named", CheckpointRow, KernelBuildRow, SuiteRow, DeploymentRow)
Row = TypeVar("Row", bound=Base)
OPEN_JOBS = ("queued", "leased")
_TERMINAL = tuple(status.value for status in TERMINAL)


def add(session: Session, row: Row) -> Row:
    """Insert `row` now, so that its keys are set and its constraints have spoken."""
    session.add(row)
    session.flush()
    return row


def named(session: Session, kind: type[Named], name: str) -> Named | None:
    """The row registered under `name`."""
    return session.scalars(select(kind).where(kind.name == name)).one_or_none()


def registered(session: Session, kind: type[Named], name: str) -> Named:
    """The row a foreign key promises. Raises sqlalchemy.exc.NoResultFound when it lies."""
    return session.scalars(select(kind).where(kind.name == name)).one()


def all_named(session: Session, kind: type[Named]) -> Sequence[Named]:
    """Everything registered of a kind, by name."""
    return session.scalars(select(kind).order_by(kind.name)).all()


def contract(session: Session, name: str, version: str) -> ContractRow | None:
    """The contract published as `name` and `version`."""
    query = select(ContractRow).where(ContractRow.name == name, ContractRow.version == version)
    return session.scalars(query).one_or_none()


def contract_by_digest(session: Session, digest: str) -> ContractRow | None:
    """The contract with this content."""
    return session.scalars(select(ContractRow).where(ContractRow.digest == digest)).one_or_none()


def contracts(session: Session, name: str | None = None) -> Sequence[ContractRow]:
    """Contracts in order of publication, all or those of one name."""
    query = select(ContractRow).order_by(ContractRow.id)
    return session.scalars(query if name is None else query.where(ContractRow.name == name)).all()


def promotion(session: Session, promotion_id: str, *, lock: bool = False) -> PromotionRow | None:
    """The promotion as the database has it now, whatever the session read before.

    With `lock` nobody else changes it until this transaction ends.
    """
    query = select(PromotionRow).where(PromotionRow.id == promotion_id)
    query = query.with_for_update() if lock else query
    return session.scalars(query, execution_options={"populate_existing": True}).one_or_none()


def promotions(
    session: Session,
    *,
    deployment: str | None = None,
    active: bool = False,
    before: int | None = None,
    limit: int | None = None,
) -> Sequence[PromotionRow]:
    """Promotions, newest first; `before` is the `seq` of the last one already seen."""
    query = select(PromotionRow).order_by(PromotionRow.seq.desc()).limit(limit)
    if deployment is not None:
        query = query.where(PromotionRow.deployment == deployment)
    if active:
        query = query.where(PromotionRow.status.not_in(_TERMINAL))
    if before is not None:
        query = query.where(PromotionRow.seq < before)
    return session.scalars(query).all()


def last_accepted(session: Session, deployment: str) -> PromotionRow | None:
    """The newest promotion of a deployment that is PROMOTED, or was when a newer one superseded it."""
    for row in promotions(session, deployment=deployment, active=True):
        if row.state.status is Status.PROMOTED:
            return row
    last, before = aliased(TransitionRow), aliased(TransitionRow)
    superseded = (
        select(PromotionRow, before.state)
        .join(last, (last.promotion == PromotionRow.id) & (last.event_type == "supersede"))
        .join(before, (before.promotion == PromotionRow.id) & (before.version == last.version - 1))
        .where(PromotionRow.deployment == deployment)
        .order_by(PromotionRow.seq.desc())
    )
    for row, state in session.execute(superseded):
        if state.status is Status.PROMOTED:
            return row
    return None


def swap(session: Session, before: Promotion, after: Promotion, at: datetime) -> bool:
    """Compare-and-swap on the version: whether `after` took the place of `before`."""
    statement = (
        update(PromotionRow)
        .where(PromotionRow.id == before.id, PromotionRow.version == before.version)
        .values(
            state=after,
            stage=after.stage.value,
            status=after.status.value,
            version=after.version,
            updated_at=at,
        )
        .execution_options(synchronize_session=False)
    )
    return cast("CursorResult[Any]", session.execute(statement)).rowcount == 1


def counts(session: Session) -> Sequence[tuple[str, str, int]]:
    """How many promotions stand at each (stage, status)."""
    query = select(PromotionRow.stage, PromotionRow.status, func.count()).group_by(
        PromotionRow.stage, PromotionRow.status
    )
    return [(stage, status, count) for stage, status, count in session.execute(query)]


def job_counts(session: Session) -> Sequence[tuple[str, str, int]]:
    """How many jobs stand at each (queue, state)."""
    query = select(JobRow.queue, JobRow.state, func.count()).group_by(JobRow.queue, JobRow.state)
    return [(queue, state, count) for queue, state, count in session.execute(query)]


def transitions(session: Session, promotion_id: str) -> Sequence[TransitionRow]:
    """All transitions of a promotion, oldest first."""
    query = (
        select(TransitionRow).where(TransitionRow.promotion == promotion_id).order_by(TransitionRow.version)
    )
    return session.scalars(query).all()


def job(session: Session, job_id: int) -> JobRow | None:
    """The job as the database has it now."""
    query = select(JobRow).where(JobRow.id == job_id)
    return session.scalars(query, execution_options={"populate_existing": True}).one_or_none()


def open_jobs(session: Session, promotion_id: str, attempt: int) -> Sequence[JobRow]:
    """Jobs of an attempt that have not ended."""
    query = select(JobRow).where(
        JobRow.promotion == promotion_id, JobRow.attempt == attempt, JobRow.state.in_(OPEN_JOBS)
    )
    return session.scalars(query, execution_options={"populate_existing": True}).all()


def jobs(session: Session, promotion_id: str) -> Sequence[JobRow]:
    """All jobs of a promotion, oldest first."""
    return session.scalars(select(JobRow).where(JobRow.promotion == promotion_id).order_by(JobRow.id)).all()


def leasable(session: Session, queue: str, max_leases: int, at: datetime) -> JobRow | None:
    """The oldest job of `queue` that waits or whose lease ran out, locked where rows can be."""
    expired = (JobRow.state == "leased") & (JobRow.lease_expires_at <= at)
    query = (
        select(JobRow)
        .where(JobRow.queue == queue, JobRow.leases < max_leases, (JobRow.state == "queued") | expired)
        .order_by(JobRow.id)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    return session.scalars(query, execution_options={"populate_existing": True}).one_or_none()


def any_expired(session: Session, at: datetime) -> bool:
    """Whether some lease ran out."""
    expired = select(JobRow.id).where(JobRow.state == "leased", JobRow.lease_expires_at <= at).limit(1)
    return session.execute(expired).first() is not None


def expired_leases(session: Session, at: datetime) -> Sequence[JobRow]:
    """Jobs whose lease ran out, oldest first, locked where rows can be."""
    query = (
        select(JobRow)
        .where(JobRow.state == "leased", JobRow.lease_expires_at <= at)
        .order_by(JobRow.id)
        .with_for_update(skip_locked=True)
    )
    return session.scalars(query, execution_options={"populate_existing": True}).all()


def evidence(session: Session, promotion_id: str, attempt: int | None = None) -> Sequence[EvidenceRow]:
    """Evidence of a promotion (of one attempt), oldest first; shards, merges and stale ones."""
    query = select(EvidenceRow).where(EvidenceRow.promotion == promotion_id).order_by(EvidenceRow.id)
    return session.scalars(query if attempt is None else query.where(EvidenceRow.attempt == attempt)).all()


def evidence_by_digest(session: Session, promotion_id: str, digest: str) -> EvidenceRow | None:
    """The first evidence of a promotion with this content."""
    query = (
        select(EvidenceRow)
        .where(EvidenceRow.promotion == promotion_id, EvidenceRow.digest == digest)
        .order_by(EvidenceRow.id)
        .limit(1)
    )
    return session.scalars(query).one_or_none()


def latest_judged(
    session: Session, promotion_id: str, stage: str, step: int, attempt: int
) -> EvidenceRow | None:
    """The merge judged last for an attempt."""
    query = (
        select(EvidenceRow)
        .join(JudgementRow, JudgementRow.evidence == EvidenceRow.id)
        .where(
            JudgementRow.promotion == promotion_id,
            JudgementRow.stage == stage,
            JudgementRow.step == step,
            JudgementRow.attempt == attempt,
        )
        .order_by(JudgementRow.id.desc())
        .limit(1)
    )
    return session.scalars(query).one_or_none()


def judgements(session: Session, promotion_id: str) -> Sequence[JudgementRow]:
    """All judgements of a promotion, oldest first."""
    query = select(JudgementRow).where(JudgementRow.promotion == promotion_id).order_by(JudgementRow.id)
    return session.scalars(query).all()


def verdicts(session: Session, judgement_id: int) -> Sequence[VerdictRow]:
    """The verdicts of a judgement in document order."""
    query = select(VerdictRow).where(VerdictRow.judgement == judgement_id).order_by(VerdictRow.id)
    return session.scalars(query).all()


def routing(session: Session, deployment: str) -> RoutingRow | None:
    """The newest routing table of a deployment."""
    query = (
        select(RoutingRow)
        .where(RoutingRow.deployment == deployment)
        .order_by(RoutingRow.version.desc())
        .limit(1)
    )
    return session.scalars(query).one_or_none()


def pending_traffic(
    session: Session, promotion_id: str, attempt: int, limit: int | None = None
) -> Sequence[TrafficRow]:
    """Requests of an attempt that no evaluation took up yet, oldest first."""
    query = (
        select(TrafficRow)
        .where(
            TrafficRow.promotion == promotion_id,
            TrafficRow.attempt == attempt,
            TrafficRow.job.is_(None),
            TrafficRow.role != "guard",
        )
        .order_by(TrafficRow.id)
        .limit(limit)
    )
    return session.scalars(query).all()


def count_pending(session: Session, promotion_id: str, attempt: int) -> tuple[int, int]:
    """How many requests of an attempt no evaluation took up yet, and how many of them are dual."""
    query = select(func.count(), func.count().filter(TrafficRow.dual)).where(
        TrafficRow.promotion == promotion_id,
        TrafficRow.attempt == attempt,
        TrafficRow.job.is_(None),
        TrafficRow.role != "guard",
    )
    requests, dual = session.execute(query).one()
    return requests, dual


def newest_traffic(session: Session, promotion_id: str, attempt: int, limit: int) -> Sequence[TrafficRow]:
    """The newest requests of an attempt, newest first."""
    query = (
        select(TrafficRow)
        .where(TrafficRow.promotion == promotion_id, TrafficRow.attempt == attempt)
        .order_by(TrafficRow.id.desc())
        .limit(limit)
    )
    return session.scalars(query).all()


def take_traffic(session: Session, ids: Sequence[int], job_id: int) -> None:
    """Mark requests as taken up by an evaluation."""
    session.execute(
        update(TrafficRow)
        .where(TrafficRow.id.in_(ids))
        .values(job=job_id)
        .execution_options(synchronize_session=False)
    )


def outbox(session: Session, *, unpublished: bool = False) -> Sequence[OutboxRow]:
    """Domain events in the order they were committed."""
    query = select(OutboxRow).order_by(OutboxRow.seq)
    return session.scalars(query.where(OutboxRow.published_at.is_(None)) if unpublished else query).all()


def count_unpublished(session: Session) -> int:
    """How many domain events no relay has published yet."""
    query = select(func.count()).select_from(OutboxRow).where(OutboxRow.published_at.is_(None))
    return session.execute(query).scalar_one()


def audit(
    session: Session, *, subject: str | None = None, before: int | None = None, limit: int | None = None
) -> Sequence[AuditRow]:
    """Audit entries, newest first; `before` is the `seq` of the last one already seen."""
    query = select(AuditRow).order_by(AuditRow.seq.desc()).limit(limit)
    if subject is not None:
        query = query.where(AuditRow.subject == subject)
    if before is not None:
        query = query.where(AuditRow.seq < before)
    return session.scalars(query).all()
