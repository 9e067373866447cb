"""Invariants 4 and 5: several promotions for one target, several actors on one promotion."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contracts.lifecycle import IllegalTransition, start, step
from contracts.model import Full, Level, Stage, StagePlans
from contracts.promotion import (
    TERMINAL,
    Abort,
    Approve,
    Event,
    Freeze,
    Promotion,
    Retry,
    Status,
    Supersede,
    Tick,
)
from contracts.routing import derive, initial
from tests.contracts.promotion_kit import BOUND, CONTRACT, T0, after, awaiting, judged


@given(
    st.lists(
        st.sampled_from(
            ["start", "start", "pass", "pass", "pass", "pass", "approve", "l3", "freeze", "abort"]
        ),
        max_size=40,
    )
)
def test_invariant_4_one_active_promotion_and_one_candidate_per_target(acts: list[str]) -> None:
    """A newer promotion supersedes the active one, whatever that one was doing."""
    lane: list[Promotion] = []
    table = initial("chat", "good")
    plans = StagePlans(full=Full(approval="required"))
    for now, act in enumerate(acts):
        at = T0 + timedelta(seconds=now)
        if act == "start":
            if lane and lane[-1].status not in TERMINAL:
                lane[-1] = step(lane[-1], Supersede(by=f"p{len(lane)}"), at).after
                table = derive(lane[-1], CONTRACT, table, candidate=lane[-1].id, known_good="good")
            lane.append(start(f"p{len(lane)}", "chat", BOUND, plans, {}, at).after)
        elif lane:
            events: dict[str, Any] = {
                "pass": lambda: judged(lane[-1], True), "l3": lambda: judged(lane[-1], False, level=Level.L3),
                "approve": lambda: Approve(actor="ann"), "abort": lambda: Abort(actor="ann"),
                "freeze": lambda: Freeze(actor="ann", reason="r"),
            }  # fmt: skip
            try:
                lane[-1] = step(lane[-1], events[act](), at).after
            except IllegalTransition:
                continue
        if lane:
            table = derive(lane[-1], CONTRACT, table, candidate=lane[-1].id, known_good="good")
            assert sum(promotion.status not in TERMINAL for promotion in lane) <= 1
            assert table.candidate in (None, lane[-1].id)


@given(
    order=st.permutations(["approve", "approve", "tick", "tick", "judged", "judged", "retry"]),
    reads=st.lists(st.integers(0, 6), min_size=7, max_size=7),
)
def test_invariant_5_one_advance_per_decision_whoever_races(order: list[str], reads: list[int]) -> None:
    """Compare-and-swap on the version: whoever read an old state loses, reads again and tries once more."""
    first = awaiting()
    states, now = [first], after(first, 800)
    events: dict[str, Event] = {
        "approve": Approve(actor="ann"), "tick": Tick(), "judged": judged(first, True),
        "retry": Retry(actor="bob"),
    }  # fmt: skip
    entries = 0
    for act, read in zip(order, reads, strict=True):
        for seen in (states[min(read, len(states) - 1)], states[-1]):
            try:
                transition = step(seen, events[act], now)
            except IllegalTransition:
                continue
            if transition.changed and seen.version == states[-1].version:
                states.append(transition.after)
                entries += act == "approve"
                break
    assert entries == 1
    assert [s.version for s in states] == list(range(first.version, first.version + len(states)))
    assert states[1].stage is Stage.FULL
    assert {(s.stage, s.status) for s in states[1:]} == {(Stage.FULL, Status.MEASURING)}
    assert states[-1].passed == first.passed
