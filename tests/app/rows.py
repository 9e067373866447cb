"""Rows for tests that start from a populated database, written without the services that make them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

import contracts
from app.db.models import (
    Base,
    CheckpointRow,
    ContractRow,
    DeploymentRow,
    EvidenceRow,
    JobRow,
    JudgementRow,
    KernelBuildRow,
    PromotionRow,
    RoutingRow,
    SuiteRow,
    TransitionRow,
)
from app.db.session import Database
from contracts.document import read
from contracts.model import Stage, StagePlans
from contracts.promotion import Bound, Promotion
from contracts.routing import Mode, RoutingTable
from contracts.verdicts import Judgement, Verdict

NOW = datetime(2026, 12, 1, 9, 30, 5, tzinfo=UTC)
STEADY, CANDIDATE, TRAIN = "serving-fp32", "serving-bf16", "torch-fp32"
TARGET = "coder"


def digest(letter: str) -> str:
    return "sha256:" + (letter * 64)[:64]


BOUND = Bound(
    contract=digest("a1"),
    checkpoint=digest("b2"),
    train_build=digest("c3"),
    inference_build=digest("d4"),
    suite=digest("e5"),
    known_good_build=digest("f6"),
)


def contract_json() -> str:
    text = (Path(contracts.__file__).parent / "examples" / "coder-bf16.yaml").read_bytes()
    return read(text).contract.model_dump_json(by_alias=True, exclude_none=True)


def database(folder: Path) -> Database:
    """A database of its own with a clock that stands still at NOW."""
    opened = Database(f"sqlite:///{folder / 'kc.db'}", clock=lambda _: NOW)
    Base.metadata.create_all(opened.engine)
    return opened


def registered(session: Session, endpoints: dict[str, str] | None = None) -> None:
    """Everything a promotion of TARGET refers to."""
    session.add(
        ContractRow(
            name="coder-bf16",
            version="1.2.0",
            digest=BOUND.contract,
            yaml="",
            json=contract_json(),
            created_at=NOW,
        )
    )
    session.add(
        CheckpointRow(
            name="smollm2",
            digest=BOUND.checkpoint,
            path="/nowhere",
            weights_digest=digest("1"),
            tokenizer_digest=digest("2"),
            chat_template_digest=digest("3"),
            config_digest=digest("4"),
            created_at=NOW,
        )
    )
    builds = {STEADY: BOUND.known_good_build, CANDIDATE: BOUND.inference_build, TRAIN: BOUND.train_build}
    for name, content in builds.items():
        session.add(KernelBuildRow(name=name, digest=content, spec="torch", created_at=NOW))
    session.add(
        SuiteRow(
            name="stdlib",
            digest=BOUND.suite,
            path="/nowhere",
            prompts=124,
            tokenizer_digest=digest("2"),
            created_at=NOW,
        )
    )
    session.flush()
    session.add(
        DeploymentRow(
            declared_known_good=STEADY,
            name=TARGET,
            known_good_build=STEADY,
            endpoints=endpoints or {},
            gateway={},
            created_at=NOW,
            updated_at=NOW,
        )
    )
    session.flush()


def state(id: str = "p1", **fields: Any) -> Promotion:
    known: dict[str, Any] = {
        "target": TARGET,
        "bound": BOUND,
        "plans": StagePlans(),
        "escalation": {},
        "started_at": NOW - timedelta(hours=3),
        "stage_started_at": NOW - timedelta(minutes=12),
    }
    return Promotion(id=id, **{**known, **fields})


def promotion(session: Session, value: Promotion) -> None:
    """A promotion and its start."""
    session.add(
        PromotionRow(
            id=value.id,
            deployment=value.target,
            contract=value.bound.contract,
            checkpoint="smollm2",
            train_build=TRAIN,
            inference_build=CANDIDATE,
            known_good_build=STEADY,
            suite="stdlib",
            state=value,
            stage=value.stage.value,
            status=value.status.value,
            version=value.version,
            created_at=NOW,
            updated_at=NOW,
            created_by="ana",
        )
    )
    session.flush()


def transition(session: Session, value: Promotion, event_type: str, reason: str, actor: str = "ana") -> None:
    session.add(
        TransitionRow(
            promotion=value.id,
            version=value.version,
            event="{}",
            event_type=event_type,
            actor=actor,
            reason=reason,
            state=value,
            at=NOW,
        )
    )
    session.flush()


def routed(session: Session, version: int = 1, **fields: Any) -> RoutingTable:
    """A routing table of TARGET; its mode follows from what is given."""
    known: dict[str, Any] = {"target": TARGET, "version": version, "known_good": STEADY}
    if "mode" in fields and fields["mode"] is not Mode.KNOWN_GOOD:
        known |= {"candidate": CANDIDATE, "audit_rate": 1.0}
    table = RoutingTable(**{**known, **fields})
    session.add(
        RoutingRow(
            deployment=TARGET,
            version=version,
            promotion=table.promotion,
            json=table.model_dump_json(by_alias=True),
            at=NOW,
        )
    )
    session.flush()
    return table


def judgement(
    session: Session,
    value: Promotion,
    verdicts: tuple[Verdict, ...],
    *,
    converged: bool | None,
    reason: str = "",
    stage: Stage | None = None,
    step: int | None = None,
) -> None:
    """A judgement of a promotion's stage, the present one unless said otherwise."""
    stage, step = stage or value.stage, value.step if step is None else step
    where: dict[str, Any] = {
        "promotion": value.id,
        "stage": stage.value,
        "step": step,
        "attempt": value.attempt,
    }
    job = JobRow(
        task="t", queue="q", spec="{}", state="done", leases=1, fencing_token=1, created_at=NOW, **where
    )
    session.add(job)
    session.flush()
    evidence = EvidenceRow(
        digest=digest("9a"), kind="merge", job=job.id, stale=False, prompts=124, json="{}", at=NOW, **where
    )
    session.add(evidence)
    session.flush()
    judged = Judgement(
        judge_version="1",
        contract_digest=BOUND.contract,
        evidence_digest=digest("9a"),
        stage=stage,
        prompts=124,
        converged=converged,
        level=None,
        reason=reason,
        verdicts=verdicts,
    )
    session.add(
        JudgementRow(
            evidence=evidence.id,
            evidence_digest=digest("9a"),
            judge_version="1",
            prompts=124,
            converged=converged,
            level=None,
            reason=reason,
            json=judged.model_dump_json(),
            at=NOW,
            **where,
        )
    )
    session.flush()


def verdict(clause: str = "N2", **fields: Any) -> Verdict:
    known: dict[str, Any] = {
        "family": "numerical",
        "metric": "abs_log_ratio",
        "statistic": "",
        "unit": "nats",
        "kind": "soft",
        "level": "L2",
        "slice": "all",
        "phase": "decode",
        "verdict": "HOLDS",
        "observed": 0.0031,
        "comparator": "lte",
        "limit": 0.01,
        "threshold": 0.18,
        "n": 124,
        "needed": None,
        "interval": {"low": 0.0, "high": 0.0093},
        "alpha": 0.05,
        "method": "betting",
        "reason": "It holds.",
        "evidence_digest": digest("9a"),
    }
    return Verdict.model_validate({"clause": clause, **known, **fields})
