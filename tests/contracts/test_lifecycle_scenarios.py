"""Scenarios from the field that pure code decides, under the numbers they have in the design."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from contracts.lifecycle import IllegalTransition, known_good_after, observed, step
from contracts.model import Level, Stage
from contracts.promotion import (
    TERMINAL,
    Abort,
    Approve,
    CancelMeasurement,
    Freeze,
    FrozenBy,
    KnownGoodHealth,
    Measure,
    Notify,
    Override,
    Page,
    Promotion,
    Reroute,
    Resume,
    Retry,
    Status,
    Supersede,
    Tick,
)
from tests.contracts.promotion_kit import (
    BOUND,
    PATH,
    after,
    at,
    awaiting,
    begin,
    failed,
    judged,
    kinds,
    passing,
    promoted,
    told,
)

OUTCOMES = ("ERROR", "CANCELLED", "TIMED_OUT", "NO_DATA")


@pytest.mark.parametrize(("stage", "index"), PATH)
def test_scenario_01_a_source_without_rows_freezes_with_a_plain_reason(stage: Stage, index: int) -> None:
    promotion = at(stage, index)
    transition = step(promotion, failed(promotion, "NO_DATA", reason="no rows in 5 min"), after(promotion, 9))
    assert (transition.after.status, transition.after.frozen_by) == (Status.FROZEN, FrozenBy.NO_DATA)
    assert transition.after.reason.endswith("ended in NO_DATA: no rows in 5 min")
    assert transition.after.passed == promotion.passed


@pytest.mark.parametrize(
    ("verdict", "level", "status", "stage"),
    [
        (True, None, Status.MEASURING, Stage.CANARY),
        (None, None, Status.MEASURING, Stage.SHADOW),
        (False, Level.L1, Status.MEASURING, Stage.SHADOW),
        (False, Level.L2, Status.FROZEN, Stage.SHADOW),
        (False, Level.L3, Status.FALLEN_BACK, Stage.SHADOW),
    ],
)
def test_scenario_02_data_that_comes_back_is_judged_by_itself(
    verdict: bool | None, level: Level | None, status: Status, stage: Stage
) -> None:
    shadow = at(Stage.SHADOW)
    freezing = step(shadow, failed(shadow, "NO_DATA"), after(shadow, 60))
    assert kinds(freezing) == ["notify"]  # mirroring and measuring go on, or nothing could come back
    frozen = freezing.after
    assert observed(frozen)
    assert not step(frozen, Tick(), after(shadow, 700)).changed  # never passed meanwhile
    back = step(frozen, judged(frozen, verdict, level=level), after(shadow, 700)).after
    assert (back.status, back.stage) == (status, stage)
    assert back.frozen_by is (FrozenBy.VIOLATION if status is Status.FROZEN else None)


def test_scenario_02_data_that_comes_back_after_the_deadline_does_not_pass() -> None:
    shadow = at(Stage.SHADOW)
    frozen = step(shadow, failed(shadow, "NO_DATA"), after(shadow, 60)).after
    late = step(frozen, judged(frozen, True), after(shadow, 3600)).after
    assert (late.status, late.frozen_by, late.passed) == (Status.FROZEN, FrozenBy.TIMER, shadow.passed)


def test_scenario_03_errors_and_a_failure_then_termination_are_no_success() -> None:
    promotion = at(Stage.CANARY)
    passed = promotion.passed
    for outcome in ("ERROR", "ERROR", "ERROR", "TIMED_OUT", "CANCELLED"):
        promotion = step(promotion, failed(promotion, outcome), after(promotion, 700)).after
    promotion = step(promotion, Tick(), after(promotion, 10_000)).after
    assert (promotion.status, promotion.passed) == (Status.FROZEN, passed)


def test_scenario_04_what_an_l3_cancels_is_cancelled_and_does_not_hold() -> None:
    promotion = at(Stage.CANARY)
    transition = step(promotion, judged(promotion, False, level=Level.L3), after(promotion, 1))
    assert CancelMeasurement(attempt=promotion.attempt) in transition.effects
    sibling = step(transition.after, failed(promotion, "CANCELLED"), after(promotion, 2))
    assert not sibling.changed
    assert sibling.after.status is Status.FALLEN_BACK


@pytest.mark.parametrize(("stage", "index"), PATH)
def test_scenario_06_a_part_of_the_prompts_does_not_close_a_stage(stage: Stage, index: int) -> None:
    promotion = at(stage, index)
    part = step(promotion, judged(promotion, True, prompts=9), after(promotion, 700)).after
    assert (part.stage, part.step, part.passed) == (stage, index, promotion.passed)


@pytest.mark.parametrize(("stage", "index"), PATH)
def test_scenario_07_a_timer_that_expires_while_inconclusive_freezes(stage: Stage, index: int) -> None:
    promotion = at(stage, index)
    promotion = step(promotion, judged(promotion, None), after(promotion, 700)).after
    assert not step(promotion, Tick(), after(promotion, 3599)).changed
    frozen = step(promotion, Tick(), after(promotion, 3600)).after
    assert (frozen.status, frozen.frozen_by) == (Status.FROZEN, FrozenBy.TIMER)
    assert "timer expired while inconclusive" in frozen.reason


def test_scenario_08_an_override_consumes_exactly_one_verdict_and_does_not_loop() -> None:
    shadow = at(Stage.SHADOW)
    shadow = step(shadow, judged(shadow, None, evidence_digest="sha256:u"), after(shadow, 700)).after
    event = Override(actor="ann", evidence_digest="sha256:u", reason="two prompts short")
    transition = step(shadow, event, after(shadow, 701))
    proof = transition.after.passed[-1]
    assert (proof.evidence_digest, proof.overridden_by, proof.attempt) == ("sha256:u", "ann", shadow.attempt)
    assert "ann" in transition.reason
    assert "two prompts short" in transition.reason
    canary = transition.after
    assert (canary.stage, canary.undecided) == (Stage.CANARY, None)
    for promotion in (canary, step(canary, Retry(actor="ann"), after(canary, 1)).after):
        with pytest.raises(IllegalTransition):
            step(promotion, event, after(canary, 2))


@pytest.mark.parametrize("level", list(Level))
def test_scenario_08_a_violation_cannot_be_overridden(level: Level) -> None:
    shadow = at(Stage.SHADOW)
    shadow = step(shadow, judged(shadow, None, evidence_digest="sha256:u"), after(shadow, 1)).after
    hurt = step(
        shadow, judged(shadow, False, level=level, evidence_digest="sha256:v"), after(shadow, 2)
    ).after
    for digest in ("sha256:u", "sha256:v"):
        with pytest.raises(IllegalTransition):
            step(hurt, Override(actor="ann", evidence_digest=digest, reason="please"), after(shadow, 3))


def test_scenario_08_after_a_fallback_only_converged_evidence_leads_on() -> None:
    canary = at(Stage.CANARY)
    fallen = step(canary, judged(canary, False, level=Level.L3), after(canary, 1)).after
    shadow = step(fallen, Resume(actor="ann", reason="fixed"), after(canary, 2)).after
    shadow = step(shadow, judged(shadow, None, evidence_digest="sha256:u"), after(shadow, 700)).after
    with pytest.raises(IllegalTransition, match="only evidence that converges"):
        step(shadow, Override(actor="ann", evidence_digest="sha256:u", reason="r"), after(shadow, 701))
    canary = passing(shadow).after
    canary = step(canary, judged(canary, None, evidence_digest="sha256:u2"), after(canary, 700)).after
    event = Override(actor="ann", evidence_digest="sha256:u2", reason="r")
    assert step(canary, event, after(canary, 701)).after.step == 1


def test_scenario_09_a_late_result_of_a_previous_stage_or_attempt_is_stale() -> None:
    shadow = at(Stage.SHADOW)
    first = judged(shadow, True)
    retried = step(shadow, Retry(actor="ann"), after(shadow, 100)).after
    canary = passing(retried).after
    for promotion in (retried, canary):
        for late in (first, failed(shadow, "ERROR")):
            transition = step(promotion, late, after(promotion, 700))
            assert not transition.changed
            assert transition.reason.startswith("stale")


def test_scenario_10_a_retry_carries_no_evidence_over() -> None:
    shadow = at(Stage.SHADOW)
    shadow = step(shadow, judged(shadow, None, evidence_digest="sha256:u"), after(shadow, 1)).after
    transition = step(shadow, Retry(actor="ann"), after(shadow, 2))
    retried = transition.after
    assert (retried.attempt, retried.undecided) == (shadow.attempt + 1, None)
    assert CancelMeasurement(attempt=shadow.attempt) in transition.effects
    with pytest.raises(IllegalTransition):
        step(retried, Override(actor="ann", evidence_digest="sha256:u", reason="r"), after(shadow, 3))


def test_scenario_11_the_run_stays_pinned_to_one_contract_digest() -> None:
    promotion = begin().after
    newer = BOUND.model_copy(update={"contract": "sha256:c2"})
    transition = step(promotion, judged(promotion, True, bound=newer), after(promotion, 1))
    assert not transition.changed
    assert "another contract" in transition.reason


def test_scenario_12_an_approval_racing_a_tick_is_one_advance_each_of_a_thousand_times() -> None:
    waiting = awaiting()
    assert waiting.approval_expires_at is not None
    for race in range(1000):
        # The tick and the approval carry the same time, around the moment of expiry.
        now = waiting.approval_expires_at + timedelta(microseconds=race - 500)
        order = [Approve(actor="ann"), Tick(), Approve(actor="bob")]
        promotion, changes = waiting, 0
        for event in order[race % 3 :] + order[: race % 3]:
            try:
                transition = step(promotion, event, now)
            except IllegalTransition:
                continue
            changes += transition.changed
            promotion = transition.after
        expected = (Stage.FULL, Status.MEASURING) if race < 500 else (Stage.CANARY, Status.EXPIRED)
        assert changes == 1
        assert (promotion.stage, promotion.status) == expected


def test_scenario_13_abort_after_full_promotion_restores_known_good() -> None:
    transition = step(promoted(), Abort(actor="ann"), after(promoted(), 10_000))
    assert transition.after.status is Status.ABORTED
    assert Reroute() in transition.effects
    assert known_good_after(transition.after) == BOUND.known_good_build


def test_scenario_14_still_aborted_after_a_restart() -> None:
    canary = at(Stage.CANARY)
    stored = step(canary, Abort(actor="ann"), after(canary, 1)).after.model_dump_json()
    restarted = Promotion.model_validate_json(stored)
    for event in (judged(canary, True), Tick(), Approve(actor="ann"), Resume(actor="ann", reason="r")):
        with pytest.raises(IllegalTransition, match="it is over"):
            step(restarted, event, after(canary, 700))


def test_scenario_17_what_is_told_is_what_the_transition_made() -> None:
    transition = passing(at(Stage.SHADOW))
    (notice,) = (e for e in transition.effects if isinstance(e, Notify))
    assert notice.reason == transition.reason == transition.after.reason
    assert transition.before is not None
    assert transition.after.version == transition.before.version + 1


def test_scenario_20_old_samples_do_not_count_for_the_new_window() -> None:
    first = at(Stage.CANARY)
    second = passing(first).after
    old = step(second, judged(first, True), after(second, 700))
    assert not old.changed
    silent = step(second, judged(second, None, prompts=3), after(second, 700)).after
    assert (silent.step, silent.status) == (1, Status.MEASURING)
    assert step(silent, Tick(), after(second, 3600)).after.frozen_by is FrozenBy.TIMER


def test_scenario_21_a_new_build_mid_canary_supersedes_and_begins_from_zero() -> None:
    canary = at(Stage.CANARY, 1)
    old = step(canary, Supersede(by="p2"), after(canary, 1))
    new = begin(id="p2", bound=BOUND.model_copy(update={"inference_build": "sha256:i2"})).after
    assert old.after.status is Status.SUPERSEDED
    assert {"reroute", "cancel_measurement"} <= set(kinds(old))
    assert (new.stage, new.step, new.attempt, new.passed) == (Stage.OFFLINE_CI, 0, 1, ())
    assert not step(new, judged(canary, True), after(new, 700)).changed


def test_scenario_22_entering_a_stage_is_asked_once_however_often_it_is_denied() -> None:
    waiting, measures = awaiting(), 0
    for _ in range(5):
        with pytest.raises(IllegalTransition):
            step(waiting, Retry(actor="ann"), after(waiting, 800))
        measures += sum(isinstance(e, Measure) for e in step(waiting, Tick(), after(waiting, 800)).effects)
    entered = step(waiting, Approve(actor="ann"), after(waiting, 801))
    measures += sum(isinstance(e, Measure) for e in entered.effects)
    assert measures == 1


def test_scenario_23_l3_while_known_good_is_unhealthy_freezes_and_pages() -> None:
    canary = at(Stage.CANARY)
    canary = step(canary, KnownGoodHealth(healthy=False), after(canary, 1)).after
    transition = step(canary, judged(canary, False, level=Level.L3), after(canary, 2))
    assert transition.after.status is Status.FROZEN
    assert Reroute() not in transition.effects
    assert any(isinstance(effect, Page) for effect in transition.effects)
    assert observed(transition.after)


@pytest.mark.parametrize(("stage", "index"), PATH)
def test_scenario_24_there_is_a_definite_state_by_the_deadline(stage: Stage, index: int) -> None:
    promotion = at(stage, index)
    assert promotion.deadline_at is not None
    assert step(promotion, Tick(), promotion.deadline_at).after.status is Status.FROZEN


def test_scenario_25_every_terminal_path_tells_and_stops_measuring() -> None:
    canary, waiting = at(Stage.CANARY), awaiting()
    assert waiting.approval_expires_at is not None
    endings: list[tuple[Promotion, Any, datetime]] = [
        (waiting, Tick(), waiting.approval_expires_at),
        *((p, Abort(actor="ann"), after(p, 1)) for p in (canary, waiting, promoted(), begin().after)),
        *((p, Supersede(by="p2"), after(p, 1)) for p in (canary, waiting, promoted(), begin().after)),
    ]
    for promotion, event, now in endings:
        transition = step(promotion, event, now)
        assert transition.after.status in TERMINAL
        assert told(transition) == f"promotion.{transition.after.status}"
        assert CancelMeasurement(attempt=promotion.attempt) in transition.effects


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize(("stage", "index"), PATH)
def test_scenarios_27_30_33_37_no_failed_measurement_passes(outcome: str, stage: Stage, index: int) -> None:
    promotion = at(stage, index)
    frozen = step(promotion, failed(promotion, outcome), after(promotion, 700)).after
    assert (frozen.status, frozen.passed) == (Status.FROZEN, promotion.passed)
    assert outcome in frozen.reason


def test_scenario_30_partial_values_before_a_failure_do_not_pass_afterwards() -> None:
    shadow = at(Stage.SHADOW)
    partial = step(shadow, judged(shadow, None, evidence_digest="sha256:part"), after(shadow, 600)).after
    failure = step(partial, failed(partial, "ERROR"), after(shadow, 700)).after
    assert failure.undecided is None
    with pytest.raises(IllegalTransition):
        step(failure, Override(actor="ann", evidence_digest="sha256:part", reason="r"), after(shadow, 701))


def test_scenarios_32_34_the_base_after_a_rollback_is_still_the_known_good() -> None:
    canary = at(Stage.CANARY)
    fallen = step(canary, judged(canary, False, level=Level.L3), after(canary, 1)).after
    assert known_good_after(fallen) == BOUND.known_good_build
    assert (
        known_good_after(step(fallen, Supersede(by="p2"), after(canary, 2)).after) == BOUND.known_good_build
    )
    assert known_good_after(promoted()) == BOUND.inference_build
    frozen = step(promoted(), judged(promoted(), False), after(promoted(), 900)).after
    assert known_good_after(frozen) == BOUND.known_good_build


def test_scenario_38_an_approval_nobody_gives_expires_frees_the_lane_and_alerts() -> None:
    waiting = awaiting()
    assert waiting.approval_expires_at is not None
    assert not step(waiting, Tick(), waiting.approval_expires_at - timedelta(seconds=1)).changed
    transition = step(waiting, Tick(), waiting.approval_expires_at)
    assert transition.after.status is Status.EXPIRED
    assert set(kinds(transition)) == {"cancel_measurement", "reroute", "notify", "page"}


def test_scenario_39_the_zone_and_order_of_clocks_do_not_matter() -> None:
    shadow = at(Stage.SHADOW)
    here = after(shadow, 600)
    there = here.astimezone(timezone(timedelta(hours=9)))
    a, b = (step(shadow, judged(shadow, True), now).after for now in (here, there))
    assert a == b
    behind = datetime(2020, 1, 1, tzinfo=UTC)
    assert not step(shadow, Tick(), behind).changed
    early = step(shadow, judged(shadow, True), behind).after  # a clock set back waits, it never passes
    assert early.stage is Stage.SHADOW


def test_scenario_40_all_measurements_errored_is_never_a_pass() -> None:
    promotion = begin().after
    for _ in range(20):
        promotion = step(promotion, failed(promotion, "ERROR"), after(promotion, 1)).after
        assert promotion.status is Status.FROZEN
        promotion = step(promotion, Retry(actor="ann"), after(promotion, 2)).after
    assert (promotion.stage, promotion.passed, promotion.attempt) == (Stage.OFFLINE_CI, (), 21)


def test_frozen_by_a_person_stays_so_until_a_person_resumes() -> None:
    canary = at(Stage.CANARY)
    frozen = step(canary, Freeze(actor="ann", reason="r"), after(canary, 1)).after
    assert not step(frozen, judged(frozen, True), after(canary, 700)).changed
    resumed = step(frozen, Resume(actor="ann", reason="r"), after(canary, 701)).after
    assert (resumed.stage, resumed.step, resumed.attempt) == (Stage.CANARY, 0, canary.attempt + 1)
