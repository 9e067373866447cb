"""The handlers of the lifecycle's table, each pure: (promotion, event, now) -> Outcome.

:mod:`contracts.lifecycle` says which handler meets which event in which status; read it first.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from contracts.model import STAGES, Action, Level, Stage
from contracts.promotion import (
    Abort,
    Approve,
    CancelMeasurement,
    Effect,
    Freeze,
    FrozenBy,
    Judged,
    KnownGoodHealth,
    Measure,
    MeasurementFailed,
    Override,
    Page,
    Passed,
    Promotion,
    Reroute,
    Resume,
    Retry,
    Status,
    Supersede,
    Tick,
)

SERVING = frozenset({Stage.CANARY, Stage.FULL})  # the stages in which users meet the candidate
OVERRIDABLE = (FrozenBy.INCONCLUSIVE, FrozenBy.TIMER)  # frozen for want of a decision, not of data


class Refused(Exception):
    """A handler's no: the event belongs to this status, yet not to this promotion now."""


class Outcome(NamedTuple):
    """What a handler decided. An empty `notify` means: nothing happened, only the reason."""

    after: Promotion
    reason: str
    notify: str = ""
    effects: tuple[Effect, ...] = ()


def changed(promotion: Promotion, **changes: Any) -> Promotion:
    """The promotion with `changes`, validated."""
    return Promotion.model_validate({**dict(promotion), **changes})


def _at(promotion: Promotion) -> str:
    step = f" step {promotion.step}" if promotion.stage is Stage.CANARY else ""
    return f"{promotion.stage}{step} attempt {promotion.attempt}"


def later(now: datetime, seconds: float | None) -> datetime | None:
    """The time `seconds` after `now`; None for never."""
    try:
        return None if seconds is None else now + timedelta(seconds=seconds)
    except OverflowError:  # beyond the calendar is never
        return None


def _stale(promotion: Promotion, event: Judged | MeasurementFailed) -> str | None:
    if (event.stage, event.step, event.attempt) != (promotion.stage, promotion.step, promotion.attempt):
        return (
            f"stale: a result of {event.stage} step {event.step} attempt {event.attempt}, "
            f"while the promotion is in {_at(promotion)}"
        )
    if isinstance(event, Judged) and event.bound != promotion.bound:
        ours, theirs = dict(promotion.bound), dict(event.bound)
        other = ", ".join(name for name in ours if ours[name] != theirs[name])
        return f"stale: evidence of another {other} than the promotion is bound to"
    return None


def _due(promotion: Promotion, now: datetime) -> bool:
    return promotion.deadline_at is not None and now >= promotion.deadline_at


# --- moves shared by the handlers -------------------------------------------------------


def _enter(promotion: Promotion, stage: Stage, step: int, now: datetime, **changes: Any) -> Promotion:
    """Begin measuring under a new attempt: nothing of the old one counts."""
    fields: dict[str, Any] = {
        "stage": stage, "step": step, "status": Status.MEASURING, "attempt": promotion.attempt + 1,
        "stage_started_at": now, "deadline_at": later(now, getattr(promotion.plans, stage.value).deadline),
        "pending_approval": None, "approval_expires_at": None, "undecided": None, "frozen_by": None,
    }  # fmt: skip
    return changed(promotion, **{**fields, **changes})


def _restart(before: Promotion, after: Promotion) -> tuple[Effect, ...]:
    """Reroute always: traffic is tagged with the attempt it is evidence of."""
    measure = Measure(stage=after.stage, step=after.step, attempt=after.attempt)
    return (CancelMeasurement(attempt=before.attempt), Reroute(), measure)


def _next(promotion: Promotion) -> tuple[Stage, int] | None:
    if promotion.stage is Stage.CANARY and promotion.step + 1 < len(promotion.plans.canary.steps):
        return Stage.CANARY, promotion.step + 1
    following = STAGES[STAGES.index(promotion.stage) + 1 :]
    return (following[0], 0) if following else None


def _advance(promotion: Promotion, digest: str, by: str | None, reason: str, now: datetime) -> Outcome:
    """The stage is passed. Converged evidence covers every slice, so it also lifts the guards."""
    proof = Passed(
        stage=promotion.stage,
        step=promotion.step,
        attempt=promotion.attempt,
        evidence_digest=digest,
        overridden_by=by,
    )
    changes: dict[str, Any] = {
        "passed": (*promotion.passed, proof),
        "guarded": promotion.guarded if by else (),
        "undecided": None,
        "frozen_by": None,
    }
    why = f"{_at(promotion)} passed: {reason}"
    onward = _next(promotion)
    if onward is None:
        after = changed(promotion, status=Status.PROMOTED, deadline_at=None, **changes)
        return Outcome(after, why, "promotion.promoted", (Reroute(),))
    stage, step = onward
    plan = getattr(promotion.plans, stage.value)
    if stage is not promotion.stage and getattr(plan, "approval", "none") == "required":
        expires = later(now, promotion.plans.full.approval_ttl)
        after = changed(promotion, status=Status.AWAITING_APPROVAL, deadline_at=None, pending_approval=stage,
                      approval_expires_at=expires, **changes)  # fmt: skip
        return Outcome(after, f"{why}; {stage} awaits approval", "promotion.approval_requested", (Reroute(),))
    after = _enter(promotion, stage, step, now, **changes)
    return Outcome(after, why, "promotion.advanced", _restart(promotion, after))


def _freeze(promotion: Promotion, by: FrozenBy, reason: str, **changes: Any) -> Outcome:
    """Stand still. Outside serving stages the work stops too, unless it is data that is awaited."""
    kept = promotion.undecided if by in OVERRIDABLE else None
    fields = {"status": Status.FROZEN, "frozen_by": by, "undecided": kept, "pending_approval": None,
              "approval_expires_at": None}  # fmt: skip
    effects: tuple[Effect, ...] = ()
    if promotion.stage not in SERVING and by is not FrozenBy.NO_DATA:
        effects = (CancelMeasurement(attempt=promotion.attempt), Reroute())
    return Outcome(changed(promotion, **{**fields, **changes}), reason, "promotion.frozen", effects)


def _fall_back(promotion: Promotion, reason: str) -> Outcome:
    after = changed(promotion, status=Status.FALLEN_BACK, frozen_by=None, undecided=None, guarded=(),
                  fallback_attempt=promotion.attempt, deadline_at=None, pending_approval=None,
                  approval_expires_at=None)  # fmt: skip
    effects = (CancelMeasurement(attempt=promotion.attempt), Reroute(), Page(reason=reason))
    return Outcome(after, reason, "promotion.fallen_back", effects)


def _can_fall_back(promotion: Promotion) -> bool:
    return promotion.known_good_healthy and promotion.bound.known_good_build is not None


def _actions(promotion: Promotion, level: Level) -> frozenset[Action]:
    """The escalation's actions at this stage, never milder than theory.md section 5 asks of the level."""
    policy = promotion.escalation.get(level)
    actions = frozenset(policy.at(promotion.stage)) if policy else frozenset()
    if level is Level.L3:
        return actions | {Action.FALLBACK}
    if level is Level.L2 and not actions & {Action.GUARD, Action.FREEZE, Action.FALLBACK}:
        return actions | {Action.FREEZE}
    return actions


def _violated(promotion: Promotion, event: Judged) -> Outcome:
    level = event.level or Level.L3
    actions = _actions(promotion, level)
    reason = f"{level} violation in {_at(promotion)}: {event.reason}"
    if promotion.frozen_by is FrozenBy.FALLBACK_OWED:
        return Outcome(promotion, f"{reason}; already frozen until a fallback is possible")
    if Action.FALLBACK in actions and _can_fall_back(promotion):
        return _fall_back(promotion, f"{reason}; fell back to the known-good build")
    if Action.FALLBACK in actions:
        missing = "not healthy" if promotion.bound.known_good_build else "not there"
        why = f"{reason}; no fallback, the known-good build is {missing}: frozen, what serves keeps serving"
        by = FrozenBy.FALLBACK_OWED if promotion.stage in SERVING else FrozenBy.VIOLATION
        frozen = _freeze(promotion, by, why, fallback_attempt=promotion.attempt)
        return _unless_known(promotion, frozen._replace(effects=(*frozen.effects, Page(reason=why))))
    guarded = promotion.guarded
    if Action.GUARD in actions:
        guarded = tuple(dict.fromkeys((*guarded, *event.violated_slices)))
    paging: tuple[Effect, ...] = (Page(reason=reason),) if Action.PAGE in actions else ()
    if Action.FREEZE in actions or event.complete:
        outcome = _freeze(promotion, FrozenBy.VIOLATION, reason, guarded=guarded)
    else:
        after = changed(promotion, undecided=None, guarded=guarded)
        outcome = Outcome(after, reason, "promotion.violated")
    rerouting: tuple[Effect, ...] = (Reroute(),) if guarded != promotion.guarded else ()
    effects = tuple(dict.fromkeys((*outcome.effects, *rerouting, *paging)))
    return _unless_known(promotion, outcome._replace(effects=effects))


def _unless_known(promotion: Promotion, outcome: Outcome) -> Outcome:
    """Frozen for the very same thing already: say so, once is enough."""
    if promotion.status is Status.FROZEN and outcome.after == promotion:
        return Outcome(promotion, f"{outcome.reason}; already frozen for it")
    return outcome


def _shortfall(promotion: Promotion, event: Judged, now: datetime) -> str:
    """Why a judgement without violations does not pass the stage yet; empty when it does."""
    if event.converged is None:
        return f"undecided: {event.reason}"
    needed = promotion.plans.min_prompts(promotion.stage)
    if event.prompts < needed:
        return f"converged on {event.prompts} prompts, {_at(promotion)} needs {needed}"
    shortest = float(getattr(getattr(promotion.plans, promotion.stage.value), "min_duration", 0.0))
    if (now - promotion.stage_started_at).total_seconds() < shortest:
        return f"converged, but {_at(promotion)} lasts at least {shortest:g} s; the next judgement decides"
    return ""


# --- handlers ---------------------------------------------------------------------------


def judged_measuring(promotion: Promotion, event: Judged, now: datetime) -> Outcome:
    """A fresh judgement of what is being measured: pass, stop, or go on measuring."""
    if reason := _stale(promotion, event):
        return Outcome(promotion, reason)
    if event.converged is False:
        return _violated(promotion, event)
    undecided = event.evidence_digest if event.converged is None else None
    if _due(promotion, now):
        late = f"timer expired {'while inconclusive' if undecided else 'before the evidence converged'}"
        return _freeze(promotion, FrozenBy.TIMER, f"{late}: {event.reason}", undecided=undecided)
    shortfall = _shortfall(promotion, event, now)
    if shortfall and event.complete:
        return _freeze(
            promotion, FrozenBy.INCONCLUSIVE, f"all was measured: {shortfall}", undecided=undecided
        )
    if shortfall:
        return Outcome(changed(promotion, undecided=undecided), shortfall, "promotion.undecided")
    return _advance(promotion, event.evidence_digest, None, event.reason, now)


def judged_serving(promotion: Promotion, event: Judged, _now: datetime) -> Outcome:
    """AWAITING_APPROVAL and PROMOTED: the same attempt goes on being judged; only violations act."""
    if reason := _stale(promotion, event):
        return Outcome(promotion, reason)
    if event.converged is False:
        return _violated(promotion, event)
    return Outcome(promotion, f"{'still converged' if event.converged else 'undecided'}: {event.reason}")


def judged_frozen(promotion: Promotion, event: Judged, now: datetime) -> Outcome:
    """Violations act in FROZEN too; returning data thaws NO_DATA; nothing else leads on."""
    if reason := _stale(promotion, event):
        return Outcome(promotion, reason)
    if promotion.frozen_by is FrozenBy.NO_DATA:
        return judged_measuring(changed(promotion, status=Status.MEASURING, frozen_by=None), event, now)
    if event.converged is False:
        return _violated(promotion, event)
    if promotion.frozen_by is FrozenBy.TIMER:
        after = changed(promotion, undecided=None if event.converged else event.evidence_digest)
        late = "converged after the deadline" if event.converged else "undecided after the deadline"
        return Outcome(after, f"{late}, retry to measure afresh: {event.reason}", "promotion.undecided")
    return Outcome(promotion, f"frozen by {promotion.frozen_by}: a judgement alone does not lead on")


def failed_measuring(promotion: Promotion, event: MeasurementFailed, _now: datetime) -> Outcome:
    """No usable evidence is never a pass: frozen."""
    if reason := _stale(promotion, event):
        return Outcome(promotion, reason)
    by = FrozenBy.NO_DATA if event.outcome == "NO_DATA" else FrozenBy.MEASUREMENT
    return _freeze(promotion, by, f"{_at(promotion)} ended in {event.outcome}: {event.reason}")


def failed_serving(promotion: Promotion, event: MeasurementFailed, _now: datetime) -> Outcome:
    """The contract is not being enforced for want of evidence: say so, and call a human."""
    if reason := _stale(promotion, event):
        return Outcome(promotion, reason)
    why = f"not enforced while its measurement ends in {event.outcome}: {event.reason}"
    return Outcome(promotion, why, "promotion.unobserved", (Page(reason=why),))


def judged_stopped(promotion: Promotion, event: Judged | MeasurementFailed, _now: datetime) -> Outcome:
    """Results that come after the stop are recorded and lead nowhere."""
    return Outcome(promotion, _stale(promotion, event) or f"{promotion.status}: a result alone leads nowhere")


def idle(promotion: Promotion, _event: Tick, _now: datetime) -> Outcome:
    """Time passes where nothing waits for it."""
    return Outcome(promotion, "nothing is due")


def tick_measuring(promotion: Promotion, _event: Tick, now: datetime) -> Outcome:
    """The deadline stops; it never advances."""
    if not _due(promotion, now):
        return Outcome(promotion, "nothing is due")
    why = f"timer expired while inconclusive: {_at(promotion)} had until {promotion.deadline_at}"
    return _freeze(promotion, FrozenBy.TIMER, why)


def _expired(promotion: Promotion, now: datetime) -> bool:
    return promotion.approval_expires_at is not None and now >= promotion.approval_expires_at


def tick_awaiting(promotion: Promotion, _event: Tick, now: datetime) -> Outcome:
    """An approval nobody gave in time frees the lane."""
    if not _expired(promotion, now):
        return Outcome(promotion, "nothing is due")
    why = f"nobody approved {promotion.pending_approval} by {promotion.approval_expires_at}; the lane is free"
    return _end(promotion, Status.EXPIRED, why, page=True)


def approve(promotion: Promotion, event: Approve, now: datetime) -> Outcome:
    """Begin the pending stage; an expired approval is refused even before the tick that ends it."""
    if _expired(promotion, now) or promotion.pending_approval is None:
        raise Refused(f"the approval expired at {promotion.approval_expires_at}")
    after = _enter(promotion, promotion.pending_approval, 0, now)
    why = f"{event.actor} approved {after.stage}"
    return Outcome(after, why, "promotion.approved", _restart(promotion, after))


def frozen_by_person(promotion: Promotion, event: Freeze, _now: datetime) -> Outcome:
    """Freeze where it stands; a violation stays the stronger reason."""
    if promotion.frozen_by in (FrozenBy.VIOLATION, FrozenBy.FALLBACK_OWED, FrozenBy.PERSON):
        return Outcome(promotion, f"already frozen by {promotion.frozen_by}")
    return _freeze(promotion, FrozenBy.PERSON, f"{event.actor} froze it: {event.reason}")


def afresh(promotion: Promotion, event: Resume | Retry, now: datetime) -> Outcome:
    """Retry or resume. After a fallback users stay on the known-good build: shadow comes first."""
    if promotion.frozen_by is FrozenBy.FALLBACK_OWED:
        why = "a violation is owed a fallback and no known-good build can serve: abort, or wait until one can"
        raise Refused(why)
    stage, step = promotion.stage, promotion.step
    if promotion.status is Status.FALLEN_BACK and stage in SERVING:
        stage, step = Stage.SHADOW, 0
    after = _enter(promotion, stage, step, now)
    verb, name = (
        ("retried", "promotion.retried") if event.type == "retry" else ("resumed", "promotion.resumed")
    )
    why = f"{event.actor} {verb} {_at(after)}" + (f": {event.reason}" if event.reason else "")
    return Outcome(after, why, name, _restart(promotion, after))


def override(promotion: Promotion, event: Override, now: datetime) -> Outcome:
    """Consume exactly the undecided verdict named; never a violation, never absence."""
    if promotion.frozen_by not in (None, *OVERRIDABLE):
        raise Refused(f"it is frozen by {promotion.frozen_by}, not by an undecided verdict")
    if promotion.undecided != event.evidence_digest:
        held = (
            f"the undecided verdict is {promotion.undecided}" if promotion.undecided else "none is undecided"
        )
        raise Refused(f"{held}, not {event.evidence_digest}")
    since = promotion.fallback_attempt
    if since and not any(p.attempt > since and p.overridden_by is None for p in promotion.passed):
        raise Refused(
            f"attempt {since} violated what asks for a fallback: only evidence that converges leads on"
        )
    reason = f"{event.actor} overrode the undecided verdict {event.evidence_digest}: {event.reason}"
    return _advance(promotion, event.evidence_digest, event.actor, reason, now)


def _end(promotion: Promotion, status: Status, reason: str, *, page: bool = False) -> Outcome:
    """Over, the known-good build serves. Call a human when that build is not known to be healthy."""
    after = changed(promotion, status=status, frozen_by=None, undecided=None, guarded=(),
                  deadline_at=None, pending_approval=None, approval_expires_at=None)  # fmt: skip
    if not promotion.known_good_healthy:
        reason, page = f"{reason}; the known-good build that serves now is not healthy", True
    effects: tuple[Effect, ...] = (CancelMeasurement(attempt=promotion.attempt), Reroute())
    return Outcome(after, reason, f"promotion.{status}", (*effects, Page(reason=reason)) if page else effects)


def abort(promotion: Promotion, event: Abort, _now: datetime) -> Outcome:
    """Abort wins from every status that is not over."""
    why = f"{event.actor} aborted it" + (f": {event.reason}" if event.reason else "")
    return _end(promotion, Status.ABORTED, why)


def supersede(promotion: Promotion, event: Supersede, _now: datetime) -> Outcome:
    """The newer promotion takes the lane; its own start reroutes after this, in one transaction."""
    return _end(promotion, Status.SUPERSEDED, f"superseded by {event.by}")


def known_good(promotion: Promotion, event: KnownGoodHealth, _now: datetime) -> Outcome:
    """Note the health; pay an owed fallback as soon as it can be."""
    if event.healthy == promotion.known_good_healthy:
        return Outcome(promotion, "the known-good build's health is as it was")
    after = changed(promotion, known_good_healthy=event.healthy)
    if after.frozen_by is FrozenBy.FALLBACK_OWED and _can_fall_back(after):
        return _fall_back(after, "the known-good build is healthy again; the owed fallback took place")
    health = "healthy again" if event.healthy else "not healthy: no fallback is possible"
    why = f"the known-good build is {health}"
    served = promotion.status is Status.FALLEN_BACK and not event.healthy
    return Outcome(after, why, "promotion.known_good_health", (Page(reason=why),) if served else ())
