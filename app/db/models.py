"""The tables.

Content digests are `sha256:<hex>`. What is registered is never changed or deleted; names
are how people speak, digests are what promotions are bound to. Pydantic values are stored
as the JSON text they were written as (:class:`app.db.types.Value`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import JSON, ForeignKey, Index, MetaData, Text, UniqueConstraint, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from app.db.types import UtcDateTime, Value
from contracts.compare import Comparison
from contracts.promotion import TERMINAL, Promotion

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
ACTIVE = text("status NOT IN ({})".format(", ".join(f"'{status.value}'" for status in sorted(TERMINAL))))


class Base(DeclarativeBase):
    """Declarative base; every constraint has a name migrations can speak of."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: UtcDateTime(),
        dict[str, Any]: JSON(),
        dict[str, str]: JSON(),
        list[int]: JSON(),
    }


class ContractRow(Base):
    """A published contract: the text as written and its canonical JSON."""

    __tablename__ = "contracts"
    __table_args__ = (UniqueConstraint("name", "version"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    version: Mapped[str]
    digest: Mapped[str] = mapped_column(unique=True)
    yaml: Mapped[str] = mapped_column(Text)
    json: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime]


class CheckpointRow(Base):
    """A model checkpoint directory, by the digests of its parts."""

    __tablename__ = "checkpoints"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    digest: Mapped[str] = mapped_column(index=True)
    path: Mapped[str] = mapped_column(Text)
    weights_digest: Mapped[str]
    tokenizer_digest: Mapped[str]
    chat_template_digest: Mapped[str]
    config_digest: Mapped[str]
    created_at: Mapped[datetime]


class KernelBuildRow(Base):
    """A kernel build as written, `engine:key=value,...` with sorted keys."""

    __tablename__ = "kernel_builds"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    digest: Mapped[str] = mapped_column(index=True)
    spec: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime]


class SuiteRow(Base):
    """An evaluation suite (JSON Lines)."""

    __tablename__ = "suites"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    digest: Mapped[str] = mapped_column(index=True)
    path: Mapped[str] = mapped_column(Text)
    prompts: Mapped[int]
    tokenizer_digest: Mapped[str | None]
    created_at: Mapped[datetime]


class DeploymentRow(Base):
    """A deployment target: what is known good there and where each build is served.

    Attributes:
        declared_known_good: name of the build known good when it was registered.
        known_good_build: name of the build known good now; promotions change it.
        endpoints: base URLs by build name.
        gateway: settings of its data plane.
    """

    __tablename__ = "deployments"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    declared_known_good: Mapped[str] = mapped_column(ForeignKey("kernel_builds.name"))
    known_good_build: Mapped[str] = mapped_column(ForeignKey("kernel_builds.name"))
    known_good_healthy: Mapped[bool] = mapped_column(default=True)
    endpoints: Mapped[dict[str, str]]
    gateway: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class PromotionRow(Base):
    """A promotion: its whole state, the names it was started with, and columns to query by.

    `comparison` is of its contract with the one before, as it was at the start; None without one.
    """

    __tablename__ = "promotions"
    __table_args__ = (
        Index("ix_promotions_status", "status"),
        Index(
            "uq_promotions_active_deployment",
            "deployment",
            unique=True,
            sqlite_where=ACTIVE,
            postgresql_where=ACTIVE,
        ),
        Index("ix_promotions_deployment_seq", "deployment", "seq"),
    )

    seq: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(unique=True)
    deployment: Mapped[str] = mapped_column(ForeignKey("deployments.name"))
    contract: Mapped[str] = mapped_column(ForeignKey("contracts.digest"))
    checkpoint: Mapped[str] = mapped_column(ForeignKey("checkpoints.name"))
    train_build: Mapped[str] = mapped_column(ForeignKey("kernel_builds.name"))
    inference_build: Mapped[str] = mapped_column(ForeignKey("kernel_builds.name"))
    known_good_build: Mapped[str] = mapped_column(ForeignKey("kernel_builds.name"))
    suite: Mapped[str] = mapped_column(ForeignKey("suites.name"))
    comparison: Mapped[Comparison | None] = mapped_column(Value(Comparison))
    state: Mapped[Promotion] = mapped_column(Value(Promotion))
    stage: Mapped[str]
    status: Mapped[str]
    version: Mapped[int]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    created_by: Mapped[str]


class TransitionRow(Base):
    """One step of a promotion, its event as JSON; version 1 is its start."""

    __tablename__ = "transitions"

    promotion: Mapped[str] = mapped_column(ForeignKey("promotions.id"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    event: Mapped[str] = mapped_column(Text)
    event_type: Mapped[str]
    actor: Mapped[str]
    reason: Mapped[str] = mapped_column(Text)
    state: Mapped[Promotion] = mapped_column(Value(Promotion))
    at: Mapped[datetime]


class JobRow(Base):
    """A unit of work for a worker; the lease in it is the truth about who may report.

    `progress` is the share done in [0, 1] and `doing` what that is, as its worker last said.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_queue_state_id", "queue", "state", "id"),
        Index("ix_jobs_promotion_attempt", "promotion", "attempt"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    task: Mapped[str]
    queue: Mapped[str]
    spec: Mapped[str] = mapped_column(Text)
    promotion: Mapped[str] = mapped_column(ForeignKey("promotions.id"))
    stage: Mapped[str]
    step: Mapped[int]
    attempt: Mapped[int]
    state: Mapped[str]
    owner: Mapped[str | None]
    leases: Mapped[int]
    fencing_token: Mapped[int]
    lease_expires_at: Mapped[datetime | None]
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    progress: Mapped[float | None]
    doing: Mapped[str | None] = mapped_column(Text)


class EvidenceRow(Base):
    """Evidence in canonical JSON: a shard as a worker reported it, or the merge that was judged."""

    __tablename__ = "evidence"
    __table_args__ = (
        Index("ix_evidence_promotion_attempt", "promotion", "attempt", "kind"),
        Index("ix_evidence_digest", "digest"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str]
    kind: Mapped[str]
    promotion: Mapped[str] = mapped_column(ForeignKey("promotions.id"))
    job: Mapped[int] = mapped_column(ForeignKey("jobs.id"))
    stage: Mapped[str]
    step: Mapped[int]
    attempt: Mapped[int]
    stale: Mapped[bool]
    prompts: Mapped[int]
    json: Mapped[str] = mapped_column(Text)
    at: Mapped[datetime]


class JudgementRow(Base):
    """One judgement of one merged evidence."""

    __tablename__ = "judgements"
    __table_args__ = (Index("ix_judgements_promotion_id", "promotion", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    evidence: Mapped[int] = mapped_column(ForeignKey("evidence.id"))
    evidence_digest: Mapped[str]
    promotion: Mapped[str] = mapped_column(ForeignKey("promotions.id"))
    stage: Mapped[str]
    step: Mapped[int]
    attempt: Mapped[int]
    judge_version: Mapped[str]
    prompts: Mapped[int]
    converged: Mapped[bool | None]
    level: Mapped[str | None]
    reason: Mapped[str] = mapped_column(Text)
    json: Mapped[str] = mapped_column(Text)
    at: Mapped[datetime]


class VerdictRow(Base):
    """One clause on one slice in one phase of a judgement, in document order."""

    __tablename__ = "verdicts"
    __table_args__ = (Index("ix_verdicts_judgement_id", "judgement", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    judgement: Mapped[int] = mapped_column(ForeignKey("judgements.id"))
    clause: Mapped[str]
    slice: Mapped[str]
    phase: Mapped[str | None]
    metric: Mapped[str]
    verdict: Mapped[str]
    level: Mapped[str]
    observed: Mapped[float | None]
    limit: Mapped[float]
    n: Mapped[int]
    json: Mapped[str] = mapped_column(Text)


class RoutingRow(Base):
    """A routing table as it was at a version; versions of a deployment only grow."""

    __tablename__ = "routing_tables"

    deployment: Mapped[str] = mapped_column(ForeignKey("deployments.name"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    promotion: Mapped[str | None] = mapped_column(ForeignKey("promotions.id"))
    json: Mapped[str] = mapped_column(Text)
    at: Mapped[datetime]


class TrafficRow(Base):
    """One request as one build answered it. `job` is the evaluation that took it up."""

    __tablename__ = "traffic"
    __table_args__ = (
        Index("ix_traffic_promotion_attempt_job", "promotion", "attempt", "job", "id"),
        UniqueConstraint("deployment", "request_id", "role"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    request_id: Mapped[str]
    deployment: Mapped[str] = mapped_column(ForeignKey("deployments.name"))
    promotion: Mapped[str | None] = mapped_column(ForeignKey("promotions.id"))
    stage: Mapped[str | None]
    step: Mapped[int | None]
    attempt: Mapped[int | None]
    at: Mapped[datetime]
    prompt_ids: Mapped[list[int]]
    output_ids: Mapped[list[int]]
    attributes: Mapped[dict[str, Any]]
    served_by: Mapped[str]
    role: Mapped[str]
    latency_s: Mapped[float | None]
    ttft_s: Mapped[float | None]
    ok: Mapped[bool]
    dual: Mapped[bool]
    job: Mapped[int | None] = mapped_column(ForeignKey("jobs.id"))


class OutboxRow(Base):
    """A domain event, written in the transaction it tells of, until a relay publishes it."""

    __tablename__ = "outbox"
    __table_args__ = (
        Index("ix_outbox_unpublished", "seq", sqlite_where=text("published_at IS NULL"),
              postgresql_where=text("published_at IS NULL")),
    )  # fmt: skip

    seq: Mapped[int] = mapped_column(primary_key=True)
    event_id: Mapped[str] = mapped_column(unique=True)
    type: Mapped[str]
    deployment: Mapped[str]
    promotion: Mapped[str]
    version: Mapped[int]
    payload: Mapped[dict[str, Any]]
    at: Mapped[datetime]
    published_at: Mapped[datetime | None]


class AuditRow(Base):
    """Who did what to what, and why; only ever appended to."""

    __tablename__ = "audit"
    __table_args__ = (Index("ix_audit_subject_seq", "subject", "seq"),)

    seq: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    actor: Mapped[str]
    action: Mapped[str]
    subject: Mapped[str]
    detail: Mapped[dict[str, Any]]
