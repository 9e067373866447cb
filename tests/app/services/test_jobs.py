import pytest

from app.db import repositories
from app.errors import LeaseLost
from app.services import evidence, jobs
from contracts.promotion import Abort
from tests.app.world import CANDIDATE, TARGET


def held(world, lease):
    with world.database.reading() as session:
        return jobs.held(session, lease)


def job_state(world, lease):
    with world.database.reading() as session:
        return repositories.job(session, lease.job).state


def test_a_lease_carries_everything_the_job_needs(world):
    promotion = world.start()
    lease = world.lease("me")
    assert (lease.owner, lease.number, lease.token) == ("me", 1, 1)
    spec = lease.spec
    assert (spec.promotion, spec.stage, spec.attempt) == (promotion, "offline_ci", 1)
    assert spec.inference == "torch-serving:dtype=bfloat16"
    assert spec.contract == world.contract
    assert spec.suite.endswith("suite.jsonl")
    assert (lease.expires_at - world.clock.time).total_seconds() == jobs.LEASE_SECONDS


def test_one_job_is_leased_once(world):
    world.start()
    with world.database.reading() as session:
        assert jobs.waiting(session)
    assert world.lease() is not None
    assert world.lease() is None
    with world.database.reading() as session:
        assert not jobs.waiting(session)


def test_first_in_first_out(world):
    from app.services import promotions, registry
    from app.services.binding import Order

    names = [f"target-{i}" for i in range(4)]
    started = []
    for name in names:
        with world.database.unit_of_work() as session:
            registry.register_deployment(session, name, "serving-fp32", {})
            order = Order(name, "tiny@1.0.0", "model", "train-fp32", CANDIDATE, "suite")
            started.append(promotions.start(session, order).id)
    assert [world.lease().spec.promotion for _ in names] == started


def test_a_renewed_lease_lasts_from_then_on(world):
    world.start()
    lease = world.lease()
    world.clock.advance(seconds=50)
    with world.database.unit_of_work() as session:
        jobs.renew(session, lease)
    world.clock.advance(seconds=50)
    assert held(world, lease).owner == "worker"


def test_an_expired_lease_can_be_taken_over_and_its_holder_is_refused(world):
    promotion = world.start()
    late = world.lease("slow")
    world.clock.advance(seconds=60)
    with pytest.raises(LeaseLost, match="expired"):
        held(world, late)
    taken = world.lease("quick")
    assert (taken.job, taken.token, taken.number) == (late.job, late.token + 1, 2)
    with pytest.raises(LeaseLost, match="leased anew to quick"):
        world.report(late)
    with world.database.reading() as session:
        assert evidence.of(session, promotion) == []
    world.report(taken)
    assert world.place(promotion)[0] == "shadow"


def test_an_expired_lease_is_refused_even_when_nobody_took_over(world):
    world.start()
    lease = world.lease()
    world.clock.advance(minutes=5)
    for act in (jobs.renew, jobs.complete, lambda s, held: jobs.fail(s, held, "x"), jobs.release):
        with pytest.raises(LeaseLost), world.database.unit_of_work() as session:
            act(session, lease)
    with pytest.raises(LeaseLost), world.database.unit_of_work() as session:
        evidence.measurement_failed(session, lease, "ERROR", "x")


def test_a_silent_worker_is_replaced_and_in_the_end_timed_out(world):
    promotion = world.start()
    for number in range(1, jobs.MAX_LEASES + 1):
        assert world.lease(f"w{number}").number == number
        world.clock.advance(seconds=61)
        assert world.tick() == 1
    assert world.lease() is None
    state = world.state(promotion)
    assert (state.status, state.frozen_by) == ("frozen", "measurement")
    assert "TIMED_OUT" in state.reason
    assert world.tick() == 0


def test_a_job_with_all_its_leases_used_is_not_leased_again_before_the_tick(world):
    world.start()
    for _ in range(jobs.MAX_LEASES):
        assert world.lease() is not None
        world.clock.advance(seconds=61)
    assert world.lease() is None


def test_a_job_handed_back_costs_no_lease(world):
    world.start()
    for _ in range(5):
        lease = world.lease()
        with world.database.unit_of_work() as session:
            jobs.release(session, lease)
    again = world.lease()
    assert again.number == 1
    assert again.token > lease.token
    with pytest.raises(LeaseLost):
        held(world, lease)


def test_a_cancelled_job_stops_its_worker(world):
    promotion = world.start()
    lease = world.lease()
    world.apply(promotion, Abort(actor="ann"))
    assert job_state(world, lease) == "cancelled"
    with pytest.raises(LeaseLost, match="cancelled"), world.database.unit_of_work() as session:
        jobs.renew(session, lease)


def test_what_is_reported_once_cannot_be_reported_again(world):
    world.start()
    lease = world.lease()
    measured = world.measured(lease)
    world.report(lease)
    with pytest.raises(LeaseLost, match="done"), world.database.unit_of_work() as session:
        evidence.record(session, lease, measured)


def test_a_lease_of_nothing_is_lost(world):
    from dataclasses import replace

    world.start()
    lease = world.lease()
    with pytest.raises(LeaseLost, match="does not exist"):
        held(world, replace(lease, job=999))
    assert world.deployment().name == TARGET
