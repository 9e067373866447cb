"""The routing table of every situation, and the choice for one request."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from contracts.lifecycle import step
from contracts.model import Action, Contract, Level, Stage
from contracts.promotion import Freeze, KnownGoodHealth, Promotion, Resume, Retry, Status, Tick
from contracts.routing import Mode, Route, RoutingTable, accept, choose, derive, initial
from contracts.slices import Attributes
from tests.contracts.promotion_kit import PATH, after, at, begin, examples, failed, judged

SHORT = Attributes(prompt_tokens=10, language="en")
LONG = Attributes(prompt_tokens=1000, language="en")
KEYS = [f"user-{i}" for i in range(4000)]


def contract(**more: Any) -> Contract:
    return Contract.model_validate(
        {
            "apiVersion": "kernel-contracts/v1",
            "kind": "KernelContract",
            "metadata": {"name": "c", "version": "1.0.0"},
            "pair": {"train": {}, "inference": {}},
            "slices": {
                "long": {"where": {"prompt_tokens": {"gte": 512}}},
                "python": {"where": {"language": "python"}},
            },
            "clauses": [
                {"id": "N1", "family": "numerical", "metric": "tv", "limit": {"lte": 0.1}, "kind": "hard",
                 "level": "L2", "slices": ["all", "long", "python"]}
            ],
            **more,
        }
    )  # fmt: skip


def table(promotion: Promotion, previous: RoutingTable | None = None, **more: Any) -> RoutingTable:
    before = previous or initial("chat", "good")
    return derive(promotion, contract(**more), before, candidate="new", known_good="good")


def guarding(stage: Stage = Stage.FULL, slices: tuple[str, ...] = ("long",)) -> Promotion:
    promotion = at(stage, start=begin(L2=(Action.GUARD,)).after)
    return step(promotion, judged(promotion, False, violated_slices=slices), after(promotion, 1)).after


@pytest.mark.parametrize(
    ("stage", "index", "expected"),
    [
        (Stage.OFFLINE_CI, 0, (Mode.KNOWN_GOOD, None, 0.0, 0.0, 0.0)),
        (Stage.SHADOW, 0, (Mode.SHADOW, "new", 0.0, 0.5, 1.0)),
        (Stage.CANARY, 0, (Mode.CANARY, "new", 0.1, 0.0, 1.0)),
        (Stage.CANARY, 1, (Mode.CANARY, "new", 0.5, 0.0, 1.0)),
        (Stage.FULL, 0, (Mode.FULL, "new", 1.0, 0.0, 0.2)),
    ],
)
def test_each_stage_has_its_table(stage: Stage, index: int, expected: tuple[object, ...]) -> None:
    promotion = at(stage, index)
    made = table(promotion)
    assert (made.mode, made.candidate, made.share, made.mirror, made.audit_rate) == expected
    assert (made.promotion, made.stage, made.step, made.attempt) == ("p1", stage, index, promotion.attempt)
    assert (made.target, made.version, made.known_good) == ("chat", 2, "good")


@pytest.mark.parametrize(
    "status", [Status.FALLEN_BACK, Status.ABORTED, Status.SUPERSEDED, Status.EXPIRED], ids=str
)
def test_only_the_known_good_build_serves_after_the_end_or_a_fallback(status: Status) -> None:
    made = table(examples(status))
    assert (made.mode, made.candidate, made.share, made.mirror) == (Mode.KNOWN_GOOD, None, 0.0, 0.0)
    assert {choose(made, key, LONG).serve for key in KEYS[:200]} == {"good"}


@pytest.mark.parametrize(("stage", "index"), PATH)
def test_a_frozen_stage_keeps_serving_what_served(stage: Stage, index: int) -> None:
    promotion = at(stage, index)
    frozen = step(promotion, Freeze(actor="ann", reason="r"), after(promotion, 1)).after
    was, now = table(promotion), table(frozen)
    assert now.share == was.share
    assert now.mirror == 0.0
    assert now.mode is (Mode.KNOWN_GOOD if stage in (Stage.OFFLINE_CI, Stage.SHADOW) else was.mode)


def test_shadow_that_waits_for_data_keeps_mirroring_or_none_could_come() -> None:
    shadow = at(Stage.SHADOW)
    frozen = step(shadow, failed(shadow, "NO_DATA"), after(shadow, 1)).after
    assert table(frozen).mirror == 0.5


def test_awaiting_approval_keeps_the_last_canary_share_and_promoted_the_audit() -> None:
    assert table(examples(Status.AWAITING_APPROVAL)).share == 0.5
    made = table(examples(Status.PROMOTED))
    assert (made.mode, made.share, made.audit_rate) == (Mode.FULL, 1.0, 0.2)


def test_resuming_after_a_fallback_serves_no_user_with_the_candidate() -> None:
    fallen = examples(Status.FALLEN_BACK)
    resumed = step(fallen, Resume(actor="ann", reason="fixed"), after(fallen, 9)).after
    assert (table(resumed).mode, table(resumed).share) == (Mode.SHADOW, 0.0)


def test_an_l3_violation_without_fallback_leaves_the_split_as_it_was() -> None:
    canary = at(Stage.CANARY)
    canary = step(canary, KnownGoodHealth(healthy=False), after(canary, 1)).after
    frozen = step(canary, judged(canary, False, level=Level.L3), after(canary, 2)).after
    assert table(frozen).model_copy(update={"version": 1}) == table(canary).model_copy(update={"version": 1})


def test_a_table_of_another_target_is_refused() -> None:
    with pytest.raises(ValueError, match="other"):
        table(begin().after, initial("other", "good"))
    with pytest.raises(ValueError, match="other"):
        accept(initial("chat", "good"), initial("other", "good"))


@given(st.lists(st.integers(1, 30), max_size=40))
def test_a_consumer_never_goes_back(versions: list[int]) -> None:
    seen: RoutingTable | None = None
    for arrived, version in enumerate(versions, start=1):
        seen = accept(seen, RoutingTable(target="chat", version=version, known_good="good"))
        assert seen.version == max(versions[:arrived])


def test_the_same_version_twice_changes_nothing() -> None:
    first = initial("chat", "good")
    assert accept(first, initial("chat", "bad")) is first


@given(key=st.text(), low=st.floats(0, 1), high=st.floats(0, 1))
def test_who_meets_the_candidate_keeps_meeting_it_as_the_share_grows(
    key: str, low: float, high: float
) -> None:
    low, high = sorted((low, high))
    base = table(at(Stage.CANARY))
    small, large = (base.model_copy(update={"share": share}) for share in (low, high))
    if choose(small, key, SHORT).serve == "new":
        assert choose(large, key, SHORT).serve == "new"


@given(st.text())
def test_the_ends_of_the_share_are_exact(key: str) -> None:
    base = table(at(Stage.CANARY))
    assert choose(base.model_copy(update={"share": 0.0}), key, SHORT).serve == "good"
    assert choose(base.model_copy(update={"share": 1.0}), key, SHORT).serve == "new"


def test_the_split_is_the_documented_hash() -> None:
    made = table(at(Stage.CANARY, 1))
    for key in KEYS[:300]:
        digest = hashlib.sha256(f"split\x1fchat\x1fp1\x1f{key}".encode()).hexdigest()
        expected = "new" if int(digest[:16], 16) / 2**64 < 0.5 else "good"
        assert choose(made, key, SHORT).serve == expected


@pytest.mark.parametrize("index", [0, 1])
def test_the_split_has_its_share(index: int) -> None:
    made = table(at(Stage.CANARY, index))
    served = sum(choose(made, key, SHORT).serve == "new" for key in KEYS)
    # Five standard deviations of Binomial(4000, share).
    assert abs(served - 4000 * made.share) < 5 * (4000 * made.share * (1 - made.share)) ** 0.5


def test_another_promotion_draws_another_split() -> None:
    first, second = table(at(Stage.CANARY, 1)), table(at(Stage.CANARY, 1, begin(id="p2").after))
    same = sum(choose(first, k, SHORT).serve == choose(second, k, SHORT).serve for k in KEYS)
    assert 1800 < same < 2200


def test_auditing_is_independent_of_the_split_and_samples_requests_not_users() -> None:
    base = table(at(Stage.CANARY, 1)).model_copy(update={"audit_rate": 0.5})
    audited = [choose(base, key, SHORT).dual for key in KEYS if choose(base, key, SHORT).serve == "new"]
    assert 0.45 < sum(audited) / len(audited) < 0.55
    one_user = {choose(table(at(Stage.FULL)), "user", SHORT, f"request-{i}").dual for i in range(100)}
    assert one_user == {True, False}


def test_shadow_serves_known_good_and_mirrors_its_share() -> None:
    routes = [choose(table(at(Stage.SHADOW)), key, SHORT) for key in KEYS]
    assert {(r.serve, r.role) for r in routes} == {("good", "baseline")}
    assert {(r.mirror, r.dual) for r in routes} == {("new", True), (None, False)}
    assert 1800 < sum(r.mirror is not None for r in routes) < 2200


def test_full_is_audited_at_its_rate() -> None:
    routes = [choose(table(at(Stage.FULL)), key, SHORT) for key in KEYS]
    assert {(r.serve, r.mirror, r.role) for r in routes} == {("new", None, "candidate")}
    assert 650 < sum(r.dual for r in routes) < 950


@pytest.mark.parametrize(
    ("guard", "serve", "role"), [({"build": "safe"}, "safe", "guard"), (None, "good", "baseline")]
)
def test_a_guarded_slice_stays_off_the_candidate_and_is_only_mirrored(
    guard: dict[str, str] | None, serve: str, role: str
) -> None:
    made = table(guarding(), guard=guard).model_copy(update={"audit_rate": 1.0})
    assert choose(made, "u", LONG) == Route(serve=serve, mirror="new", dual=True, role=role)
    assert choose(made, "u", SHORT) == Route(serve="new", dual=True, role="candidate")


def test_a_guard_that_is_the_candidate_guards_nothing_so_known_good_does() -> None:
    assert choose(table(guarding(), guard={"build": "new"}), "u", LONG).serve == "good"


def test_the_whole_of_traffic_can_be_guarded() -> None:
    made = table(guarding(slices=("all",)), guard={"build": "safe"})
    assert {choose(made, key, SHORT).serve for key in KEYS[:100]} == {"safe"}


def test_an_unknown_language_may_be_the_guarded_one() -> None:
    made = table(guarding(slices=("python",)), guard={"build": "safe"})
    unknown = Attributes(prompt_tokens=10)
    assert choose(made, "u", unknown).serve == "safe"
    assert choose(made, "u", SHORT).serve == "new"


def test_outside_serving_stages_nothing_needs_a_guard() -> None:
    made = table(guarding(Stage.SHADOW), guard={"build": "safe"})
    assert (made.guard, made.guarded) == (None, {})


def test_a_guarded_slice_the_contract_lacks_is_an_error() -> None:
    with pytest.raises(KeyError):
        table(guarding(slices=("unknown",)))


def test_a_retry_tags_traffic_with_the_new_attempt() -> None:
    canary = at(Stage.CANARY)
    retried = step(canary, Retry(actor="ann"), after(canary, 5))
    assert "reroute" in [e.type for e in retried.effects]
    assert table(retried.after).attempt == canary.attempt + 1


def test_a_table_survives_json() -> None:
    made = table(guarding(), guard={"build": "safe"})
    assert RoutingTable.model_validate_json(made.model_dump_json()) == made


@pytest.mark.parametrize(
    "wrong",
    [
        {"candidate": "new"}, {"mode": "canary"}, {"share": 0.1}, {"mirror": 0.1}, {"version": 0},
        {"mode": "shadow", "candidate": "new", "share": 0.1},
        {"mode": "full", "candidate": "new", "mirror": 0.1},
    ],
    ids=str,
)  # fmt: skip
def test_contradicting_tables_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        RoutingTable.model_validate({"target": "chat", "version": 1, "known_good": "good", **wrong})


def test_an_idle_tick_does_not_reroute() -> None:
    canary = at(Stage.CANARY)
    assert step(canary, Tick(), after(canary, 1)).effects == ()
