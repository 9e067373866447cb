import pytest

from app.db import repositories
from app.services import traffic
from contracts.promotion import Freeze
from contracts.slices import Attributes
from tests.app.world import CANDIDATE, CONTRACT, PROMPTS, STEADY, World


def pending(world, promotion):
    with world.database.reading() as session:
        return traffic.pending(session, repositories.promotion(session, promotion))


@pytest.fixture
def shadowed(world):
    promotion = world.start()
    world.evaluate()
    return promotion


def test_offline_ci_evaluates_no_traffic(world):
    world.start()
    world.serve(3)
    assert world.tick() == 0


def test_an_evaluation_waits_for_enough_dual_requests(world, shadowed):
    world.serve(PROMPTS - 1)
    assert world.tick() == 0
    world.serve(1)
    assert world.tick() == 1
    lease = world.lease()
    requests = lease.spec.requests
    assert [r.role for r in requests[:2]] == ["baseline", "mirror"]
    assert sum(r.dual for r in requests) == PROMPTS
    assert pending(world, shadowed) == []


def test_only_dual_requests_travel_with_their_whole_prompt(world, shadowed):
    world.serve(PROMPTS)
    world.tick()
    lengths = {(r.dual, len(r.prompt_ids), len(r.output_ids)) for r in world.lease().spec.requests}
    assert lengths == {(True, 3, 3), (False, 1, 3)}


def test_one_evaluation_at_a_time_then_whatever_has_come(tmp_path):
    world = World(tmp_path, contract=CONTRACT.replace("shadow: {", "shadow: {min_duration: 10m, "))
    world.register()
    promotion = world.start()
    world.evaluate()
    world.serve(PROMPTS)
    world.tick()
    first = world.lease()
    world.serve(5)
    assert world.tick() == 0
    world.report(first)
    assert world.place(promotion)[0] == "shadow"
    assert world.tick() == 1
    assert sum(request.dual for request in world.lease().spec.requests) == 5
    world.database.dispose()


def test_requests_of_another_attempt_do_not_count(world, shadowed):
    from contracts.promotion import Retry

    world.serve(PROMPTS - 1)
    world.apply(shadowed, Retry(actor="ann"))
    world.serve(1)
    assert world.tick() == 0
    assert len(pending(world, shadowed)) == 2


def test_a_frozen_shadow_takes_nothing_up(world, shadowed):
    world.serve(PROMPTS)
    world.apply(shadowed, Freeze(actor="ann", reason="look"))
    assert world.tick() == 0


def test_an_evaluation_takes_no_more_than_it_can(world, shadowed, monkeypatch):
    monkeypatch.setattr(traffic, "MAX_REQUESTS", 10)
    world.serve(PROMPTS)
    world.tick()
    assert len(world.lease().spec.requests) == 10
    assert len(pending(world, shadowed)) == 2 * PROMPTS - 10


def test_a_promoted_build_goes_on_being_measured(world, shadowed):
    from contracts.promotion import Approve

    for _ in range(3):
        world.live()
    world.apply(shadowed, Approve(actor="ann"))
    world.live()
    assert world.place(shadowed)[2] == "promoted"
    assert world.table().known_good == STEADY
    world.live(requests=10)
    assert world.place(shadowed)[2] == "promoted"
    world.live(kl=5.0, requests=400)
    assert world.place(shadowed)[2] == "fallen_back"
    assert world.deployment().known_good_build == STEADY
    assert world.table().candidate is None


def test_attributes_survive_the_table(world, shadowed):
    world.serve(1)
    (row, _) = pending(world, shadowed)
    assert traffic.attributes(row) == Attributes(prompt_tokens=8, language="python", tags=frozenset())
    assert row.served_by == STEADY
    assert pending(world, shadowed)[1].served_by == CANDIDATE


def test_guard_answers_are_no_evidence(world, shadowed):
    from tests.app.world import _served

    with world.database.unit_of_work() as session:
        traffic.record(session, _served(world.table(), "g1", STEADY, "guard", False))
    assert pending(world, shadowed) == []


def test_evaluating_what_is_gone_does_nothing(world):
    with world.database.unit_of_work() as session:
        assert traffic.evaluate(session, "nope") is None


def test_a_guarded_slice_is_answered_and_not_evaluated(world, shadowed):
    """Whatever the guard answered, dual or not, no evaluation gets it, and it makes none due."""
    from tests.app.world import _served

    def guarded(count):
        with world.database.unit_of_work() as session:
            for i in range(count):
                traffic.record(session, _served(world.table(), f"g{count}-{i}", STEADY, "guard", True))

    guarded(2 * PROMPTS)
    assert world.tick() == 0, "guard answers are not enough of anything"
    world.serve(PROMPTS)
    assert world.tick() == 1
    lease = world.lease()
    assert {request.role for request in lease.spec.requests} == {"baseline", "mirror"}
    assert not any(request.id.startswith("g") for request in lease.spec.requests)
    assert len(lease.spec.requests) == 2 * PROMPTS


def test_no_spec_can_carry_a_guard_answer():
    from pydantic import ValidationError

    from app.services.specs import TrafficRequest

    known = {"id": "g", "prompt_ids": [1], "attributes": Attributes(1, None, frozenset()), "ok": True}
    assert TrafficRequest(**known, role="baseline")
    with pytest.raises(ValidationError, match="role"):
        TrafficRequest(**known, role="guard")
