import threading
from functools import partial

import pytest
from sqlalchemy import select

from app.db import repositories
from app.db.models import AuditRow, OutboxRow, PromotionRow, RoutingRow, TransitionRow
from app.errors import ActivePromotion, Contention, IllegalEvent, NotFound, Unprocessable
from app.services import outbox, promotions
from app.services.binding import Order
from contracts.promotion import Abort, Approve, Freeze, Override, Resume, Retry, Tick
from contracts.routing import Mode
from tests.app.world import BAD, CANDIDATE, OTHER, STEADY, TARGET, TRAIN


def promoted(world):
    """A promotion taken through all stages by measurements and one approval."""
    promotion = world.start()
    world.evaluate()
    for _ in range(3):
        world.live()
    world.apply(promotion, Approve(actor="ann"))
    world.live()
    assert world.place(promotion) == ("full", 0, "promoted")
    return promotion


def rows(world, kind):
    with world.database.reading() as session:
        return session.scalars(select(kind)).all()


def test_all_stages(world):
    promotion = world.start()
    assert world.place(promotion) == ("offline_ci", 0, "measuring")
    assert world.table().mode is Mode.KNOWN_GOOD
    world.evaluate()
    assert world.place(promotion) == ("shadow", 0, "measuring")
    assert (world.table().mode, world.table().mirror) == (Mode.SHADOW, 1.0)
    world.live()
    assert world.place(promotion) == ("canary", 0, "measuring")
    assert world.table().share == 0.5
    world.live()
    assert world.table().share == 0.75
    world.live()
    assert world.place(promotion) == ("canary", 1, "awaiting_approval")
    assert world.deployment().known_good_build == STEADY
    world.apply(promotion, Approve(actor="ann"))
    assert (world.table().mode, world.table().share) == (Mode.FULL, 1.0)
    world.live()
    assert world.place(promotion) == ("full", 0, "promoted")
    assert world.deployment().known_good_build == CANDIDATE


def test_every_transition_has_its_audit_entry_and_its_event(world):
    promotion = promoted(world)
    transitions = rows(world, TransitionRow)
    events = rows(world, OutboxRow)
    audited = [row for row in rows(world, AuditRow) if row.subject == f"promotion/{promotion}"]
    versions = list(range(1, len(transitions) + 1))
    assert [row.version for row in transitions] == versions
    assert [row.version for row in events] == versions
    assert [row.detail["version"] for row in audited] == versions
    assert len({row.event_id for row in events}) == len(events)
    for transition, event in zip(transitions, events, strict=True):
        assert event.payload["version"] == transition.version
        assert event.payload["state"] == transition.state.model_dump(mode="json")
    with world.database.reading() as session:
        assert len(outbox.pending(session)) == len(events)


def test_replaying_the_events_gives_the_recorded_states(world):
    promotion = promoted(world)
    with world.database.reading() as session:
        history = promotions.history(session, promotion)
        for length in range(1, len(history) + 1):
            assert promotions.replay(history[:length]) == history[length - 1].state
        assert promotions.get(session, promotion).state == history[-1].state


def test_routing_versions_only_grow_and_are_told(world):
    promoted(world)
    versions = [row.version for row in rows(world, RoutingRow)]
    assert versions == list(range(1, len(versions) + 1))
    told = [row.payload["routing_version"] for row in rows(world, OutboxRow)]
    assert [version for version in told if version] == versions[1:]


def test_an_l3_violation_falls_back_in_the_same_transaction(world):
    promotion = world.start()
    world.evaluate()
    world.live()
    world.live(kl=BAD)
    assert world.place(promotion) == ("canary", 0, "fallen_back")
    assert world.table().mode is Mode.KNOWN_GOOD
    last = rows(world, OutboxRow)[-1]
    assert last.type == "promotion.fallen_back"
    assert last.payload["routing_version"] == world.table().version
    assert last.payload["page"]


def test_only_an_attributed_resume_leads_forward_from_a_fallback(world):
    promotion = world.start()
    world.evaluate()
    world.live()
    world.live(kl=BAD)
    assert world.tick() == 0
    with pytest.raises(IllegalEvent):
        world.apply(promotion, Approve(actor="ann"))
    world.apply(promotion, Resume(actor="ann", reason="driver replaced"))
    assert world.place(promotion) == ("shadow", 0, "measuring")
    with world.database.reading() as session:
        assert promotions.history(session, promotion)[-1].actor == "ann"


def test_l3_while_known_good_is_unhealthy_switches_nothing(world):
    promotion = world.start()
    world.evaluate()
    world.live()
    with world.database.unit_of_work() as session:
        promotions.known_good_health(session, TARGET, healthy=False)
    before = world.table()
    world.live(kl=BAD)
    assert world.place(promotion) == ("canary", 0, "frozen")
    assert world.table() == before
    with world.database.unit_of_work() as session:
        promotions.known_good_health(session, TARGET, healthy=True)
    assert world.place(promotion) == ("canary", 0, "fallen_back")
    assert world.table().mode is Mode.KNOWN_GOOD


def test_l2_freezes_offline_with_the_clause_in_the_reason(world):
    promotion = world.start()
    world.evaluate(BAD, kl=0.0)
    assert world.place(promotion) == ("offline_ci", 0, "frozen")
    assert "N1" in world.state(promotion).reason
    assert world.table().candidate is None


def test_a_newer_promotion_supersedes(world):
    old = world.start()
    lease = world.lease()
    new = world.start(OTHER)
    assert world.place(old)[2] == "superseded"
    assert world.place(new) == ("offline_ci", 0, "measuring")
    assert world.report(lease) is None, "the old one's measurement is stale"
    assert world.place(old)[2] == "superseded"


def test_superseding_can_be_refused(world):
    first = world.start()
    with pytest.raises(ActivePromotion) as refused:
        world.start(OTHER, on_active="refuse")
    assert refused.value.extra == {"promotion": first}
    assert len(rows(world, PromotionRow)) == 1


def test_a_second_active_promotion_cannot_even_be_stored(world, monkeypatch):
    world.start()
    monkeypatch.setattr(repositories, "promotions", lambda *a, **k: [])
    with pytest.raises(Contention):
        world.start(OTHER)
    assert len(rows(world, PromotionRow)) == 1


def test_a_superseding_promotion_starts_from_what_is_promoted(world):
    promoted(world)
    new = world.start(OTHER)
    assert world.deployment().known_good_build == CANDIDATE
    assert world.table().known_good == CANDIDATE
    assert world.table().mode is Mode.KNOWN_GOOD
    world.evaluate()
    assert world.table().known_good == CANDIDATE
    with world.database.reading() as session:
        assert promotions.get(session, new).known_good_build == CANDIDATE


def test_abort_after_full_promotion_restores_known_good_for_good(world):
    promotion = promoted(world)
    lease_less = world.lease()
    assert lease_less is None
    world.apply(promotion, Abort(actor="ann"))
    assert world.deployment().known_good_build == STEADY
    assert world.table().mode is Mode.KNOWN_GOOD
    assert world.table().known_good == STEADY
    with pytest.raises(IllegalEvent):
        world.apply(promotion, Resume(actor="ann", reason="no"))
    world.database.dispose()
    assert world.place(promotion)[2] == "aborted"
    assert world.tick() == 0


def test_a_frozen_promoted_build_is_no_longer_known_good(world):
    promotion = promoted(world)
    world.apply(promotion, Freeze(actor="ann", reason="odd answers"))
    assert world.deployment().known_good_build == STEADY
    assert world.table().mode is Mode.FULL, "what serves keeps serving"


def test_what_is_known_good_already_cannot_be_promoted(world):
    promoted(world)
    with pytest.raises(Unprocessable, match="already serves"):
        world.start(CANDIDATE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"contract": "tiny@9.9.9"}, "no contract"),
        ({"contract": "tiny"}, "name@version"),
        ({"checkpoint": "x"}, "no checkpoint"),
        ({"train": "x"}, "no kernel build"),
        ({"inference": "x"}, "no kernel build"),
        ({"suite": "x"}, "no suite"),
        ({"inference": TRAIN}, "engine must be 'torch-serving'"),
        ({"train": CANDIDATE}, "engine must be 'torch'"),
    ],
)
def test_an_order_that_does_not_fit_leaves_nothing(world, change, words):
    order = {
        "deployment": TARGET, "contract": "tiny@1.0.0", "checkpoint": "model",
        "train": TRAIN, "inference": CANDIDATE, "suite": "suite",
    }  # fmt: skip
    with pytest.raises(Unprocessable, match=words), world.database.unit_of_work() as session:
        promotions.start(session, Order(**{**order, **change}))
    assert rows(world, PromotionRow) == []
    assert world.lease() is None


def test_unknown_deployment_and_promotion(world):
    with pytest.raises(NotFound), world.database.unit_of_work() as session:
        promotions.start(session, Order("x", "tiny@1.0.0", "model", TRAIN, CANDIDATE, "suite"))
    with pytest.raises(NotFound):
        world.apply("nope", Tick())


def test_a_tick_with_nothing_due_writes_nothing(world):
    promotion = world.start()
    before = world.state(promotion)
    assert world.apply(promotion, Tick()).changed is False
    assert world.state(promotion) == before
    assert len(rows(world, TransitionRow)) == 1


def test_an_override_consumes_exactly_its_verdict(world):
    promotion = world.start()
    world.evaluate(prompts=3)
    state = world.state(promotion)
    assert (state.status, state.frozen_by, state.undecided is not None) == ("frozen", "inconclusive", True)
    with pytest.raises(IllegalEvent):
        world.apply(promotion, Override(actor="ann", evidence_digest="sha256:other", reason="?"))
    world.apply(promotion, Override(actor="ann", evidence_digest=state.undecided, reason="seen it by eye"))
    assert world.place(promotion) == ("shadow", 0, "measuring")
    with pytest.raises(IllegalEvent):
        world.apply(promotion, Override(actor="ann", evidence_digest=state.undecided, reason="again"))


def test_a_retry_carries_no_evidence_over(world):
    promotion = world.start()
    world.evaluate(prompts=30)
    world.apply(promotion, Retry(actor="ann"))
    assert world.state(promotion).attempt == 2
    world.evaluate(prompts=30)
    assert world.place(promotion) == ("offline_ci", 0, "frozen"), "30 prompts twice are not 60"


def test_the_run_stays_pinned_to_its_contract(world):
    promotion = world.start()
    with world.database.unit_of_work() as session:
        from app.services import registry

        registry.register_contract(session, world.contract.replace("1.0.0", "1.0.1").encode())
    world.evaluate()
    with world.database.reading() as session:
        row = promotions.get(session, promotion)
        assert row.contract == row.state.bound.contract
        assert repositories.contract(session, "tiny", "1.0.0").digest == row.contract


def test_the_loser_of_a_swap_looks_again(world, monkeypatch):
    promotion = world.start()
    with world.database.reading() as session:
        stale = promotions.get(session, promotion)
    world.apply(promotion, Freeze(actor="ann", reason="stop"))
    seen = []
    current = promotions.get

    def first_stale(session, promotion_id):
        seen.append(promotion_id)
        return stale if len(seen) == 1 else current(session, promotion_id)

    monkeypatch.setattr(promotions, "get", first_stale)
    transition = world.apply(promotion, Abort(actor="bob"))
    assert len(seen) == 2
    assert (transition.before.status, transition.after.version) == ("frozen", 3)


def test_endless_contention_is_an_error_and_changes_nothing(world, monkeypatch):
    promotion = world.start()
    monkeypatch.setattr(repositories, "swap", lambda *a: False)
    with pytest.raises(Contention):
        world.apply(promotion, Abort(actor="bob"))
    assert world.place(promotion)[2] == "measuring"


def race(*actions):
    """Run actions at the same moment; what each raised, None for success."""
    barrier = threading.Barrier(len(actions))
    raised = [None] * len(actions)

    def run(index, action):
        barrier.wait()
        try:
            action()
        except Exception as error:  # noqa: BLE001 - the point is what it was
            raised[index] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(actions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_approve_racing_approve_and_tick_advances_exactly_once(world):
    promotion = world.start()
    world.evaluate()
    for _ in range(3):
        world.live()
    for _ in range(200):
        before = world.state(promotion)
        assert before.status == "awaiting_approval"
        raised = race(
            lambda: world.apply(promotion, Approve(actor="ann")),
            lambda: world.apply(promotion, Approve(actor="bob")),
            lambda: world.tick(),
        )
        assert raised[2] is None
        assert sorted(type(error) for error in raised[:2] if error) == [IllegalEvent]
        after = world.state(promotion)
        assert (after.stage, after.status) == ("full", "measuring")
        assert (after.version, after.attempt) == (before.version + 1, before.attempt + 1)
        _rewind(world, promotion, before)


def _rewind(world, promotion, state):
    """Put the state back, as if the decision were still to be made."""
    with world.database.unit_of_work() as session:
        now = repositories.promotion(session, promotion).state
        session.query(TransitionRow).filter_by(promotion=promotion, version=now.version).delete()
        repositories.swap(session, now, state, world.clock.time)


def test_abort_racing_an_advance_ends_aborted(world):
    for _ in range(10):
        promotion = world.start()
        lease = world.lease()
        race(partial(world.report, lease), partial(world.apply, promotion, Abort(actor="ann")))
        assert world.place(promotion)[2] == "aborted"
        assert world.table().candidate is None


def test_superseding_what_has_just_ended_is_contention(world, monkeypatch):
    old = world.start()
    with world.database.reading() as session:
        seen = repositories.promotions(session, active=True)
    world.apply(old, Abort(actor="ann"))
    monkeypatch.setattr(repositories, "promotions", lambda *a, **k: seen)
    with pytest.raises(Contention, match="try again"):
        world.start(OTHER)
    assert len(rows(world, PromotionRow)) == 1


def test_starts_racing_leave_one_active(world):
    for _ in range(10):
        raised = race(lambda: world.start(CANDIDATE), lambda: world.start(OTHER))
        assert raised == [None, None]
        with world.database.reading() as session:
            assert len(repositories.promotions(session, deployment=TARGET, active=True)) == 1
