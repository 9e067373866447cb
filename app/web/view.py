"""What a page shows, as values ready to print: built from domain values, free of database and HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from app.web import chart, words
from app.web.words import Mark
from contracts import report
from contracts.compare import LOOSER, Comparison, Direction
from contracts.model import STAGES, Clause, Level, Stage
from contracts.promotion import TERMINAL, Promotion, Status
from contracts.verdicts import Judgement, Outcome, Verdict

_ORDER = {
    Outcome.VIOLATED: 0,
    Outcome.UNMEASURABLE: 1,
    Outcome.NO_DATA: 2,
    Outcome.INCONCLUSIVE: 3,
    Outcome.HOLDS: 4,
}


@dataclass(frozen=True, slots=True)
class Step:
    """One stage of the stepper. `mark.tone` is one of good, active, unsure, bad, still, ahead."""

    stage: Stage
    title: str
    mark: Mark
    detail: str
    current: bool


@dataclass(frozen=True, slots=True)
class PromotionSummary:
    """One promotion as a list shows it; `contract` is name@version, `candidate` a build's name."""

    id: str
    deployment: str
    contract: str
    candidate: str
    mark: Mark
    steps: tuple[Step, ...]
    stage: str
    since: datetime
    reason: str
    active: bool


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """One verdict, formatted; `order` sorts what needs attention to the top."""

    clause: str
    level: str
    promise: str
    meaning: str
    slice: str
    phase: str
    mark: Mark
    observed: str
    limit: str
    interval: str
    n: str
    needed: int | None
    reason: str
    method: str
    alpha: str
    chart: chart.Chart | None
    order: tuple[int, int]

    @property
    def holds(self) -> bool:
        """Whether this row needs no attention."""
        return self.order[0] == _ORDER[Outcome.HOLDS]


@dataclass(frozen=True, slots=True)
class JudgementView:
    """The verdict table of one stage (one canary step), the latest judgement of its attempt."""

    stage: Stage
    title: str
    attempt: int
    mark: Mark
    prompts: int
    tally: str
    reason: str
    evidence_digest: str
    judge_version: str
    rows: tuple[VerdictRow, ...]
    open: bool


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One transition of the promotion."""

    at: datetime
    event: str
    actor: str
    reason: str
    move: str
    tone: str


@dataclass(frozen=True, slots=True)
class Binding:
    """One content digest the evidence is bound to, with the name it is registered under."""

    label: str
    name: str
    digest: str

    @property
    def short(self) -> str:
        """The digest, cut for reading."""
        return words.short(self.digest)


@dataclass(frozen=True, slots=True)
class ComparisonView:
    """The contract beside `against`, the name@version before it; both empty when they promise the same.

    `word` heads what a reader must see, `looser`; it is `Changed` when nothing is plainly looser.
    """

    against: str
    word: str
    looser: tuple[str, ...]
    tighter: tuple[str, ...]


def steps(promotion: Promotion) -> tuple[Step, ...]:
    """The four stages with where the promotion stands in each."""
    return tuple(_step(promotion, stage) for stage in STAGES)


def _step(promotion: Promotion, stage: Stage) -> Step:
    title = words.STAGE_TITLES[stage]
    here = stage is promotion.stage
    if here:
        status = promotion.status
        mark = words.STATUSES[status]
        if status is Status.AWAITING_APPROVAL and promotion.pending_approval is not stage:
            mark = Mark("Passed", "check", "good")
        return Step(stage, title, mark, _detail(promotion, stage), status not in TERMINAL)
    if STAGES.index(stage) < STAGES.index(promotion.stage):
        return Step(stage, title, Mark("Passed", "check", "good"), _overridden(promotion, stage), False)
    if stage is promotion.pending_approval and promotion.status is Status.AWAITING_APPROVAL:
        return Step(stage, title, words.STATUSES[Status.AWAITING_APPROVAL], "", True)
    return Step(stage, title, Mark("Not reached", "ring", "ahead"), "", False)


def _overridden(promotion: Promotion, stage: Stage) -> str:
    by = next((p.overridden_by for p in promotion.passed if p.stage is stage and p.overridden_by), None)
    return f"overridden by {by}" if by else ""


def _detail(promotion: Promotion, stage: Stage) -> str:
    attempt = f"attempt {promotion.attempt}" if promotion.attempt > 1 else ""
    share = canary_share(promotion, promotion.step) if stage is Stage.CANARY else ""
    return " · ".join(part for part in (share, attempt) if part)


def canary_share(promotion: Promotion, step: int) -> str:
    """The canary step for people: `step 2 of 3, 5 % of traffic`."""
    planned = promotion.plans.canary.steps
    if step >= len(planned):
        return ""
    return f"step {step + 1} of {len(planned)}, {words.share(planned[step])} of traffic"


def summary(promotion: Promotion, contract: str, candidate: str) -> PromotionSummary:
    """A promotion for the list; `contract` is name@version, `candidate` the build's name."""
    stage = promotion.pending_approval or promotion.stage
    return PromotionSummary(
        id=promotion.id,
        deployment=promotion.target,
        contract=contract,
        candidate=candidate,
        mark=words.STATUSES[promotion.status],
        steps=steps(promotion),
        stage=words.STAGE_TITLES[stage],
        since=promotion.stage_started_at,
        reason=promotion.reason,
        active=promotion.status not in TERMINAL,
    )


def judgement(
    judged: Judgement, clauses: Mapping[str, Clause], *, promotion: Promotion, step: int, attempt: int
) -> JudgementView:
    """The verdict table of one judgement, what needs attention first; `clauses` are the contract's by id."""
    lines = zip(judged.verdicts, report.rows(judged), strict=True)
    rows = sorted(
        (_verdict(verdict, row, clauses.get(verdict.clause), i) for i, (verdict, row) in enumerate(lines)),
        key=lambda row: row.order,
    )
    share = canary_share(promotion, step) if judged.stage is Stage.CANARY else ""
    title = words.STAGE_TITLES[judged.stage] + (f" · {share}" if share else "")
    return JudgementView(
        stage=judged.stage,
        title=title,
        attempt=attempt,
        mark=words.CONVERGENCE[judged.converged],
        prompts=judged.prompts,
        tally=_tally(judged.verdicts),
        reason=report.headline(judged),
        evidence_digest=judged.evidence_digest,
        judge_version=judged.judge_version,
        rows=tuple(rows),
        open=(judged.stage, step) == (promotion.stage, promotion.step) or judged.converged is False,
    )


def _tally(verdicts: Sequence[Verdict]) -> str:
    counted = {outcome: sum(v.verdict is outcome for v in verdicts) for outcome in _ORDER}
    words_for = {outcome: words.OUTCOMES[outcome].word.lower() for outcome in _ORDER} | {
        Outcome.HOLDS: "hold"
    }
    parts = [f"{n} {words_for[outcome]}" for outcome, n in counted.items() if n]
    return ", ".join(parts) or "no verdicts"


def _verdict(verdict: Verdict, row: report.Row, clause: Clause | None, index: int) -> VerdictRow:
    return VerdictRow(
        clause=verdict.clause,
        level=verdict.level.value,
        promise=words.promise(clause) if clause else row.metric,
        meaning=words.meaning(verdict.metric),
        slice=verdict.slice,
        phase=row.phase,
        mark=words.OUTCOMES[verdict.verdict],
        observed=row.observed,
        limit=row.limit,
        interval=row.interval,
        n=f"{verdict.n:,}",
        needed=verdict.needed,
        reason=verdict.reason,
        method=verdict.method,
        alpha=f"{verdict.alpha:g}",
        chart=chart.draw(verdict),
        order=(_ORDER[verdict.verdict], index - 1000 * _rank(verdict.level)),
    )


def _rank(level: Level) -> int:
    return int(level.value[1:])


def timeline(
    event_type: str, before: Promotion | None, after: Promotion, at: datetime, actor: str, reason: str
) -> TimelineEntry:
    """One transition for people; `before` is None for the start of the promotion."""
    here, there = "" if before is None else _place(before), _place(after)
    return TimelineEntry(
        at=at,
        event=words.EVENTS.get(event_type, event_type),
        actor=actor,
        reason=reason,
        move=f"{here} → {there}" if here and here != there else there,
        tone=words.STATUSES[after.status].tone if here != there else "still",
    )


def _place(promotion: Promotion) -> str:
    title = words.STAGE_TITLES[promotion.stage]
    if promotion.stage is Stage.CANARY:
        title += f" {promotion.step + 1}/{len(promotion.plans.canary.steps)}"
    return f"{title}, {words.STATUSES[promotion.status].word.lower()}"


def compared(comparison: Comparison | None) -> ComparisonView | None:
    """What the contract promises beside the one before it."""
    if comparison is None:
        return None
    changes = comparison.changes
    looser = tuple(words.change(one) for one in changes if one.direction in LOOSER)
    plainly = any(one.direction in (Direction.LOOSENED, Direction.REMOVED) for one in changes)
    return ComparisonView(
        against=comparison.old,
        word="Loosened" if plainly else "Changed",
        looser=looser,
        tighter=tuple(words.change(one) for one in changes if one.direction not in LOOSER),
    )


def bindings(promotion: Promotion, names: Mapping[str, str | None]) -> tuple[Binding, ...]:
    """The digests the promotion is bound to; `names` has a registered name by field of Bound."""
    labels = {
        "contract": "Contract",
        "checkpoint": "Checkpoint",
        "suite": "Suite",
        "train_build": "Training build",
        "inference_build": "Inference build (candidate)",
        "known_good_build": "Known-good build",
    }
    digests = {field: getattr(promotion.bound, field) for field in labels}
    return tuple(Binding(labels[f], names.get(f) or "", digest) for f, digest in digests.items() if digest)
