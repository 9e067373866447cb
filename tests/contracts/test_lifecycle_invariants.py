"""The invariants of docs/lifecycle.md over arbitrary sequences of events.

The machine keeps its own books of what was evidenced, asked and seen, from the events alone,
and checks every transition against them. Invariants 4 and 5 need several promotions or several
actors: test_lifecycle_races.py.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pydantic import TypeAdapter

from contracts.handlers import OVERRIDABLE
from contracts.lifecycle import IllegalTransition, allowed, replay, start, step
from contracts.model import Action, Canary, Full, Level, OfflineCi, Shadow, Stage, StagePlans
from contracts.promotion import (
    TERMINAL,
    Abort,
    Approve,
    Event,
    Freeze,
    FrozenBy,
    Judged,
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
    Transition,
)
from contracts.routing import Mode, RoutingTable, accept, derive, initial
from tests.contracts.promotion_kit import BOUND, CONTRACT, PATH, SLICES, T0, failed, judged

EVENT: TypeAdapter[Event] = TypeAdapter(Event)
deadlines = st.sampled_from([None, None, 1000.0, 100.0])
durations = st.sampled_from([0.0, 50.0])
approvals = st.sampled_from(["none", "none", "required"])
PLANS = st.builds(
    StagePlans,
    offline_ci=st.builds(OfflineCi, min_prompts=st.sampled_from([1, 10]), deadline=deadlines),
    shadow=st.builds(Shadow, min_prompts=st.just(10), min_duration=durations, deadline=deadlines),
    canary=st.builds(Canary, steps=st.sampled_from([(0.1,), (0.1, 0.5)]), min_prompts=st.just(10),
                     min_duration=durations, deadline=deadlines, approval=approvals),
    full=st.builds(Full, min_prompts=st.just(10), deadline=deadlines, approval=approvals,
                   approval_ttl=st.sampled_from([1000.0, 100.0])),
)  # fmt: skip
ESCALATIONS = st.fixed_dictionaries(
    {},
    optional={level: st.lists(st.sampled_from(Action), unique=True).map(tuple) for level in Level},
)
VERDICTS = st.sampled_from([(True, None), (True, None), (True, None), (None, None), (None, None),
                            (False, Level.L1), (False, Level.L2), (False, Level.L3)])  # fmt: skip
WATCHED = (Status.MEASURING, Status.AWAITING_APPROVAL, Status.FROZEN, Status.PROMOTED)


def place(promotion: Promotion) -> int:
    """How far it has come: the index of its stage and canary step, PROMOTED being furthest."""
    return 99 if promotion.status is Status.PROMOTED else PATH.index((promotion.stage, promotion.step))


class Books(RuleBasedStateMachine):
    """One promotion, a deployment's routing tables, and a consumer that gets them in any order."""

    @initialize(
        plans=PLANS,
        escalation=ESCALATIONS,
        known_good=st.sampled_from([True, True, False]),
        healthy=st.sampled_from([True, True, False]),
        climbs=st.integers(0, 8),
    )
    def begin(self, plans: StagePlans, escalation: Any, known_good: bool, healthy: bool, climbs: int) -> None:
        bound = BOUND if known_good else BOUND.model_copy(update={"known_good_build": None})
        first = start("p1", "chat", bound, plans, escalation, T0, known_good_healthy=healthy)
        self.now, self.promotion = T0, first.after
        self.history, self.recorded = [(first.event, T0)], [(first.event, T0)]
        self.tables = [initial("chat", "good")]
        self.consumer: RoutingTable | None = None
        self.digests = 0
        self.last: tuple[bool | None, str] | None = None  # last usable verdict of the present attempt
        self.healthy = healthy and known_good
        self.known_good = known_good
        self.must_resume = self.must_converge = False  # what an L3 violation leaves to be done
        self.reroute(first)
        for _ in range(climbs):
            self.climb_on()

    # --- the books ----------------------------------------------------------------------

    def reroute(self, transition: Transition) -> None:
        table = derive(transition.after, CONTRACT, self.tables[-1], candidate="new", known_good="good")
        if Reroute() in transition.effects:
            self.tables.append(table)
        else:  # nobody was told to reroute, so the table must be right as it is
            assert table.model_copy(update={"version": self.tables[-1].version}) == self.tables[-1]

    def fire(self, event: Event) -> None:
        before, table = self.promotion, self.tables[-1]
        kept = before.model_dump_json()
        try:
            transition = step(before, event, self.now)
        except IllegalTransition as error:
            refused = error
        else:
            refused = None
        if refused is not None:
            assert before.model_dump_json() == kept
            assert refused.allowed == allowed(before.status)
            return
        assert before.status not in TERMINAL
        assert before.model_dump_json() == kept
        self.history.append((event, self.now))
        if transition.changed:
            self.recorded.append((event, self.now))
        self.promotion = transition.after
        self.invariant_8_one_notice_a_change(transition)
        self.invariants_1_and_3_only_evidence_advances(before, event)
        self.invariant_7_abort_wins(event)
        self.reroute(transition)
        self.invariants_2_and_9_fallback(before, event, transition, table)
        self.measures_exactly_its_attempts(before, transition)
        self.keep(before, event)

    def keep(self, before: Promotion, event: Event) -> None:
        if self.promotion.attempt != before.attempt:
            self.last = None
        elif isinstance(event, Judged) and self.fresh(before, event):
            self.last = (event.converged, event.evidence_digest)
        if isinstance(event, KnownGoodHealth):
            self.healthy = event.healthy and self.known_good
        if isinstance(event, Resume | Retry):
            self.must_resume = False

    @staticmethod
    def fresh(promotion: Promotion, event: Judged) -> bool:
        there = (promotion.bound, promotion.stage, promotion.step, promotion.attempt)
        return (event.bound, event.stage, event.step, event.attempt) == there

    # --- the invariants -----------------------------------------------------------------

    def invariant_8_one_notice_a_change(self, transition: Transition) -> None:
        assert transition.reason
        if not transition.changed:
            assert transition.effects == ()
            return
        assert transition.before is not None
        assert transition.after.version == transition.before.version + 1
        assert transition.after.reason == transition.reason
        (notice,) = (e for e in transition.effects if isinstance(e, Notify))
        assert notice.event.startswith("promotion.")
        assert notice.reason == transition.reason

    def invariants_1_and_3_only_evidence_advances(self, before: Promotion, event: Event) -> None:
        promotion = self.promotion
        assert promotion.passed[: len(before.passed)] == before.passed
        new = promotion.passed[len(before.passed) :]
        if not new:
            approved = isinstance(event, Approve) and before.status is Status.AWAITING_APPROVAL
            assert place(promotion) <= place(before) or approved
            return
        (proof,) = new
        assert (proof.stage, proof.step, proof.attempt) == (before.stage, before.step, before.attempt)
        plan = getattr(before.plans, before.stage.value)
        if isinstance(event, Judged):
            assert self.fresh(before, event)
            assert event.converged is True
            assert (proof.evidence_digest, proof.overridden_by) == (event.evidence_digest, None)
            assert event.prompts >= plan.min_prompts
            assert self.now - before.stage_started_at >= timedelta(seconds=getattr(plan, "min_duration", 0))
            assert before.deadline_at is None or self.now < before.deadline_at
            assert before.frozen_by in (None, FrozenBy.NO_DATA)
            assert not self.must_resume
            self.must_converge = False
        else:
            assert isinstance(event, Override)
            assert (proof.evidence_digest, proof.overridden_by) == (event.evidence_digest, event.actor)
            assert self.last == (None, event.evidence_digest)
            assert promotion.undecided is None
            assert not self.must_resume
            assert not self.must_converge

    def invariant_7_abort_wins(self, event: Event) -> None:
        if isinstance(event, Abort):
            assert self.promotion.status is Status.ABORTED

    def invariants_2_and_9_fallback(
        self, before: Promotion, event: Event, transition: Transition, table: RoutingTable
    ) -> None:
        promotion, now = transition.after, self.tables[-1]
        l3 = isinstance(event, Judged) and event.level is Level.L3 and self.fresh(before, event)
        if l3 and before.status in WATCHED:
            self.must_resume = self.must_converge = True
            if self.healthy:
                assert promotion.status is Status.FALLEN_BACK
                assert now.mode is Mode.KNOWN_GOOD
            else:
                assert promotion.status is Status.FROZEN
                assert (now.share, now.guarded) == (table.share, table.guarded)
                assert any(isinstance(e, Page) for e in transition.effects) or not transition.changed
        if promotion.status is Status.FALLEN_BACK and before.status is not Status.FALLEN_BACK:
            known_good_now = event.healthy if isinstance(event, KnownGoodHealth) else self.healthy
            assert known_good_now
            assert self.known_good
        if self.must_converge and now.share > 0:
            # Only where no fallback was possible may the candidate still serve: nothing switched.
            assert promotion.status is Status.FROZEN
            assert promotion.frozen_by is FrozenBy.FALLBACK_OWED
            assert now.share == table.share

    def measures_exactly_its_attempts(self, before: Promotion, transition: Transition) -> None:
        promotion = transition.after
        asked = [e for e in transition.effects if isinstance(e, Measure)]
        if promotion.attempt == before.attempt:
            assert asked == []
            return
        assert promotion.attempt == before.attempt + 1
        assert asked == [Measure(stage=promotion.stage, step=promotion.step, attempt=promotion.attempt)]
        assert {"cancel_measurement", "reroute"} <= {e.type for e in transition.effects}
        assert promotion.undecided is None

    @invariant()
    def invariant_6_versions_only_grow(self) -> None:
        if hasattr(self, "tables"):
            versions = [table.version for table in self.tables]
            assert versions == list(range(1, len(versions) + 1))

    @invariant()
    def the_state_makes_sense(self) -> None:
        if not hasattr(self, "promotion"):
            return
        p = self.promotion
        assert (p.status is Status.FROZEN) == (p.frozen_by is not None)
        assert (p.status is Status.AWAITING_APPROVAL) == (p.pending_approval is not None)
        assert p.undecided is None or p.status is Status.MEASURING or p.frozen_by in OVERRIDABLE
        assert Promotion.model_validate_json(p.model_dump_json()) == p

    def teardown(self) -> None:
        """Invariant 10: folding the events gives the state, through JSON, with or without idle ones."""
        if hasattr(self, "history"):
            for events in (self.history, self.recorded):
                stored = [(EVENT.dump_json(event), at) for event, at in events]
                assert replay((EVENT.validate_json(text), at) for text, at in stored) == self.promotion

    # --- what can happen ----------------------------------------------------------------

    @rule(
        verdict=VERDICTS,
        prompts=st.sampled_from([9, 10, 500]),
        slices=st.sets(st.sampled_from(SLICES)),
        wait=st.sampled_from([0, 60]),
    )
    def judge(self, verdict: Any, prompts: int, slices: set[str], wait: int) -> None:
        self.judge_now(verdict, prompts, slices, wait)

    def judge_now(self, verdict: Any, prompts: int, slices: set[str], wait: int) -> None:
        self.now += timedelta(seconds=wait)
        self.digests += 1
        converged, level = verdict
        hurt = tuple(sorted(slices)) if converged is False else ()
        self.fire(judged(self.promotion, converged, level=level, prompts=prompts, violated_slices=hurt,
                         evidence_digest=f"sha256:{self.digests}"))  # fmt: skip

    @rule()
    def climb(self) -> None:
        self.climb_on()

    def climb_on(self) -> None:
        """What gets deep: enough converged evidence, or what a person is waited for."""
        if self.promotion.status is Status.AWAITING_APPROVAL:
            self.fire(Approve(actor="ann"))
        elif self.promotion.status in (Status.FROZEN, Status.FALLEN_BACK):
            self.fire(Resume(actor="ann", reason="fixed"))
        else:
            self.judge_now((True, None), 500, set(), 60)

    @rule(verdict=VERDICTS, off=st.sampled_from(["attempt", "stage", "step", "contract", "suite"]))
    def judge_stale(self, verdict: Any, off: str) -> None:
        p = self.promotion
        other: dict[str, Any] = {
            "attempt": {"attempt": p.attempt - 1}, "step": {"step": p.step + 1},
            "stage": {"stage": Stage.SHADOW if p.stage is not Stage.SHADOW else Stage.FULL},
            "contract": {"bound": p.bound.model_copy(update={"contract": "sha256:newer"})},
            "suite": {"bound": p.bound.model_copy(update={"suite": "sha256:newer"})},
        }[off]  # fmt: skip
        self.fire(judged(p, verdict[0], level=verdict[1], **other))
        assert self.promotion == p

    @rule(
        outcome=st.sampled_from(["ERROR", "CANCELLED", "TIMED_OUT", "NO_DATA", "NO_DATA"]), late=st.booleans()
    )
    def fail(self, outcome: str, late: bool) -> None:
        self.fire(failed(self.promotion, outcome, attempt=self.promotion.attempt - late))

    @rule(seconds=st.sampled_from([0, 1, 60, 200]))
    def tick(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        self.fire(Tick())

    @rule()
    def approve(self) -> None:
        self.fire(Approve(actor="ann"))

    @rule(kind=st.sampled_from([Freeze, Resume, Resume, Retry]))
    def ask(self, kind: Any) -> None:
        self.fire(kind(actor="ann", reason="because"))

    @rule(right=st.booleans())
    def override(self, right: bool) -> None:
        digest = (self.promotion.undecided if right else None) or "sha256:wrong"
        self.fire(Override(actor="ann", evidence_digest=digest, reason="seen it"))

    @rule(healthy=st.booleans())
    def health(self, healthy: bool) -> None:
        self.fire(KnownGoodHealth(healthy=healthy))

    @precondition(lambda self: len(self.history) > 25)
    @rule(event=st.sampled_from([Abort(actor="ann"), Supersede(by="p2")]))
    def end(self, event: Event) -> None:
        self.fire(event)

    @rule(pick=st.integers(0, 1000))
    def deliver(self, pick: int) -> None:
        """Invariant 6: tables arrive late, twice or out of order."""
        seen = self.consumer.version if self.consumer else 0
        incoming = self.tables[pick % len(self.tables)]
        self.consumer = accept(self.consumer, incoming)
        assert self.consumer.version == max(seen, incoming.version)


Books.TestCase.settings = settings(max_examples=200, stateful_step_count=40)
TestBooks = Books.TestCase
