import threading

import httpx2
import pytest
import structlog
from sqlalchemy import event

from app.services import health, promotions, registry
from app.services.health import KnownGoodProbe
from contracts.promotion import Approve
from tests.app.world import CANDIDATE, ENDPOINTS, STEADY, TARGET

FAULTS = {
    "error status": lambda request: httpx2.Response(503),
    "redirect": lambda request: httpx2.Response(302, headers={"location": "http://127.0.0.1:1/health"}),
    "no content": lambda request: httpx2.Response(204),
}


class Servers:
    """Kernel servers by base URL: True answers, False refuses the connection, anything else is called."""

    def __init__(self):
        self.at = dict.fromkeys(ENDPOINTS.values(), True)
        self.asked = []

    def __call__(self, request):
        assert request.method == "GET"
        assert request.url.path == "/health"
        base = str(request.url).removesuffix("/health")
        self.asked.append(base)
        state = self.at[base]
        if state is False:
            raise httpx2.ConnectError("refused")
        return httpx2.Response(200, json={"status": "ok"}) if state is True else state(request)


@pytest.fixture
def servers():
    return Servers()


@pytest.fixture
def probe(world, servers):
    with health.client(httpx2.MockTransport(servers)) as http:
        yield KnownGoodProbe(world.database, http)


def look(probe, times=1):
    for _ in range(times):
        probe.look()


def healthy(world):
    return world.deployment().known_good_healthy


def test_three_failures_in_a_row_are_one_outage_and_one_answer_ends_it(world, servers, probe):
    promotion = world.start()
    servers.at[ENDPOINTS[STEADY]] = False
    look(probe, 2)
    assert healthy(world)
    look(probe)
    assert not healthy(world)
    state = world.state(promotion)
    assert (state.known_good_healthy, state.version) == (False, 2)
    look(probe, 3)
    assert world.state(promotion).version == 2, "told once"
    servers.at[ENDPOINTS[STEADY]] = True
    look(probe)
    assert healthy(world)
    assert world.state(promotion).known_good_healthy
    assert set(servers.asked) == {ENDPOINTS[STEADY]}


def test_it_does_not_flap(world, servers, probe):
    promotion = world.start()
    for state in (False, False, True) * 4:
        servers.at[ENDPOINTS[STEADY]] = state
        look(probe)
    assert world.state(promotion).version == 1


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_nothing_but_200_is_an_answer(world, servers, probe, fault):
    servers.at[ENDPOINTS[STEADY]] = fault
    look(probe, health.FAILURES)
    assert not healthy(world)


def test_silence_is_no_answer(world, servers, probe):
    def silent(request):
        raise httpx2.ReadTimeout("too late", request=request)

    servers.at[ENDPOINTS[STEADY]] = silent
    look(probe, health.FAILURES)
    assert not healthy(world)


def test_while_all_is_well_it_only_reads(world, probe):
    world.start()
    statements = []
    event.listen(
        world.database.engine, "before_cursor_execute", lambda *args: statements.append(args[2].split()[0])
    )
    look(probe, 3)
    assert set(statements) <= {"SELECT", "BEGIN"}
    assert "BEGIN IMMEDIATE" not in statements


def test_without_an_endpoint_it_stays_as_declared_and_says_so_once(world, probe, servers):
    with world.database.unit_of_work() as session:
        registry.register_deployment(session, TARGET, STEADY, {CANDIDATE: ENDPOINTS[CANDIDATE]})
    with structlog.testing.capture_logs() as logs:
        look(probe, 5)
    assert healthy(world)
    assert servers.asked == []
    assert [(entry["log_level"], entry["deployment"], entry["build"]) for entry in logs] == [
        ("warning", TARGET, STEADY)
    ]


def test_what_is_asked_is_what_would_be_fallen_back_to(world, servers, probe):
    promotion = world.start()
    world.evaluate()
    for _ in range(3):
        world.live()
    world.apply(promotion, Approve(actor="ann"))
    world.live()
    assert world.deployment().known_good_build == CANDIDATE
    look(probe)
    assert servers.asked == [ENDPOINTS[STEADY]]
    world.start("serving-fp16")
    look(probe)
    assert servers.asked[1:] == [ENDPOINTS[CANDIDATE]], "the promoted one is what the next falls back to"


def test_failures_of_one_build_are_not_counted_against_the_next(world, servers, probe):
    servers.at[ENDPOINTS[STEADY]] = False
    look(probe, health.FAILURES - 1)
    with world.database.unit_of_work() as session:
        moved = ENDPOINTS | {STEADY: "http://127.0.0.1:9003"}
        registry.register_deployment(session, TARGET, STEADY, moved)
    servers.at["http://127.0.0.1:9003"] = False
    look(probe, health.FAILURES - 1)
    assert healthy(world)
    look(probe)
    assert not healthy(world)


def test_an_answer_about_a_build_replaced_meanwhile_is_not_recorded(world, servers, probe):
    def replaced(request):
        with world.database.unit_of_work() as session:
            registry.register_deployment(session, TARGET, STEADY, {})
        raise httpx2.ConnectError("refused")

    servers.at[ENDPOINTS[STEADY]] = False
    look(probe, health.FAILURES - 1)
    servers.at[ENDPOINTS[STEADY]] = replaced
    look(probe)
    assert healthy(world)


def test_an_owed_fallback_is_paid_when_the_build_answers_again(world, servers, probe):
    promotion = world.start()
    world.evaluate()
    world.live()
    servers.at[ENDPOINTS[STEADY]] = False
    look(probe, health.FAILURES)
    world.live(kl=5.0, requests=400)
    assert world.state(promotion).frozen_by == "fallback_owed"
    servers.at[ENDPOINTS[STEADY]] = True
    look(probe)
    assert world.place(promotion)[2] == "fallen_back"


def test_the_loop_survives_errors_and_stops_when_told(world, monkeypatch):
    stop = threading.Event()
    looks = []

    def broken(probe):
        looks.append(probe)
        if len(looks) == 3:
            stop.set()
        raise RuntimeError("the database is away")

    monkeypatch.setattr(KnownGoodProbe, "look", broken)
    health.run(world.database, stop, interval=0)
    assert len(looks) == 3


def test_one_deployment_in_trouble_does_not_keep_the_others_from_being_asked(
    world, servers, probe, monkeypatch
):
    with world.database.unit_of_work() as session:
        registry.register_deployment(session, "another", STEADY, {STEADY: "http://127.0.0.1:9005"})
    servers.at |= {ENDPOINTS[STEADY]: False, "http://127.0.0.1:9005": False}
    record = promotions.known_good_health

    def troubled(session, deployment, *, healthy):
        if deployment == "another":
            raise RuntimeError("a bug")
        record(session, deployment, healthy=healthy)

    monkeypatch.setattr(promotions, "known_good_health", troubled)
    look(probe, health.FAILURES)
    assert not healthy(world)
