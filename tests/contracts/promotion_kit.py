"""Promotions and events for tests: a clock of our own, results that fit a promotion's present attempt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from contracts.lifecycle import start, step
from contracts.model import Action, Canary, Contract, Full, Level, OfflineCi, Shadow, Stage, StagePlans
from contracts.promotion import (
    Abort,
    Approve,
    Bound,
    Freeze,
    Judged,
    MeasurementFailed,
    Notify,
    Promotion,
    Status,
    Supersede,
    Tick,
    Transition,
)

T0 = datetime(2026, 1, 1, tzinfo=UTC)
BOUND = Bound(
    contract="sha256:c",
    checkpoint="sha256:w",
    train_build="sha256:t",
    inference_build="sha256:i",
    suite="sha256:s",
    known_good_build="sha256:k",
)
PLANS = StagePlans(
    offline_ci=OfflineCi(min_prompts=10, deadline=3600),
    shadow=Shadow(min_prompts=10, min_duration=600, deadline=3600, mirror=0.5),
    canary=Canary(steps=(0.1, 0.5), min_prompts=10, min_duration=600, deadline=3600),
    full=Full(min_prompts=10, deadline=3600, approval="required", approval_ttl=7200, audit_rate=0.2),
)
ESCALATION: dict[Level, tuple[Action, ...]] = {
    Level.L1: (Action.LOG,),
    Level.L2: (Action.LOG, Action.GUARD, Action.FREEZE),
    Level.L3: (Action.LOG, Action.FALLBACK, Action.FREEZE, Action.PAGE),
}
SLICES = ("all", "long", "python")
CONTRACT = Contract.model_validate(
    {
        "apiVersion": "kernel-contracts/v1", "kind": "KernelContract",
        "metadata": {"name": "c", "version": "1.0.0"}, "pair": {"train": {}, "inference": {}},
        "slices": {name: {} for name in SLICES}, "guard": {"build": "safe"},
        "clauses": [{"id": "N", "family": "numerical", "metric": "tv", "limit": {"lte": 1}, "kind": "hard",
                     "level": "L2"}],
    }
)  # fmt: skip
PATH = ((Stage.OFFLINE_CI, 0), (Stage.SHADOW, 0), (Stage.CANARY, 0), (Stage.CANARY, 1), (Stage.FULL, 0))


def begin(
    plans: StagePlans = PLANS, bound: Bound = BOUND, id: str = "p1", healthy: bool = True, **escalation: Any
) -> Transition:
    policy = {**ESCALATION, **{Level[name]: actions for name, actions in escalation.items()}}
    return start(id, "chat", bound, plans, policy, T0, known_good_healthy=healthy)


def judged(promotion: Promotion, converged: bool | None, **fields: Any) -> Judged:
    """A judgement of the promotion's present attempt, unless `fields` say otherwise."""
    level = fields.pop("level", Level.L2 if converged is False else None)
    return Judged(
        **{
            "bound": promotion.bound, "stage": promotion.stage, "step": promotion.step,
            "attempt": promotion.attempt, "prompts": 480, "converged": converged, "level": level,
            "evidence_digest": f"sha256:e{promotion.attempt}", "reason": "as judged", **fields,
        }
    )  # fmt: skip


def failed(promotion: Promotion, outcome: Any, **fields: Any) -> MeasurementFailed:
    present = {"stage": promotion.stage, "step": promotion.step, "attempt": promotion.attempt}
    return MeasurementFailed(outcome=outcome, **{"reason": "as measured", **present, **fields})


def after(promotion: Promotion, seconds: float) -> datetime:
    """A time `seconds` after the present attempt began."""
    return promotion.stage_started_at + timedelta(seconds=seconds)


def passing(promotion: Promotion) -> Transition:
    return step(promotion, judged(promotion, True), after(promotion, 700))


def at(
    stage: Stage, index: int = 0, start: Promotion | None = None, status: Status | None = None
) -> Promotion:
    """A promotion that came honestly to measuring `stage` (or to PROMOTED, or to awaiting its approval)."""
    promotion = start or begin().after
    while (promotion.stage, promotion.step) != (stage, index) or (status and promotion.status is not status):
        if promotion.status is Status.AWAITING_APPROVAL:
            promotion = step(promotion, Approve(actor="ann"), after(promotion, 800)).after
        else:
            promotion = passing(promotion).after
        assert promotion.attempt < 50, "never gets there"
    return promotion


def promoted() -> Promotion:
    return at(Stage.FULL, status=Status.PROMOTED)


def awaiting() -> Promotion:
    return at(Stage.CANARY, 1, status=Status.AWAITING_APPROVAL)


def kinds(transition: Transition) -> list[str]:
    return [effect.type for effect in transition.effects]


def told(transition: Transition) -> str:
    """The name of the one notification."""
    (notify,) = (e for e in transition.effects if isinstance(e, Notify))
    return notify.event


def examples(status: Status) -> Promotion:
    """One promotion in each status."""
    canary = at(Stage.CANARY)
    match status:
        case Status.MEASURING:
            return canary
        case Status.AWAITING_APPROVAL:
            return awaiting()
        case Status.FROZEN:
            return step(canary, Freeze(actor="ann", reason="lunch"), after(canary, 1)).after
        case Status.PROMOTED:
            return promoted()
        case Status.FALLEN_BACK:
            return step(canary, judged(canary, False, level=Level.L3), after(canary, 1)).after
        case Status.ABORTED:
            return step(canary, Abort(actor="ann"), after(canary, 1)).after
        case Status.SUPERSEDED:
            return step(canary, Supersede(by="p2"), after(canary, 1)).after
        case Status.EXPIRED:
            return step(awaiting(), Tick(), after(awaiting(), 1e6)).after
