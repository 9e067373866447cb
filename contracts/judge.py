"""The judge: (contract, evidence) to verdicts and C-convergence [S].

Pure and deterministic: the same evidence under the same contract and `JUDGE_VERSION` gives
the same judgement, byte for byte.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from contracts import phrases
from contracts.correction import bonferroni, e_bh, holm
from contracts.drift_findings import every_finding, mean_finding, soft_finding
from contracts.evidence import Cell, Evidence
from contracts.finding import Finding, Setting, blank_finding
from contracts.metrics import METRICS, Shape
from contracts.model import Certainty, Clause, ClauseKind, Contract, Phase, Reward, Stage
from contracts.paired_findings import paired_finding
from contracts.reductions import limits_mean, phases_of
from contracts.service_findings import count_finding, gauge_finding, runtime_finding
from contracts.two_sided import between, sides
from contracts.verdicts import Interval, Judgement, Outcome, Verdict

JUDGE_VERSION = "2"
_DIGITS = 12  # verdicts keep this many, so that they do not hang on the last bit of a library


class WrongContract(ValueError):
    """Evidence measured under another contract than the one it is judged by."""


@dataclass(frozen=True)
class _Case:
    """One clause on one slice in one phase."""

    clause: Clause
    slice: str
    phase: Phase | None
    cell: Cell | None
    finding: Finding
    truncated: bool = False


def judge(contract: Contract, evidence: Evidence, *, contract_digest: str) -> Judgement:
    """Judge all clauses of the evidence's stage on all their slices and phases, once each.

    HOLDS is certified at alpha each, as an intersection-union test; alarms are corrected over
    all cells as the contract states, except certain ones: a counterexample to a hard clause on
    each decision, a gauge, a census [S4]. Raises WrongContract when the evidence was measured
    under another contract.
    """
    if evidence.provenance.contract != contract_digest:
        raise WrongContract(
            f"evidence was measured under contract {evidence.provenance.contract}, not {contract_digest}; "
            "measure again under this contract"
        )
    stage = evidence.provenance.stage
    setting = Setting.of(contract, stage)
    cells = {cell.key: cell for cell in evidence.cells}
    truncated = any(cell.upper is not None for cell in evidence.cells)
    cases = [
        _Case(clause, name, phase, cell, find(clause, cell, setting, contract.reward), truncated)
        for clause in contract.clauses_at(stage)
        for name in clause.slices
        for phase in phases_of(clause)
        for cell in [cells.get((clause.id, name, phase or ""))]
    ]
    alarms = _alarms(cases, contract.certainty)
    digest = evidence.digest
    verdicts = tuple(
        _verdict(case, alarm, contract, evidence, digest) for case, alarm in zip(cases, alarms, strict=True)
    )
    failed = [v for v in verdicts if _fails(v)]
    return Judgement(
        judge_version=JUDGE_VERSION,
        contract_digest=contract_digest,
        evidence_digest=digest,
        stage=stage,
        prompts=evidence.prompts,
        converged=_converged(verdicts),
        level=max((v.level for v in failed), default=None),
        reason=_summary(verdicts, stage),
        verdicts=verdicts,
    )


def find(clause: Clause, cell: Cell | None, setting: Setting, reward: Reward | None = None) -> Finding:
    """Judge one cell by the shape of the clause's metric; `n == 0` means nothing was seen.

    `reward` is the contract's section, which `reward_drift` needs.
    """
    blank = blank_finding(clause)
    if cell is None:
        return blank
    if cell.upper is not None:
        low, high = (find(clause, side, setting, reward) for side in sides(cell))
        return between(clause, cell, low, high)
    shape = METRICS[clause.metric].shape
    if shape is Shape.GAUGE:
        return gauge_finding(clause, cell, setting, blank)
    if shape is Shape.COUNT:
        return count_finding(clause, cell, setting, blank)
    if shape is Shape.RUNTIME:
        return runtime_finding(clause, cell, setting, blank)
    if shape is Shape.PAIRED:
        return paired_finding(clause, cell, setting, blank, reward)
    if clause.kind is ClauseKind.SOFT:
        return soft_finding(clause, cell, setting, blank)
    return (mean_finding if limits_mean(clause) else every_finding)(clause, cell, setting, blank)


def _alarms(cases: list[_Case], certainty: Certainty) -> list[bool]:
    """Which cases are violated, after correction for all that could be by chance."""
    uncertain = [i for i, case in enumerate(cases) if not case.finding.certain]
    rejected = [case.finding.certain for case in cases]
    if not uncertain:
        return rejected
    p_values = [cases[i].finding.p_value for i in uncertain]
    if certainty.alarm_correction == "holm":
        found = holm(p_values, certainty.alpha)
    elif certainty.alarm_correction == "bonferroni":
        found = bonferroni(p_values, certainty.alpha)
    elif certainty.alarm_correction == "e-bh":
        found = e_bh([cases[i].finding.log_e for i in uncertain], certainty.alpha)
    else:
        found = [p < certainty.alpha for p in p_values]
    for i, alarm in zip(uncertain, found, strict=True):
        rejected[i] = alarm
    return rejected


def _verdict(case: _Case, alarm: bool, contract: Contract, evidence: Evidence, digest: str) -> Verdict:
    clause, finding = case.clause, case.finding
    least = contract.stages.min_prompts(evidence.provenance.stage)
    outcome, reason, needed = _outcome(case, alarm, evidence.prompts, least, contract.certainty)
    return Verdict(
        clause=clause.id,
        family=clause.family,
        metric=clause.metric,
        statistic=finding.statistic,
        unit=finding.unit,
        kind=clause.kind,
        level=clause.level,
        slice=case.slice,
        phase=case.phase,
        verdict=outcome,
        observed=_tidy(finding.observed),
        comparator=finding.comparator,
        limit=finding.limit,
        threshold=finding.threshold,
        n=finding.n,
        needed=needed,
        interval=Interval(low=_tidy(finding.low), high=_tidy(finding.high)),
        alpha=0.0 if finding.method in {"census", "gauge"} else contract.certainty.alpha,
        method=finding.method,
        reason=reason,
        evidence_digest=digest,
    )


def _outcome(
    case: _Case, alarm: bool, prompts: int, least: int, certainty: Certainty
) -> tuple[Outcome, str, int | None]:
    finding, cell = case.finding, case.cell
    missed = cell.unmeasurable if cell is not None else None
    sentence = finding.sentence
    if missed is not None and missed.count:
        broken = phrases.counted(missed.count, "decision") + " could not be measured"
        if missed.first:
            broken += f", first {phrases.places(missed.first, missed.count)}"
        sentence = f"{broken}; {sentence}" if sentence else broken
    if alarm:
        return Outcome.VIOLATED, sentence, None
    if missed is not None and missed.count:
        return Outcome.UNMEASURABLE, sentence, None
    if not finding.n:
        return Outcome.NO_DATA, _absent(case), None
    if finding.holds and prompts >= least:
        return Outcome.HOLDS, sentence, None
    if finding.holds:
        return Outcome.INCONCLUSIVE, f"{sentence}; the stage asks for at least {least:,} prompts", least
    if finding.p_value < certainty.alpha:
        return (
            Outcome.INCONCLUSIVE,
            f"{sentence}; beyond its limit on its own (p = {finding.p_value:.2g}), but no alarm once "
            f"corrected for all cells ({certainty.alarm_correction})",
            None,
        )
    needed = finding.needed()
    if needed is not None and finding.method == "counterexample":
        enough = f"{phrases.counted(needed, finding.noun)} without a counterexample certify it"
        return Outcome.INCONCLUSIVE, f"{sentence}; {enough}", needed
    if needed is None or needed <= finding.n:
        return Outcome.INCONCLUSIVE, f"{sentence}; not decided", None
    more = f"about {phrases.counted(needed, finding.noun)} would decide at this rate"
    return Outcome.INCONCLUSIVE, f"{sentence}; not decided, {more}", needed


def _absent(case: _Case) -> str:
    where = f"slice {case.slice}" + (f", phase {case.phase.value}" if case.phase else "")
    hint = "; truncated log-probabilities do not give it" if case.truncated and case.phase else ""
    return f"no data: {case.clause.metric} was not measured on any {case.finding.noun} in {where}{hint}"


def _fails(verdict: Verdict) -> bool:
    hard = verdict.kind is ClauseKind.HARD
    return verdict.verdict is Outcome.VIOLATED or (hard and verdict.verdict is Outcome.UNMEASURABLE)


def _converged(verdicts: tuple[Verdict, ...]) -> bool | None:
    if any(_fails(v) for v in verdicts):
        return False
    return True if verdicts and all(v.verdict is Outcome.HOLDS for v in verdicts) else None


def _summary(verdicts: tuple[Verdict, ...], stage: Stage) -> str:
    if not verdicts:
        return f"no clause is judged at stage {stage.value}"
    worst = sorted((v for v in verdicts if _fails(v)), key=lambda v: v.level, reverse=True)
    open_ones = [v for v in verdicts if v.verdict is not Outcome.HOLDS]
    if not open_ones:
        return f"all {len(verdicts)} clauses hold on every slice and phase"
    first = (worst or open_ones)[0]
    where = f"{first.clause} on {first.slice}" + (f" ({first.phase.value})" if first.phase else "")
    counts = f"{len(worst or open_ones)} of {len(verdicts)} {'violated' if worst else 'undecided'}"
    return f"{counts}: {where} {first.verdict.value}: {first.reason}"


def _tidy(value: float | None) -> float | None:
    """Finite and rounded to `_DIGITS` significant digits, or None."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{_DIGITS}g}")
