import threading

from sqlalchemy import event, select

from app.db.models import JobRow
from app.services import promotions, scheduler
from contracts.promotion import Approve
from tests.app.world import PROMPTS


def test_an_idle_tick_only_reads(world):
    world.start()
    statements = []
    event.listen(
        world.database.engine, "before_cursor_execute", lambda *args: statements.append(args[2].split()[0])
    )
    assert world.tick() == 0
    assert set(statements) <= {"SELECT", "BEGIN"}
    assert "BEGIN" in statements


def test_a_deadline_freezes_and_never_advances(world):
    promotion = world.start()
    world.clock.advance(minutes=59)
    assert world.tick() == 0
    world.clock.advance(minutes=2)
    assert world.tick() == 1
    state = world.state(promotion)
    assert (state.stage, state.status, state.frozen_by) == ("offline_ci", "frozen", "timer")


def test_an_approval_that_nobody_gives_expires_and_frees_the_lane(world):
    promotion = world.start()
    world.evaluate()
    for _ in range(3):
        world.live()
    world.clock.advance(hours=25)
    world.tick()
    assert world.place(promotion)[2] == "expired"
    assert world.table().candidate is None
    assert world.start()


def test_replicas_that_tick_together_do_each_thing_once(world):
    promotion = world.start()
    world.evaluate()
    world.serve(PROMPTS)
    barrier = threading.Barrier(4)

    def replica():
        barrier.wait()
        world.tick()

    threads = [threading.Thread(target=replica) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with world.database.reading() as session:
        jobs = session.scalars(select(JobRow).where(JobRow.stage == "shadow")).all()
        assert len(jobs) == 1
        assert promotions.get(session, promotion).version == 2


def test_one_promotion_in_trouble_does_not_hold_up_the_others(world, monkeypatch):
    from app.services import registry
    from app.services.binding import Order

    first = world.start()
    with world.database.unit_of_work() as session:
        registry.register_deployment(session, "other", "serving-fp32", {})
        order = Order("other", "tiny@1.0.0", "model", "train-fp32", "serving-bf16", "suite")
        second = promotions.start(session, order).id
    world.clock.advance(hours=2)
    apply = promotions.apply

    def troubled(session, promotion_id, event, **options):
        if promotion_id == first:
            raise RuntimeError("a bug")
        return apply(session, promotion_id, event, **options)

    monkeypatch.setattr(promotions, "apply", troubled)
    assert world.tick() == 1
    assert world.place(second)[2] == "frozen"


def test_a_finding_that_is_gone_is_no_error(world, monkeypatch):
    promotion = world.start()
    world.evaluate()
    for _ in range(3):
        world.live()
    world.clock.advance(hours=23)
    monkeypatch.setattr(promotions, "due", lambda session: [promotion, "gone"])
    world.apply(promotion, Approve(actor="ann"))
    assert world.tick() == 1  # the tick of the one still there, which changes nothing
    assert world.place(promotion) == ("full", 0, "measuring")


def test_the_loop_survives_errors_and_stops_when_told(world, monkeypatch):
    stop = threading.Event()
    calls = []

    def broken(database):
        calls.append(database)
        if len(calls) == 3:
            stop.set()
        raise RuntimeError("the database is away")

    monkeypatch.setattr(scheduler, "tick", broken)
    scheduler.run(world.database, stop, interval=0)
    assert len(calls) == 3
