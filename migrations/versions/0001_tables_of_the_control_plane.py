"""Tables of the control plane"""

import sqlalchemy as sa
from alembic import op


revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_audit")),
    )
    op.create_index("ix_audit_subject_seq", "audit", ["subject", "seq"], unique=False)
    op.create_table(
        "checkpoints",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("weights_digest", sa.String(), nullable=False),
        sa.Column("tokenizer_digest", sa.String(), nullable=False),
        sa.Column("chat_template_digest", sa.String(), nullable=False),
        sa.Column("config_digest", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoints")),
        sa.UniqueConstraint("name", name=op.f("uq_checkpoints_name")),
    )
    op.create_index(op.f("ix_checkpoints_digest"), "checkpoints", ["digest"], unique=False)
    op.create_table(
        "contracts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("yaml", sa.Text(), nullable=False),
        sa.Column("json", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_contracts")),
        sa.UniqueConstraint("digest", name=op.f("uq_contracts_digest")),
        sa.UniqueConstraint("name", "version", name=op.f("uq_contracts_name_version")),
    )
    op.create_table(
        "kernel_builds",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_kernel_builds")),
        sa.UniqueConstraint("name", name=op.f("uq_kernel_builds_name")),
    )
    op.create_index(op.f("ix_kernel_builds_digest"), "kernel_builds", ["digest"], unique=False)
    op.create_table(
        "outbox",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("event_id", sa.String(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("deployment", sa.String(), nullable=False),
        sa.Column("promotion", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("published_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_outbox")),
        sa.UniqueConstraint("event_id", name=op.f("uq_outbox_event_id")),
    )
    op.create_index(
        "ix_outbox_unpublished",
        "outbox",
        ["seq"],
        unique=False,
        sqlite_where=sa.text("published_at IS NULL"),
        postgresql_where=sa.text("published_at IS NULL"),
    )
    op.create_table(
        "suites",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("prompts", sa.Integer(), nullable=False),
        sa.Column("tokenizer_digest", sa.String(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_suites")),
        sa.UniqueConstraint("name", name=op.f("uq_suites_name")),
    )
    op.create_index(op.f("ix_suites_digest"), "suites", ["digest"], unique=False)
    op.create_table(
        "deployments",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("declared_known_good", sa.String(), nullable=False),
        sa.Column("known_good_build", sa.String(), nullable=False),
        sa.Column("known_good_healthy", sa.Boolean(), nullable=False),
        sa.Column("endpoints", sa.JSON(), nullable=False),
        sa.Column("gateway", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["declared_known_good"], ["kernel_builds.name"], name=op.f("fk_deployments_declared_known_good")
        ),
        sa.ForeignKeyConstraint(
            ["known_good_build"], ["kernel_builds.name"], name=op.f("fk_deployments_known_good_build")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deployments")),
        sa.UniqueConstraint("name", name=op.f("uq_deployments_name")),
    )
    op.create_table(
        "promotions",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("deployment", sa.String(), nullable=False),
        sa.Column("contract", sa.String(), nullable=False),
        sa.Column("checkpoint", sa.String(), nullable=False),
        sa.Column("train_build", sa.String(), nullable=False),
        sa.Column("inference_build", sa.String(), nullable=False),
        sa.Column("known_good_build", sa.String(), nullable=False),
        sa.Column("suite", sa.String(), nullable=False),
        sa.Column("comparison", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("stage", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["checkpoint"], ["checkpoints.name"], name=op.f("fk_promotions_checkpoint")),
        sa.ForeignKeyConstraint(["contract"], ["contracts.digest"], name=op.f("fk_promotions_contract")),
        sa.ForeignKeyConstraint(["deployment"], ["deployments.name"], name=op.f("fk_promotions_deployment")),
        sa.ForeignKeyConstraint(
            ["inference_build"], ["kernel_builds.name"], name=op.f("fk_promotions_inference_build")
        ),
        sa.ForeignKeyConstraint(
            ["known_good_build"], ["kernel_builds.name"], name=op.f("fk_promotions_known_good_build")
        ),
        sa.ForeignKeyConstraint(["suite"], ["suites.name"], name=op.f("fk_promotions_suite")),
        sa.ForeignKeyConstraint(
            ["train_build"], ["kernel_builds.name"], name=op.f("fk_promotions_train_build")
        ),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_promotions")),
        sa.UniqueConstraint("id", name=op.f("uq_promotions_id")),
    )
    op.create_index("ix_promotions_deployment_seq", "promotions", ["deployment", "seq"], unique=False)
    op.create_index("ix_promotions_status", "promotions", ["status"], unique=False)
    op.create_index(
        "uq_promotions_active_deployment",
        "promotions",
        ["deployment"],
        unique=True,
        sqlite_where=sa.text("status NOT IN ('aborted', 'expired', 'superseded')"),
        postgresql_where=sa.text("status NOT IN ('aborted', 'expired', 'superseded')"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("task", sa.String(), nullable=False),
        sa.Column("queue", sa.String(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("promotion", sa.String(), nullable=False),
        sa.Column("stage", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=True),
        sa.Column("leases", sa.Integer(), nullable=False),
        sa.Column("fencing_token", sa.Integer(), nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["promotion"], ["promotions.id"], name=op.f("fk_jobs_promotion")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index("ix_jobs_promotion_attempt", "jobs", ["promotion", "attempt"], unique=False)
    op.create_index("ix_jobs_queue_state_id", "jobs", ["queue", "state", "id"], unique=False)
    op.create_table(
        "routing_tables",
        sa.Column("deployment", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("promotion", sa.String(), nullable=True),
        sa.Column("json", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["deployment"], ["deployments.name"], name=op.f("fk_routing_tables_deployment")
        ),
        sa.ForeignKeyConstraint(["promotion"], ["promotions.id"], name=op.f("fk_routing_tables_promotion")),
        sa.PrimaryKeyConstraint("deployment", "version", name=op.f("pk_routing_tables")),
    )
    op.create_table(
        "transitions",
        sa.Column("promotion", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("event_type", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["promotion"], ["promotions.id"], name=op.f("fk_transitions_promotion")),
        sa.PrimaryKeyConstraint("promotion", "version", name=op.f("pk_transitions")),
    )
    op.create_table(
        "evidence",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("promotion", sa.String(), nullable=False),
        sa.Column("job", sa.Integer(), nullable=False),
        sa.Column("stage", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("stale", sa.Boolean(), nullable=False),
        sa.Column("prompts", sa.Integer(), nullable=False),
        sa.Column("json", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_evidence_job")),
        sa.ForeignKeyConstraint(["promotion"], ["promotions.id"], name=op.f("fk_evidence_promotion")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evidence")),
    )
    op.create_index("ix_evidence_digest", "evidence", ["digest"], unique=False)
    op.create_index(
        "ix_evidence_promotion_attempt", "evidence", ["promotion", "attempt", "kind"], unique=False
    )
    op.create_table(
        "traffic",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("deployment", sa.String(), nullable=False),
        sa.Column("promotion", sa.String(), nullable=True),
        sa.Column("stage", sa.String(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("prompt_ids", sa.JSON(), nullable=False),
        sa.Column("output_ids", sa.JSON(), nullable=False),
        sa.Column("attributes", sa.JSON(), nullable=False),
        sa.Column("served_by", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("latency_s", sa.Double(), nullable=True),
        sa.Column("ttft_s", sa.Double(), nullable=True),
        sa.Column("ok", sa.Boolean(), nullable=False),
        sa.Column("dual", sa.Boolean(), nullable=False),
        sa.Column("job", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["deployment"], ["deployments.name"], name=op.f("fk_traffic_deployment")),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_traffic_job")),
        sa.ForeignKeyConstraint(["promotion"], ["promotions.id"], name=op.f("fk_traffic_promotion")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_traffic")),
        sa.UniqueConstraint(
            "deployment", "request_id", "role", name=op.f("uq_traffic_deployment_request_id_role")
        ),
    )
    op.create_index(
        "ix_traffic_promotion_attempt_job", "traffic", ["promotion", "attempt", "job", "id"], unique=False
    )
    op.create_table(
        "judgements",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("evidence", sa.Integer(), nullable=False),
        sa.Column("evidence_digest", sa.String(), nullable=False),
        sa.Column("promotion", sa.String(), nullable=False),
        sa.Column("stage", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("judge_version", sa.String(), nullable=False),
        sa.Column("prompts", sa.Integer(), nullable=False),
        sa.Column("converged", sa.Boolean(), nullable=True),
        sa.Column("level", sa.String(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("json", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["evidence"], ["evidence.id"], name=op.f("fk_judgements_evidence")),
        sa.ForeignKeyConstraint(["promotion"], ["promotions.id"], name=op.f("fk_judgements_promotion")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_judgements")),
    )
    op.create_index("ix_judgements_promotion_id", "judgements", ["promotion", "id"], unique=False)
    op.create_table(
        "verdicts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("judgement", sa.Integer(), nullable=False),
        sa.Column("clause", sa.String(), nullable=False),
        sa.Column("slice", sa.String(), nullable=False),
        sa.Column("phase", sa.String(), nullable=True),
        sa.Column("metric", sa.String(), nullable=False),
        sa.Column("verdict", sa.String(), nullable=False),
        sa.Column("level", sa.String(), nullable=False),
        sa.Column("observed", sa.Double(), nullable=True),
        sa.Column("limit", sa.Double(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("json", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["judgement"], ["judgements.id"], name=op.f("fk_verdicts_judgement")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_verdicts")),
    )
    op.create_index("ix_verdicts_judgement_id", "verdicts", ["judgement", "id"], unique=False)


def downgrade() -> None:
    op.drop_table("verdicts")
    op.drop_table("judgements")
    op.drop_table("traffic")
    op.drop_table("evidence")
    op.drop_table("transitions")
    op.drop_table("routing_tables")
    op.drop_table("jobs")
    op.drop_table("promotions")
    op.drop_table("deployments")
    op.drop_table("suites")
    op.drop_table("outbox")
    op.drop_table("kernel_builds")
    op.drop_table("contracts")
    op.drop_table("checkpoints")
    op.drop_table("audit")
