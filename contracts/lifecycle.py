"""The lifecycle of a promotion: one table and the one function that reads it.

A promotion climbs offline_ci → shadow → canary (one traffic step after the other) → full →
PROMOTED, where the contract stays enforced. Only a judgement climbs, or a person overriding
one undecided judgement by its digest; time alone can stop (FROZEN, EXPIRED), never advance.

    MEASURING          evidence of (stage, step, attempt) is being gathered
    AWAITING_APPROVAL  the stage passed; the next one waits for a person, for approval_ttl
    FROZEN             stands still; what serves keeps serving; `frozen_by` says why
    PROMOTED           the candidate serves everything; violations still act
    FALLEN_BACK        the known-good build serves; only a resume leads on, from shadow
    ABORTED, SUPERSEDED, EXPIRED   over: the known-good build serves, nothing is accepted

`now` is always the database's clock, as an aware datetime. docs/lifecycle.md is the long
form; its diagram is generated from TABLE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NamedTuple

from contracts import handlers as on
from contracts.model import Escalation, StagePlans
from contracts.promotion import (
    TERMINAL,
    Bound,
    Effect,
    Event,
    FrozenBy,
    Measure,
    Notify,
    Promotion,
    Reroute,
    Start,
    Status,
    Transition,
)


class IllegalTransition(ValueError):
    """An event that cannot happen now; the promotion is unchanged.

    Attributes:
        status: the promotion's status; None when there is no promotion yet.
        event: the event's type.
        why: one plain sentence.
        allowed: the event types the status accepts, sorted.
    """

    def __init__(self, status: Status | None, event: str, why: str) -> None:
        self.status, self.event, self.why = status, event, why
        self.allowed = allowed(status)
        able = ", ".join(self.allowed) or "nothing, it is over"
        super().__init__(f"{event} is refused: {why} (accepted while {status or 'not started'}: {able})")


class Rule(NamedTuple):
    """One row of the table: the handler, and every status a change by it may lead to.

    No status at all means that the event is accepted and changes nothing.
    """

    handler: Callable[[Promotion, Any, datetime], on.Outcome]
    to: tuple[Status, ...]


# --- the table --------------------------------------------------------------------------

_M, _A, _F, _P, _B = (
    Status.MEASURING, Status.AWAITING_APPROVAL, Status.FROZEN, Status.PROMOTED, Status.FALLEN_BACK
)  # fmt: skip

TABLE: dict[tuple[Status, str], Rule] = {
    (_M, "judged"): Rule(on.judged_measuring, (_M, _A, _P, _F, _B)),
    (_M, "measurement_failed"): Rule(on.failed_measuring, (_F,)),
    (_M, "tick"): Rule(on.tick_measuring, (_F,)),
    (_M, "freeze"): Rule(on.frozen_by_person, (_F,)),
    (_M, "retry"): Rule(on.afresh, (_M,)),
    (_M, "override"): Rule(on.override, (_M, _A, _P)),
    (_M, "known_good_health"): Rule(on.known_good, (_M,)),
    (_A, "judged"): Rule(on.judged_serving, (_A, _F, _B)),
    (_A, "measurement_failed"): Rule(on.failed_serving, (_A,)),
    (_A, "tick"): Rule(on.tick_awaiting, (Status.EXPIRED,)),
    (_A, "approve"): Rule(on.approve, (_M,)),
    (_A, "freeze"): Rule(on.frozen_by_person, (_F,)),
    (_A, "known_good_health"): Rule(on.known_good, (_A,)),
    (_F, "judged"): Rule(on.judged_frozen, (_F, _M, _A, _P, _B)),
    (_F, "measurement_failed"): Rule(on.judged_stopped, ()),
    (_F, "tick"): Rule(on.idle, ()),
    (_F, "freeze"): Rule(on.frozen_by_person, (_F,)),
    (_F, "resume"): Rule(on.afresh, (_M,)),
    (_F, "retry"): Rule(on.afresh, (_M,)),
    (_F, "override"): Rule(on.override, (_M, _A, _P)),
    (_F, "known_good_health"): Rule(on.known_good, (_F, _B)),
    (_P, "judged"): Rule(on.judged_serving, (_P, _F, _B)),
    (_P, "measurement_failed"): Rule(on.failed_serving, (_P,)),
    (_P, "tick"): Rule(on.idle, ()),
    (_P, "freeze"): Rule(on.frozen_by_person, (_F,)),
    (_P, "known_good_health"): Rule(on.known_good, (_P,)),
    (_B, "judged"): Rule(on.judged_stopped, ()),
    (_B, "measurement_failed"): Rule(on.judged_stopped, ()),
    (_B, "tick"): Rule(on.idle, ()),
    (_B, "resume"): Rule(on.afresh, (_M,)),
    (_B, "known_good_health"): Rule(on.known_good, (_B,)),
    **{(status, "abort"): Rule(on.abort, (Status.ABORTED,)) for status in (_M, _A, _F, _P, _B)},
    **{(status, "supersede"): Rule(on.supersede, (Status.SUPERSEDED,)) for status in (_M, _A, _F, _P, _B)},
}


def allowed(status: Status | None) -> tuple[str, ...]:
    """The event types `status` accepts, sorted; none for a terminal one, `start` before there is any."""
    return ("start",) if status is None else tuple(sorted(event for at, event in TABLE if at is status))


def start(
    id: str,
    target: str,
    bound: Bound,
    plans: StagePlans,
    escalation: Escalation,
    now: datetime,
    *,
    known_good_healthy: bool = True,
) -> Transition:
    """The first transition of a promotion: version 1, measuring offline_ci, attempt 1.

    Raises:
        ValueError: `now` is not an aware datetime.
    """
    return _begin(
        Start(
            id=id,
            target=target,
            bound=bound,
            plans=plans,
            escalation=dict(escalation),
            known_good_healthy=known_good_healthy,
        ),
        now,
    )


def _begin(event: Start, now: datetime) -> Transition:
    _check_aware(now)
    reason = f"{event.id} started for {event.target}"
    after = Promotion(
        id=event.id,
        target=event.target,
        bound=event.bound,
        plans=event.plans,
        escalation=event.escalation,
        started_at=now,
        stage_started_at=now,
        deadline_at=on.later(now, event.plans.offline_ci.deadline),
        known_good_healthy=event.known_good_healthy,
        reason=reason,
    )
    measure = Measure(stage=after.stage, step=after.step, attempt=after.attempt)
    effects: tuple[Effect, ...] = (Reroute(), measure, Notify(event="promotion.started", reason=reason))
    return Transition(before=None, after=after, event=event, reason=reason, effects=effects)


def step(promotion: Promotion, event: Event, now: datetime) -> Transition:
    """What `event` makes of `promotion` at `now`.

    A transition that changes anything raises the version by exactly 1 and carries exactly one
    Notify; one that changes nothing (stale, idle, known already) has no effects, only a reason.

    Raises:
        IllegalTransition: the status does not accept the event, or not in this form.
        ValueError: `now` is not an aware datetime.
    """
    _check_aware(now)
    rule = TABLE.get((promotion.status, event.type))
    if rule is None:
        raise IllegalTransition(promotion.status, event.type, f"the promotion is {promotion.status}")
    try:
        outcome = rule.handler(promotion, event, now)
    except on.Refused as refused:
        raise IllegalTransition(promotion.status, event.type, str(refused)) from None
    after = on.changed(outcome.after, reason=outcome.reason) if outcome.notify else promotion
    if after == promotion:
        return Transition(before=promotion, after=promotion, event=event, reason=outcome.reason)
    if after.status not in rule.to:
        raise AssertionError(f"the table lacks {promotion.status} --{event.type}--> {after.status}")
    after = on.changed(after, version=promotion.version + 1)
    effects = (*outcome.effects, Notify(event=outcome.notify, reason=outcome.reason))
    return Transition(before=promotion, after=after, event=event, reason=outcome.reason, effects=effects)


def replay(history: Iterable[tuple[Event, datetime]]) -> Promotion:
    """The state that recorded events, each with its time, lead to from nothing.

    Raises:
        IllegalTransition: the first event is no start, or one was not possible at its turn.
        ValueError: there is no event at all.
    """
    promotion: Promotion | None = None
    for event, now in history:
        if promotion is not None:
            promotion = step(promotion, event, now).after
        elif isinstance(event, Start):
            promotion = _begin(event, now).after
        else:
            raise IllegalTransition(None, event.type, "a promotion begins with its start")
    if promotion is None:
        raise ValueError("no events: there is no promotion to replay")
    return promotion


def observed(promotion: Promotion) -> bool:
    """Whether results of the present attempt can still matter, so that they are worth measuring.

    Besides MEASURING: as long as users meet the candidate (a violation must still be seen), and
    while data is awaited.
    """
    match promotion.status:
        case Status.MEASURING | Status.AWAITING_APPROVAL | Status.PROMOTED:
            return True
        case Status.FROZEN:
            return promotion.stage in on.SERVING or promotion.frozen_by is FrozenBy.NO_DATA
        case _:
            return False


def known_good_after(promotion: Promotion) -> str | None:
    """Digest of the build the target's next promotion starts from and falls back to.

    The candidate only once it is PROMOTED; a rolled-back or unfinished one never is.
    """
    bound = promotion.bound
    return bound.inference_build if promotion.status is Status.PROMOTED else bound.known_good_build


def diagram() -> str:
    """The table as a Mermaid state diagram; accepted events that change nothing are left out."""
    edges: dict[tuple[Status, Status], list[str]] = {}
    for (status, event), rule in TABLE.items():
        for to in rule.to:
            edges.setdefault((status, to), []).append(event)
    order = list(Status)
    lines = ["stateDiagram-v2", f"    [*] --> {Status.MEASURING}: start"]
    for (status, to), events in sorted(
        edges.items(), key=lambda e: (order.index(e[0][0]), order.index(e[0][1]))
    ):
        lines.append(f"    {status} --> {to}: {', '.join(sorted(events))}")
    lines += [f"    {status} --> [*]" for status in order if status in TERMINAL]
    return "\n".join(lines) + "\n"


def _check_aware(now: datetime) -> None:
    if now.tzinfo is None:
        raise ValueError(f"a naive time {now!r}: pass the database's clock as an aware datetime")
