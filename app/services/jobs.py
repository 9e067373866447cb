"""Jobs and their leases.

The lease in the job's row is the truth about who may report: an owner, an expiry by the
database's clock, and a fencing token that grows with every lease, so that a worker that was
away too long cannot write over the one that took its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from app.db import repositories
from app.db.clock import now
from app.db.models import JobRow
from app.errors import LeaseLost
from app.services.specs import EVALUATE, EvaluationSpec

QUEUE = "evaluate"
LEASE_SECONDS = 60.0
MAX_LEASES = 3


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on one job until `expires_at`, proven by `token`.

    Attributes:
        job: the job's id.
        number: which lease of the job this is, from 1 to `MAX_LEASES`.
        expires_at: aware UTC, by the database's clock; renew before.
    """

    job: int
    token: int
    owner: str
    number: int
    task: str
    spec: EvaluationSpec
    expires_at: datetime

    @property
    def shard(self) -> str:
        """The shard id evidence of this job carries."""
        return f"job-{self.job}"


def enqueue(session: Session, spec: EvaluationSpec, *, task: str = EVALUATE, queue: str = QUEUE) -> JobRow:
    """Put a job at the end of a queue."""
    job = JobRow(
        task=task,
        queue=queue,
        spec=spec.model_dump_json(),
        promotion=spec.promotion,
        stage=spec.stage.value,
        step=spec.step,
        attempt=spec.attempt,
        state="queued",
        leases=0,
        fencing_token=0,
        created_at=now(session),
    )
    return repositories.add(session, job)


def waiting(session: Session, *, queue: str = QUEUE) -> bool:
    """Whether there is something to lease; for polling without taking the write lock."""
    return repositories.leasable(session, queue, MAX_LEASES, now(session)) is not None


def lease_next(
    session: Session, owner: str, *, queue: str = QUEUE, seconds: float = LEASE_SECONDS
) -> Lease | None:
    """Lease the oldest job that waits or whose lease ran out; None when there is none.

    The lease counts once the transaction is committed.
    """
    at = now(session)
    job = repositories.leasable(session, queue, MAX_LEASES, at)
    if job is None:
        return None
    job.state = "leased"
    job.owner = owner
    job.leases += 1
    job.fencing_token += 1
    job.lease_expires_at = at + timedelta(seconds=seconds)
    session.flush()
    return Lease(
        job=job.id,
        token=job.fencing_token,
        owner=owner,
        number=job.leases,
        task=job.task,
        spec=EvaluationSpec.model_validate_json(job.spec),
        expires_at=job.lease_expires_at,
    )


def held(session: Session, lease: Lease) -> JobRow:
    """The job of a lease that still holds.

    Raises LeaseLost when it expired, was taken over, or the job ended or was cancelled.
    """
    job = _latest(session, lease)
    if job.state != "leased":
        raise LeaseLost(f"job {job.id} is {job.state}: stop working on it")
    return job


def reportable(session: Session, lease: Lease) -> JobRow:
    """The job of a lease whose result may be stored: it holds, or its job was cancelled meanwhile.

    Raises LeaseLost otherwise.
    """
    job = _latest(session, lease)
    if job.state not in ("leased", "cancelled"):
        raise LeaseLost(f"job {job.id} is {job.state}: its result was reported before")
    return job


def _latest(session: Session, lease: Lease) -> JobRow:
    job = repositories.job(session, lease.job)
    if job is None:
        raise LeaseLost(f"job {lease.job} does not exist")
    if job.fencing_token != lease.token:
        raise LeaseLost(
            f"job {job.id} was leased anew to {job.owner} (fencing token {job.fencing_token}, "
            f"this lease has {lease.token}): discard the result"
        )
    if job.lease_expires_at is not None and job.lease_expires_at <= now(session):
        raise LeaseLost(f"the lease on job {job.id} expired at {job.lease_expires_at}: discard the result")
    return job


def renew(
    session: Session,
    lease: Lease,
    *,
    seconds: float = LEASE_SECONDS,
    progress: float | None = None,
    doing: str | None = None,
) -> None:
    """Prolong a lease from now, and say how far the work is: the share done in [0, 1], and what.

    Raises LeaseLost when it no longer holds: stop working.
    """
    job = held(session, lease)
    job.lease_expires_at = now(session) + timedelta(seconds=seconds)
    job.progress, job.doing = progress, doing
    session.flush()


def complete(session: Session, lease: Lease) -> None:
    """End a job well. Raises LeaseLost when the lease no longer holds."""
    _end(session, held(session, lease), "done")


def fail(session: Session, lease: Lease, error: str) -> None:
    """End a job badly, for good. Raises LeaseLost when the lease no longer holds."""
    _end(session, held(session, lease), "failed", error)


def release(session: Session, lease: Lease) -> None:
    """Give a job back for someone else to lease, as a worker does that shuts down.

    Raises LeaseLost when the lease no longer holds.
    """
    job = held(session, lease)
    _requeue(job)
    # Handing a job back in good order is not an attempt that failed.
    job.leases -= 1
    session.flush()


def cancel(session: Session, promotion: str, attempt: int) -> int:
    """Cancel what has not ended of an attempt; how many jobs that were."""
    rows = repositories.open_jobs(session, promotion, attempt)
    for job in rows:
        _end(session, job, "cancelled", "the promotion moved on")
    return len(rows)


def reap(session: Session) -> list[JobRow]:
    """Requeue jobs whose lease ran out; end and return those that had all their leases."""
    timed_out = []
    for job in repositories.expired_leases(session, now(session)):
        if job.leases >= MAX_LEASES:
            _end(session, job, "failed", f"no worker finished it in {job.leases} leases")
            timed_out.append(job)
        else:
            _requeue(job)
    session.flush()
    return timed_out


def _requeue(job: JobRow) -> None:
    job.state = "queued"
    job.owner = job.lease_expires_at = None
    job.progress = job.doing = None
    # The next lease takes another token; this one must be void before that.
    job.fencing_token += 1


def _end(session: Session, job: JobRow, state: str, error: str | None = None) -> None:
    job.state = state
    job.error = error
    job.finished_at = now(session)
    session.flush()
