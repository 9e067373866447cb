"""The table row by row: what each event makes of each status, and what it refuses."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError

from contracts.lifecycle import (
    TABLE,
    IllegalTransition,
    allowed,
    diagram,
    known_good_after,
    observed,
    replay,
    start,
    step,
)
from contracts.model import Canary, Full, Level, OfflineCi, Stage, StagePlans
from contracts.promotion import (
    TERMINAL,
    Abort,
    Approve,
    CancelMeasurement,
    Event,
    Freeze,
    FrozenBy,
    Judged,
    KnownGoodHealth,
    Measure,
    Override,
    Promotion,
    Resume,
    Retry,
    Start,
    Status,
    Supersede,
    Tick,
)
from tests.contracts.promotion_kit import (
    BOUND,
    ESCALATION,
    PATH,
    PLANS,
    T0,
    after,
    at,
    awaiting,
    begin,
    examples,
    failed,
    judged,
    kinds,
    passing,
    promoted,
    told,
)

DOC = Path(__file__).resolve().parents[2] / "docs" / "lifecycle.md"


def any_event(kind: str, promotion: Promotion) -> Event:
    events: tuple[Event, ...] = (
        Start(id="p", target="t", bound=BOUND, plans=PLANS, escalation=ESCALATION),
        judged(promotion, None),
        failed(promotion, "ERROR"),
        Tick(),
        Approve(actor="ann"),
        Freeze(actor="ann", reason="r"),
        Resume(actor="ann", reason="r"),
        Retry(actor="ann"),
        Override(actor="ann", evidence_digest="sha256:e", reason="r"),
        Abort(actor="ann"),
        Supersede(by="p2"),
        KnownGoodHealth(healthy=False),
    )
    return next(event for event in events if event.type == kind)


KINDS = ("start", *sorted({kind for _, kind in TABLE}))
ILLEGAL = [(status, kind) for status in Status for kind in KINDS if (status, kind) not in TABLE]


@pytest.mark.parametrize(("status", "kind"), ILLEGAL)
def test_every_pair_outside_the_table_is_refused_and_changes_nothing(status: Status, kind: str) -> None:
    promotion = examples(status)
    before = promotion.model_dump_json()
    with pytest.raises(IllegalTransition) as raised:
        step(promotion, any_event(kind, promotion), after(promotion, 10))
    error = raised.value
    assert (error.status, error.event, error.allowed) == (status, kind, allowed(status))
    assert error.why
    assert kind not in error.allowed
    assert str(error).startswith(f"{kind} is refused: ")
    assert promotion.model_dump_json() == before


@pytest.mark.parametrize(("status", "kind"), sorted(TABLE))
def test_every_pair_of_the_table_answers(status: Status, kind: str) -> None:
    promotion = examples(status)
    try:
        transition = step(promotion, any_event(kind, promotion), after(promotion, 10))
    except IllegalTransition:
        assert kind == "override"  # nothing is undecided in the examples
        return
    assert transition.after.status in (*TABLE[status, kind].to, status)
    assert transition.reason


def test_terminal_statuses_accept_nothing() -> None:
    assert all(allowed(status) == () for status in TERMINAL)
    assert all(allowed(status) for status in set(Status) - TERMINAL)


def test_the_documented_diagram_is_the_table() -> None:
    text = DOC.read_text(encoding="utf-8")
    assert text.split("```mermaid\n")[1].split("```")[0] == diagram()


def test_every_name_a_notification_can_have_is_documented() -> None:
    source = (DOC.parents[1] / "contracts" / "handlers.py").read_text(encoding="utf-8")
    names = {part.split('"')[0] for part in source.split('"promotion.')[1:]}
    names = {name for name in names if "{" not in name} | {"started", *TERMINAL}
    text = DOC.read_text(encoding="utf-8")
    assert {n for n in names if f"`promotion.{n}`" not in text} == set()
    assert all(f"`{member}`" in text for member in FrozenBy)


def test_start_measures_offline_ci_under_attempt_one() -> None:
    transition = begin()
    promotion = transition.after
    assert transition.before is None
    assert (promotion.stage, promotion.step, promotion.attempt, promotion.version) == (
        Stage.OFFLINE_CI,
        0,
        1,
        1,
    )
    assert promotion.deadline_at == T0 + timedelta(hours=1)
    assert kinds(transition) == ["reroute", "measure", "notify"]


def test_the_whole_path_to_promoted() -> None:
    promotion, seen = begin().after, []
    while promotion.status is not Status.PROMOTED:
        seen.append((promotion.stage, promotion.step))
        transition = passing(promotion)
        if transition.after.status is Status.AWAITING_APPROVAL:
            assert transition.after.pending_approval is Stage.FULL
            assert told(transition) == "promotion.approval_requested"
            transition = step(transition.after, Approve(actor="ann"), after(promotion, 800))
        promotion = transition.after
    assert tuple(seen) == PATH
    assert [(p.stage, p.step) for p in promotion.passed] == list(PATH)
    assert [p.attempt for p in promotion.passed] == [1, 2, 3, 4, 5]
    assert promotion.deadline_at is None
    assert told(transition) == "promotion.promoted"


def test_canary_asks_approval_once_and_not_between_its_steps() -> None:
    plans = PLANS.model_copy(
        update={"canary": Canary(steps=(0.1, 0.5), approval="required"), "full": Full(approval="none")}
    )
    promotion = at(Stage.SHADOW, start=begin(plans).after)
    waiting = passing(promotion).after
    assert (waiting.status, waiting.pending_approval) == (Status.AWAITING_APPROVAL, Stage.CANARY)
    canary = step(waiting, Approve(actor="ann"), after(promotion, 800)).after
    second = passing(canary).after
    assert (second.status, second.stage, second.step) == (Status.MEASURING, Stage.CANARY, 1)
    assert passing(second).after.stage is Stage.FULL


@pytest.mark.parametrize(
    "other",
    [
        {"attempt": 1}, {"attempt": 4}, {"step": 1}, {"stage": Stage.SHADOW},
        *({"bound": BOUND.model_copy(update={name: "sha256:other"})} for name in type(BOUND).model_fields),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("verdict", [True, None, False])
def test_a_stale_judgement_changes_nothing(other: dict[str, object], verdict: bool | None) -> None:
    promotion = at(Stage.CANARY)
    level = Level.L3 if verdict is False else None
    transition = step(promotion, judged(promotion, verdict, level=level, **other), after(promotion, 700))
    assert not transition.changed
    assert transition.effects == ()
    assert transition.reason.startswith("stale")


def test_converged_before_min_duration_waits_for_another_judgement_not_for_a_timer() -> None:
    promotion = at(Stage.SHADOW)
    early = step(promotion, judged(promotion, True), after(promotion, 599.9)).after
    assert (early.stage, early.status, early.undecided) == (Stage.SHADOW, Status.MEASURING, None)
    assert not step(early, Tick(), after(promotion, 700)).changed
    assert not step(early, judged(early, True), after(promotion, 599.95)).changed  # said once
    assert step(early, judged(early, True), after(promotion, 600)).after.stage is Stage.CANARY


def test_converged_on_too_few_prompts_does_not_pass_and_cannot_be_overridden() -> None:
    promotion = begin().after
    few = step(promotion, judged(promotion, True, prompts=9), after(promotion, 1)).after
    assert (few.stage, few.undecided) == (Stage.OFFLINE_CI, None)
    with pytest.raises(IllegalTransition):
        step(few, Override(actor="ann", evidence_digest="sha256:e1", reason="r"), after(promotion, 2))
    assert step(few, judged(few, True, prompts=10), after(promotion, 2)).after.stage is Stage.SHADOW


@pytest.mark.parametrize(("stage", "index"), PATH)
def test_resume_after_a_fallback_starts_where_no_user_is_served_by_the_candidate(
    stage: Stage, index: int
) -> None:
    promotion = at(stage, index)
    fallen = step(promotion, judged(promotion, False, level=Level.L3), after(promotion, 1)).after
    resumed = step(fallen, Resume(actor="ann", reason="fixed"), after(promotion, 2)).after
    assert resumed.stage is (Stage.OFFLINE_CI if stage is Stage.OFFLINE_CI else Stage.SHADOW)
    assert (resumed.status, resumed.step, resumed.attempt) == (Status.MEASURING, 0, fallen.attempt + 1)


def test_a_new_attempt_gets_its_whole_time_again() -> None:
    promotion = at(Stage.SHADOW)
    now = after(promotion, 3000)
    retried = step(promotion, Retry(actor="ann"), now)
    assert retried.after.stage_started_at == now
    assert retried.after.deadline_at == now + timedelta(hours=1)
    assert CancelMeasurement(attempt=promotion.attempt) in retried.effects
    assert Measure(stage=Stage.SHADOW, step=0, attempt=promotion.attempt + 1) in retried.effects


def test_the_deadline_decides_by_the_clock_and_not_by_who_comes_first() -> None:
    promotion = at(Stage.SHADOW)
    by_tick = step(promotion, Tick(), after(promotion, 3600)).after
    by_judgement = step(promotion, judged(promotion, True), after(promotion, 3600)).after
    assert by_tick.frozen_by is by_judgement.frozen_by is FrozenBy.TIMER
    assert by_tick.reason.startswith("timer expired while inconclusive")
    assert by_judgement.passed == promotion.passed


def test_a_whole_suite_that_decides_nothing_freezes_at_once_and_may_be_overridden() -> None:
    promotion = at(Stage.OFFLINE_CI)
    event = judged(promotion, None, evidence_digest="sha256:u", complete=True)
    frozen = step(promotion, event, after(promotion, 1)).after
    assert (frozen.status, frozen.frozen_by) == (Status.FROZEN, FrozenBy.INCONCLUSIVE)
    override = Override(actor="ann", evidence_digest="sha256:u", reason="known flaky slice")
    assert step(frozen, override, after(promotion, 2)).after.stage is Stage.SHADOW


def test_a_whole_suite_with_an_informational_violation_does_not_measure_forever() -> None:
    promotion = at(Stage.OFFLINE_CI)
    event = judged(promotion, False, level=Level.L1, complete=True)
    frozen = step(promotion, event, after(promotion, 1)).after
    assert (frozen.status, frozen.frozen_by) == (Status.FROZEN, FrozenBy.VIOLATION)


def test_a_late_undecided_judgement_replaces_the_one_an_override_could_consume() -> None:
    promotion = at(Stage.SHADOW)
    first = step(promotion, judged(promotion, None, evidence_digest="sha256:a"), after(promotion, 1)).after
    frozen = step(first, Tick(), after(promotion, 3600)).after
    assert frozen.undecided == "sha256:a"
    late = step(frozen, judged(frozen, None, evidence_digest="sha256:b"), after(promotion, 3601)).after
    with pytest.raises(IllegalTransition, match="sha256:b, not sha256:a"):
        step(late, Override(actor="ann", evidence_digest="sha256:a", reason="r"), after(promotion, 3602))
    event = Override(actor="ann", evidence_digest="sha256:b", reason="r")
    assert step(late, event, after(promotion, 3602)).after.stage is Stage.CANARY


@pytest.mark.parametrize("by", ["person", "violation", "measurement", "no_data"])
def test_an_override_needs_an_undecided_verdict_and_no_other_reason_to_stand_still(by: str) -> None:
    promotion = at(Stage.SHADOW)
    promotion = step(
        promotion, judged(promotion, None, evidence_digest="sha256:u"), after(promotion, 1)
    ).after
    event: Event = {
        "person": Freeze(actor="bob", reason="r"),
        "violation": judged(promotion, False),
        "measurement": failed(promotion, "ERROR"),
        "no_data": failed(promotion, "NO_DATA"),
    }[by]
    frozen = step(promotion, event, after(promotion, 2)).after
    assert frozen.frozen_by == by
    with pytest.raises(IllegalTransition, match=f"frozen by {by}"):
        step(frozen, Override(actor="ann", evidence_digest="sha256:u", reason="r"), after(promotion, 3))


@pytest.mark.parametrize("by", [FrozenBy.PERSON, FrozenBy.MEASUREMENT, FrozenBy.TIMER, FrozenBy.VIOLATION])
def test_only_no_data_thaws_by_itself(by: FrozenBy) -> None:
    promotion = at(Stage.SHADOW)
    event: Event = {
        FrozenBy.PERSON: Freeze(actor="bob", reason="r"),
        FrozenBy.MEASUREMENT: failed(promotion, "TIMED_OUT"),
        FrozenBy.TIMER: Tick(),
        FrozenBy.VIOLATION: judged(promotion, False),
    }[by]
    frozen = step(promotion, event, after(promotion, 3600)).after
    assert frozen.frozen_by is by
    late = step(frozen, judged(frozen, True), after(promotion, 3601)).after
    assert (late.status, late.frozen_by, late.undecided) == (Status.FROZEN, by, None)
    assert late.passed == frozen.passed


def test_a_person_can_pin_what_no_data_froze() -> None:
    promotion = at(Stage.SHADOW)
    frozen = step(promotion, failed(promotion, "NO_DATA"), after(promotion, 1)).after
    pinned = step(frozen, Freeze(actor="ann", reason="holiday"), after(promotion, 2)).after
    assert pinned.frozen_by is FrozenBy.PERSON
    assert not step(pinned, judged(pinned, True), after(promotion, 700)).changed


@pytest.mark.parametrize("status", [Status.AWAITING_APPROVAL, Status.PROMOTED])
def test_a_measurement_that_fails_after_the_pass_is_told_once(status: Status) -> None:
    promotion = examples(status)
    transition = step(promotion, failed(promotion, "NO_DATA"), after(promotion, 900))
    assert transition.after.status is status
    assert told(transition) == "promotion.unobserved"
    assert "page" in kinds(transition)
    assert not step(transition.after, failed(promotion, "NO_DATA"), after(promotion, 901)).changed


def test_promoted_stays_on_converged_and_undecided_judgements() -> None:
    for verdict in (True, None):
        assert not step(promoted(), judged(promoted(), verdict), after(promoted(), 900)).changed


def test_an_approval_past_its_time_is_refused_even_before_the_tick() -> None:
    promotion = awaiting()
    assert promotion.approval_expires_at is not None
    last = promotion.approval_expires_at - timedelta(microseconds=1)
    assert step(promotion, Approve(actor="ann"), last).after.stage is Stage.FULL
    with pytest.raises(IllegalTransition, match="expired"):
        step(promotion, Approve(actor="ann"), promotion.approval_expires_at)


def test_durations_beyond_the_calendar_never_come() -> None:
    plans = StagePlans(offline_ci=OfflineCi(deadline=1e30))
    promotion = begin(plans).after
    assert promotion.deadline_at is None
    assert not step(promotion, Tick(), T0 + timedelta(days=365_000)).changed


def test_ending_on_an_unhealthy_known_good_build_calls_a_human() -> None:
    promotion = at(Stage.CANARY, start=begin(healthy=False).after)
    for event in (Abort(actor="ann"), Supersede(by="p2")):
        assert {"reroute", "page"} <= set(kinds(step(promotion, event, after(promotion, 1))))


def test_what_is_still_worth_measuring() -> None:
    statuses = {status for status in Status if observed(examples(status))}
    assert statuses == {Status.MEASURING, Status.AWAITING_APPROVAL, Status.PROMOTED, Status.FROZEN}
    shadow = at(Stage.SHADOW)
    assert observed(step(shadow, failed(shadow, "NO_DATA"), after(shadow, 1)).after)
    assert not observed(step(shadow, failed(shadow, "ERROR"), after(shadow, 1)).after)


def test_only_a_promoted_candidate_is_the_next_known_good() -> None:
    for status in Status:
        expected = BOUND.inference_build if status is Status.PROMOTED else BOUND.known_good_build
        assert known_good_after(examples(status)) == expected


def test_naive_times_are_refused() -> None:
    naive = datetime(2026, 1, 1)  # noqa: DTZ001
    with pytest.raises(ValueError, match="naive"):
        step(begin().after, Tick(), naive)
    with pytest.raises(ValueError, match="naive"):
        start("p", "t", BOUND, PLANS, ESCALATION, naive)


def test_replay_needs_a_start_first() -> None:
    with pytest.raises(IllegalTransition, match="begins with its start"):
        replay([(Tick(), T0)])
    with pytest.raises(ValueError, match="no events"):
        replay([])


@pytest.mark.parametrize(
    "fields",
    [
        {"converged": False, "level": None}, {"converged": True, "level": "L1"}, {"prompts": -1},
        {"converged": True, "violated_slices": ("all",)}, {"evidence_digest": ""},
    ],
    ids=str,
)  # fmt: skip
def test_contradicting_judgements_are_refused(fields: dict[str, object]) -> None:
    good = judged(begin().after, None).model_dump()
    with pytest.raises(ValidationError):
        Judged.model_validate({**good, **fields})


def test_an_act_needs_an_actor() -> None:
    for kind in (Approve, Abort, Retry):
        with pytest.raises(ValidationError):
            kind(actor="")
