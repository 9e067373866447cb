"""What a measurement of a promotion consists of: jobs built from what the promotion is bound to."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from app.db import repositories
from app.db.models import CheckpointRow, ContractRow, JobRow, KernelBuildRow, PromotionRow, SuiteRow
from app.services import jobs
from app.services.specs import EvaluationSpec, TrafficRequest
from contracts.model import Stage
from contracts.promotion import Measure


def contract_row(session: Session, promotion: PromotionRow) -> ContractRow:
    """The contract a promotion is pinned to."""
    row = repositories.contract_by_digest(session, promotion.contract)
    assert row is not None  # noqa: S101 - held by a foreign key
    return row


def begin(session: Session, promotion: PromotionRow, measure: Measure) -> None:
    """Begin measuring: offline CI has its suite at once, the live stages wait for traffic."""
    if measure.stage is Stage.OFFLINE_CI:
        enqueue(session, promotion, measure)


def enqueue(
    session: Session,
    promotion: PromotionRow,
    measure: Measure,
    requests: Sequence[TrafficRequest] | None = None,
) -> JobRow:
    """Enqueue one evaluation: of the suite in offline CI, of `requests` in the live stages."""
    contract = contract_row(session, promotion)
    checkpoint = repositories.registered(session, CheckpointRow, promotion.checkpoint)
    train = repositories.registered(session, KernelBuildRow, promotion.train_build)
    inference = repositories.registered(session, KernelBuildRow, promotion.inference_build)
    suite = repositories.registered(session, SuiteRow, promotion.suite)
    baseline = repositories.registered(session, KernelBuildRow, promotion.known_good_build)
    spec = EvaluationSpec(
        contract=contract.yaml,
        contract_digest=contract.digest,
        promotion=promotion.id,
        stage=measure.stage,
        step=measure.step,
        attempt=measure.attempt,
        checkpoint=checkpoint.path,
        checkpoint_digest=checkpoint.digest,
        train=train.spec,
        train_build=train.digest,
        inference=inference.spec,
        inference_build=inference.digest,
        baseline=baseline.spec,
        baseline_build=baseline.digest,
        suite=suite.path if requests is None else None,
        suite_digest=suite.digest,
        requests=None if requests is None else tuple(requests),
    )
    return jobs.enqueue(session, spec)
