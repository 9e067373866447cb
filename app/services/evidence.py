"""Evidence comes in: stored, merged with the attempt's earlier shards, judged, and acted on.

All in one transaction, so that a violation and what it leads to are never apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from sqlalchemy.orm import Session

from app.db import repositories
from app.db.clock import now
from app.db.models import EvidenceRow, JobRow, JudgementRow, PromotionRow, VerdictRow
from app.errors import EvidenceRefused, NotFound
from app.services import jobs, measurements, promotions, traffic
from app.services.jobs import Lease
from contracts.accumulators import EvidenceMismatch, Gauge
from contracts.escalation import violated_slices
from contracts.evidence import Cell, Evidence
from contracts.judge import judge
from contracts.model import Contract, Stage
from contracts.promotion import TERMINAL, Bound, Judged, MeasurementFailed, Transition
from contracts.slices import matches
from contracts.verdicts import Judgement

TELEMETRY_AGE = "telemetry_age"
_NEWEST = 1000  # requests looked at for the newest one of each slice

FailedOutcome = Literal["ERROR", "CANCELLED", "TIMED_OUT", "NO_DATA"]


def record(session: Session, lease: Lease, evidence: Evidence) -> Transition | None:
    """Take in what a worker measured under a lease; the job is done with it.

    Evidence of an attempt the promotion has left is stored as stale and changes nothing;
    None is returned then.

    Raises:
        LeaseLost: the lease expired or was taken over; nothing is stored.
        EvidenceRefused: it describes another experiment than the job, or a shard counted
            before; nothing is stored.
    """
    job = jobs.reportable(session, lease)
    if evidence.provenance != lease.spec.provenance:
        raise EvidenceRefused(
            f"job {job.id} measures {lease.spec.provenance!r}, the evidence is of {evidence.provenance!r}"
        )
    promotion = repositories.promotion(session, job.promotion, lock=True)
    assert promotion is not None  # noqa: S101 - held by a foreign key
    if _stale(job, promotion):
        _store(session, job, evidence, kind="shard", stale=True)
        if job.state == "leased":
            jobs.complete(session, lease)
        return None
    contract = Contract.model_validate_json(measurements.contract_row(session, promotion).json)
    evidence = _with_telemetry_age(session, promotion, contract, evidence)
    row = _store(session, job, evidence, kind="shard", stale=False)
    merged = _merge(session, job, evidence)
    if merged.shards != evidence.shards:
        row = _store(session, job, merged, kind="merged", stale=False)
    judgement = judge(contract, merged, contract_digest=promotion.contract)
    _store_judgement(session, row, judgement)
    jobs.complete(session, lease)
    return promotions.apply(session, promotion.id, _event(promotion, job, merged, judgement))


def measurement_failed(
    session: Session, lease: Lease, outcome: FailedOutcome, reason: str
) -> Transition | None:
    """A worker could not measure: the job ends, the promotion is told. None when it moved on.

    Raises LeaseLost when the lease is no longer held.
    """
    job = jobs.reportable(session, lease)
    if job.state == "cancelled":
        return None
    jobs.fail(session, lease, reason)
    return _tell_failed(session, job, outcome, reason)


def time_out(session: Session) -> list[Transition]:
    """Requeue what silent workers held; what had all its leases counts as TIMED_OUT."""
    told = (_tell_failed(session, job, "TIMED_OUT", job.error or "") for job in jobs.reap(session))
    return [transition for transition in told if transition is not None]


def rejudge(session: Session, judgement: JudgementRow) -> Judgement:
    """Judge recorded evidence again; with the same judge version it is the same to the byte."""
    promotion = promotions.get(session, judgement.promotion)
    row = session.get_one(EvidenceRow, judgement.evidence)
    contract = Contract.model_validate_json(measurements.contract_row(session, promotion).json)
    evidence = Evidence.read(row.json)
    return judge(contract, evidence, contract_digest=promotion.contract)


def of(session: Session, promotion_id: str) -> Sequence[EvidenceRow]:
    """Evidence of a promotion, oldest first, stale and merged ones too. Raises NotFound."""
    promotions.get(session, promotion_id)
    return repositories.evidence(session, promotion_id)


def one(session: Session, promotion_id: str, digest: str) -> EvidenceRow:
    """Evidence by its digest. Raises NotFound."""
    row = repositories.evidence_by_digest(session, promotion_id, digest)
    if row is None:
        raise NotFound(f"promotion {promotion_id} has no evidence {digest}")
    return row


def judgements(session: Session, promotion_id: str) -> list[Judgement]:
    """Every judgement of a promotion with its verdicts, oldest first. Raises NotFound."""
    return [Judgement.model_validate_json(row.json) for row in judgement_rows(session, promotion_id)]


def judgement_rows(session: Session, promotion_id: str) -> Sequence[JudgementRow]:
    """The rows of :func:`judgements`, which know step, attempt and time."""
    promotions.get(session, promotion_id)
    return repositories.judgements(session, promotion_id)


def _stale(job: JobRow, promotion: PromotionRow) -> bool:
    state = promotion.state
    return (
        job.state == "cancelled"
        or state.status in TERMINAL
        or (job.stage, job.step, job.attempt) != (state.stage, state.step, state.attempt)
    )


def _store(session: Session, job: JobRow, evidence: Evidence, *, kind: str, stale: bool) -> EvidenceRow:
    row = EvidenceRow(
        digest=evidence.digest,
        kind=kind,
        promotion=job.promotion,
        job=job.id,
        stage=job.stage,
        step=job.step,
        attempt=job.attempt,
        stale=stale,
        prompts=evidence.prompts,
        json=evidence.canonical().decode(),
        at=now(session),
    )
    return repositories.add(session, row)


def _merge(session: Session, job: JobRow, evidence: Evidence) -> Evidence:
    earlier = repositories.latest_judged(session, job.promotion, job.stage, job.step, job.attempt)
    if earlier is None:
        return evidence
    try:
        return Evidence.read(earlier.json).merge(evidence)
    except EvidenceMismatch as error:
        raise EvidenceRefused(f"job {job.id}: {error}") from None


def _with_telemetry_age(
    session: Session, promotion: PromotionRow, contract: Contract, evidence: Evidence
) -> Evidence:
    """Add the age, in seconds by the database's clock, of each slice's newest request."""
    clauses = [c for c in contract.clauses_at(promotion.state.stage) if c.metric == TELEMETRY_AGE]
    if not clauses:
        return evidence
    at = now(session)
    rows = repositories.newest_traffic(session, promotion.id, promotion.state.attempt, _NEWEST)
    seen = [(row.at, traffic.attributes(row)) for row in rows]
    cells = {cell.key: cell for cell in evidence.cells}
    for clause in clauses:
        for name in clause.slices:
            where = contract.slice_named(name)
            newest = next((when for when, attributes in seen if matches(where, attributes)), None)
            cell = _age_cell(clause.id, name, newest, at)
            if cell is not None:
                cells[cell.key] = cell
    return evidence.model_copy(update={"cells": tuple(cells[key] for key in sorted(cells))})


def _age_cell(clause: str, slice: str, newest: datetime | None, at: datetime) -> Cell | None:
    if newest is None:
        return None
    age = max(0.0, (at - newest).total_seconds())
    return Cell(clause=clause, slice=slice, phase=None, gauge=Gauge(low=age, high=age))


def _store_judgement(session: Session, row: EvidenceRow, judgement: Judgement) -> None:
    stored = repositories.add(
        session,
        JudgementRow(
            evidence=row.id,
            evidence_digest=judgement.evidence_digest,
            promotion=row.promotion,
            stage=row.stage,
            step=row.step,
            attempt=row.attempt,
            judge_version=judgement.judge_version,
            prompts=judgement.prompts,
            converged=judgement.converged,
            level=judgement.level.value if judgement.level else None,
            reason=judgement.reason,
            json=judgement.model_dump_json(),
            at=now(session),
        ),
    )
    session.add_all(
        VerdictRow(
            judgement=stored.id,
            clause=verdict.clause,
            slice=verdict.slice,
            phase=verdict.phase.value if verdict.phase else None,
            metric=verdict.metric,
            verdict=verdict.verdict.value,
            level=verdict.level.value,
            observed=verdict.observed,
            limit=verdict.limit,
            n=verdict.n,
            json=verdict.model_dump_json(),
        )
        for verdict in judgement.verdicts
    )
    session.flush()


def _event(promotion: PromotionRow, job: JobRow, evidence: Evidence, judgement: Judgement) -> Judged:
    violated = judgement.converged is False
    return Judged(
        bound=_bound(evidence),
        stage=promotion.state.stage,
        step=job.step,
        attempt=job.attempt,
        prompts=judgement.prompts,
        converged=judgement.converged,
        level=judgement.level if violated else None,
        # Guarding acts on the slices of the worst level; milder violations have milder actions.
        violated_slices=violated_slices(judgement, judgement.level) if violated else (),
        evidence_digest=judgement.evidence_digest,
        complete=promotion.state.stage is Stage.OFFLINE_CI,  # one job measures the whole suite
        reason=judgement.reason,
    )


def _bound(evidence: Evidence) -> Bound:
    by = evidence.provenance
    return Bound(
        contract=by.contract,
        checkpoint=by.checkpoint,
        train_build=by.train_build,
        inference_build=by.inference_build,
        suite=by.suite,
        known_good_build=by.baseline_build,
    )


def _tell_failed(session: Session, job: JobRow, outcome: FailedOutcome, reason: str) -> Transition | None:
    promotion = repositories.promotion(session, job.promotion, lock=True)
    assert promotion is not None  # noqa: S101 - held by a foreign key
    if _stale(job, promotion):
        return None
    state = promotion.state
    place = {"stage": state.stage, "step": state.step, "attempt": state.attempt}
    event = MeasurementFailed.model_validate({**place, "outcome": outcome, "reason": reason})
    return promotions.apply(session, promotion.id, event)
