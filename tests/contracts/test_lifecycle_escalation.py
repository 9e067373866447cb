"""What a violation of each level sets in motion, in every status."""

from __future__ import annotations

import pytest

from contracts.lifecycle import IllegalTransition, step
from contracts.model import Action, Level, Stage
from contracts.promotion import (
    FrozenBy,
    KnownGoodHealth,
    Override,
    Resume,
    Retry,
    Status,
)
from tests.contracts.promotion_kit import BOUND, after, at, begin, examples, judged, kinds, passing, told


def test_l1_is_logged_and_never_passes() -> None:
    promotion = at(Stage.CANARY)
    transition = step(promotion, judged(promotion, False, level=Level.L1), after(promotion, 700))
    assert kinds(transition) == ["notify"]
    assert told(transition) == "promotion.violated"
    assert (transition.after.status, transition.after.passed) == (Status.MEASURING, promotion.passed)


def test_l2_guards_the_slices_and_freezes() -> None:
    promotion = at(Stage.CANARY)
    event = judged(promotion, False, violated_slices=("long", "python"))
    transition = step(promotion, event, after(promotion, 1))
    frozen = transition.after
    assert (frozen.status, frozen.frozen_by) == (Status.FROZEN, FrozenBy.VIOLATION)
    assert frozen.guarded == ("long", "python")
    assert kinds(transition) == ["reroute", "notify"]
    again = step(frozen, event, after(promotion, 2))
    assert not again.changed
    more = step(frozen, judged(promotion, False, violated_slices=("safety",)), after(promotion, 2)).after
    assert more.guarded == ("long", "python", "safety")


def test_l2_that_only_guards_goes_on_and_fresh_converged_evidence_lifts_the_guard() -> None:
    promotion = at(Stage.CANARY, start=begin(L2=(Action.GUARD,)).after)
    guarded = step(promotion, judged(promotion, False, violated_slices=("long",)), after(promotion, 1)).after
    assert (guarded.status, guarded.guarded) == (Status.MEASURING, ("long",))
    transition = passing(guarded)
    assert transition.after.guarded == ()
    assert "reroute" in kinds(transition)


def test_an_override_does_not_lift_a_guard() -> None:
    promotion = at(Stage.CANARY, start=begin(L2=(Action.GUARD,)).after)
    guarded = step(promotion, judged(promotion, False, violated_slices=("long",)), after(promotion, 1)).after
    undecided = step(guarded, judged(guarded, None, evidence_digest="sha256:u"), after(promotion, 2)).after
    event = Override(actor="ann", evidence_digest="sha256:u", reason="r")
    assert step(undecided, event, after(promotion, 3)).after.guarded == ("long",)


@pytest.mark.parametrize("actions", [(), (Action.LOG,), (Action.PAGE,)])
def test_no_escalation_is_milder_than_its_level(actions: tuple[Action, ...]) -> None:
    promotion = at(Stage.CANARY, start=begin(L2=actions, L3=actions).after)
    l2 = step(promotion, judged(promotion, False, level=Level.L2), after(promotion, 1))
    l3 = step(promotion, judged(promotion, False, level=Level.L3), after(promotion, 1))
    assert (l2.after.status, l3.after.status) == (Status.FROZEN, Status.FALLEN_BACK)
    assert ("page" in kinds(l2)) == (Action.PAGE in actions)


@pytest.mark.parametrize(
    "status", [Status.MEASURING, Status.AWAITING_APPROVAL, Status.FROZEN, Status.PROMOTED]
)
def test_l3_falls_back_from_wherever_users_meet_the_candidate(status: Status) -> None:
    promotion = examples(status)
    transition = step(promotion, judged(promotion, False, level=Level.L3), after(promotion, 900))
    assert transition.after.status is Status.FALLEN_BACK
    assert kinds(transition) == ["cancel_measurement", "reroute", "page", "notify"]


@pytest.mark.parametrize("stage", [Stage.CANARY, Stage.FULL])
@pytest.mark.parametrize("missing", ["unhealthy", "unbound"])
def test_l3_without_a_known_good_build_freezes_pages_and_switches_nothing(stage: Stage, missing: str) -> None:
    bound = BOUND if missing == "unhealthy" else BOUND.model_copy(update={"known_good_build": None})
    promotion = at(stage, start=begin(bound=bound, healthy=missing == "unbound").after)
    transition = step(promotion, judged(promotion, False, level=Level.L3), after(promotion, 1))
    frozen = transition.after
    assert (frozen.status, frozen.frozen_by) == (Status.FROZEN, FrozenBy.FALLBACK_OWED)
    assert kinds(transition) == ["page", "notify"]
    assert not step(frozen, judged(frozen, False, level=Level.L3), after(promotion, 2)).changed
    for event in (Resume(actor="ann", reason="r"), Retry(actor="ann")):
        with pytest.raises(IllegalTransition, match="owed a fallback"):
            step(frozen, event, after(promotion, 2))


def test_the_owed_fallback_takes_place_once_the_known_good_build_is_healthy() -> None:
    promotion = at(Stage.CANARY, start=begin(healthy=False).after)
    frozen = step(promotion, judged(promotion, False, level=Level.L3), after(promotion, 1)).after
    transition = step(frozen, KnownGoodHealth(healthy=True), after(promotion, 2))
    assert transition.after.status is Status.FALLEN_BACK
    assert {"reroute", "page", "notify"} <= set(kinds(transition))


def test_l3_in_shadow_without_known_good_freezes_by_the_violation_since_no_user_is_served_by_it() -> None:
    promotion = at(Stage.SHADOW, start=begin(healthy=False).after)
    transition = step(promotion, judged(promotion, False, level=Level.L3), after(promotion, 1))
    assert transition.after.frozen_by is FrozenBy.VIOLATION
    assert "page" in kinds(transition)
    assert (
        step(transition.after, Resume(actor="ann", reason="r"), after(promotion, 2)).after.stage
        is Stage.SHADOW
    )


def test_the_stage_decides_the_actions() -> None:
    policy = {"default": (Action.LOG, Action.FREEZE), "canary": (Action.GUARD,)}
    start = begin(L2=policy).after
    shadow, canary = at(Stage.SHADOW, start=start), at(Stage.CANARY, start=start)
    frozen = step(shadow, judged(shadow, False, violated_slices=("long",)), after(shadow, 1)).after
    guarded = step(canary, judged(canary, False, violated_slices=("long",)), after(canary, 1)).after
    assert (frozen.status, frozen.guarded) == (Status.FROZEN, ())
    assert (guarded.status, guarded.guarded) == (Status.MEASURING, ("long",))


@pytest.mark.parametrize("level", [Level.L2, Level.L3])
def test_no_stage_is_milder_than_its_level(level: Level) -> None:
    policy = {"default": tuple(Action), "canary": ()}
    promotion = at(Stage.CANARY, start=begin(**{level.value: policy}).after)
    expected = {Level.L2: Status.FROZEN, Level.L3: Status.FALLEN_BACK}[level]
    assert (
        step(promotion, judged(promotion, False, level=level), after(promotion, 1)).after.status is expected
    )


def test_a_policy_by_stage_survives_storage() -> None:
    promotion = begin(L2={"default": (Action.LOG,), "full": (Action.PAGE,)}).after
    assert type(promotion).model_validate_json(promotion.model_dump_json()) == promotion
