"""Serving, mirroring, splitting, falling back and recording, through the application."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from contracts.model import Slice, Stage
from contracts.routing import Mode
from tests.app import rows
from tests.app.gateway.conftest import World, completion, run, until

LIVE = {"promotion": "p1", "step": 0, "attempt": 4}


def test_known_good_serves_unmodified(world: World) -> None:
    world.route(1)

    async def scenario() -> None:
        async with world.gateway() as client:
            answer = await client.ask(max_tokens=3, seed=5, user="ana", metadata={"language": "python"})
            assert answer.status_code == 200
            assert answer.content == completion("steady", [1, 2, 3], [7, 8, 9]).content
            assert answer.headers["x-kc-build"] == rows.STEADY
            assert answer.headers["x-kc-routing-version"] == "1"
            await client.settled()
        assert world.kernels.seen == {
            "steady": [{"prompt": [1, 2, 3], "max_tokens": 3, "seed": 5, "return_token_ids": True}]
        }

    run(scenario())
    (row,) = world.traffic()
    assert (row.role, row.served_by, row.ok, row.dual, row.promotion) == (
        "baseline",
        rows.STEADY,
        True,
        False,
        None,
    )
    assert (row.prompt_ids, row.output_ids, row.ttft_s) == ([1, 2, 3], [7, 8, 9], 0.1)
    assert row.attributes == {"prompt_tokens": 3, "language": "python", "tags": []}


def test_callers_headers_never_reach_the_kernel_servers(world: World) -> None:
    world.route(1)

    async def scenario() -> None:
        async with world.gateway() as client:
            await client.ask(headers={"authorization": "Bearer secret", "cookie": "a=b", "x-session-id": "s"})

    run(scenario())
    (request,) = world.kernels.requests
    assert {"authorization", "cookie", "x-session-id"}.isdisjoint(request.headers)


def test_shadow_mirrors_and_records_both_sides(world: World) -> None:
    world.promoting(stage="shadow", attempt=4)
    world.route(2, mode=Mode.SHADOW, mirror=1.0, stage=Stage.SHADOW, **LIVE)

    async def scenario() -> None:
        async with world.gateway() as client:
            answer = await client.ask("a bb ccc", metadata={"tags": ["safety-critical"]})
            assert answer.json()["choices"][0]["text"] == "steady"
            await client.settled()

    run(scenario())
    baseline, mirror = sorted(world.traffic(), key=lambda row: row.role)
    assert (baseline.role, mirror.role) == ("baseline", "mirror")
    assert (baseline.dual, mirror.dual) == (False, True)
    assert baseline.request_id == mirror.request_id
    assert mirror.output_ids == [7, 8, 1]
    assert mirror.served_by == rows.CANDIDATE
    for row in (baseline, mirror):
        assert (row.promotion, row.stage, row.step, row.attempt) == ("p1", "shadow", 0, 4)
        assert row.prompt_ids == [1, 2, 3]
        assert row.attributes["tags"] == ["safety-critical"]


def test_a_slow_candidate_delays_no_user_and_a_full_queue_drops(world: World) -> None:
    world.promoting(stage="shadow", attempt=4)
    world.route(2, mode=Mode.SHADOW, mirror=1.0, stage=Stage.SHADOW, **LIVE)

    async def scenario() -> None:
        go = asyncio.Event()

        async def wait(body: dict) -> httpx2.Response:
            await go.wait()
            return completion("candidate", body["prompt"], [7])

        world.kernels.behave["candidate"] = wait
        async with world.gateway(mirrors=1, mirror_workers=1) as client:
            first = [await client.ask() for _ in range(2)]
            await until(lambda: "candidate" in world.kernels.seen)
            later = [await client.ask() for _ in range(4)]
            assert {answer.status_code for answer in (*first, *later)} == {200}
            dropped = await client.metric("kc_gateway_mirrors_dropped_total")
            assert dropped >= 3
            go.set()
            await client.settled()
            mirrored = [row for row in world.traffic() if row.role == "mirror"]
            assert len(mirrored) + dropped == 6

    run(scenario())


def test_canary_is_sticky_and_splits(world: World) -> None:
    world.promoting(stage="canary", attempt=4)
    world.route(3, mode=Mode.CANARY, share=0.5, stage=Stage.CANARY, **LIVE)

    async def scenario() -> None:
        async with world.gateway() as client:
            users = {}
            for name in range(40):
                builds = {
                    (await client.ask((i + 1,), user=f"u{name}")).headers["x-kc-build"] for i in range(3)
                }
                assert len(builds) == 1
                users[name] = builds.pop()
            assert 8 <= sum(build == rows.CANDIDATE for build in users.values()) <= 32
            session = {
                (await client.ask((i + 1,), headers={"x-session-id": "s1"})).headers["x-kc-build"]
                for i in range(5)
            }
            assert len(session) == 1
            prompts = {(await client.ask((5, 6, 7))).headers["x-kc-build"] for _ in range(5)}
            assert len(prompts) == 1
            await client.settled()

    run(scenario())
    roles = {row.role: row for row in world.traffic()}
    assert set(roles) == {"baseline", "candidate"}
    assert roles["candidate"].dual
    assert not roles["baseline"].dual


def _break(kind: str):
    def behave(body: dict) -> httpx2.Response:
        if kind == "unreachable":
            raise httpx2.ConnectError("refused")
        if kind == "timeout":
            raise httpx2.ReadTimeout("slow")
        if kind == "500":
            return httpx2.Response(500, json={"error": {}})
        if kind == "redirect":
            return httpx2.Response(307, headers={"location": "http://elsewhere.test/"})
        if kind == "other prompt":
            return completion("candidate", [9, 9], [1])
        if kind == "refuses":
            return httpx2.Response(400, json={"error": {}})
        return httpx2.Response(200, text="not json")

    return behave


@pytest.mark.parametrize(
    "kind", ["unreachable", "timeout", "500", "redirect", "garbage", "other prompt", "refuses"]
)
def test_a_failing_candidate_is_counted_and_the_user_is_served(world: World, kind: str) -> None:
    world.promoting(stage="canary", attempt=4)
    world.route(3, mode=Mode.CANARY, share=1.0, stage=Stage.CANARY, **LIVE)
    world.kernels.behave["candidate"] = _break(kind)

    async def scenario() -> None:
        async with world.gateway() as client:
            answer = await client.ask()
            assert answer.status_code == 200
            assert answer.headers["x-kc-build"] == rows.STEADY
            await client.settled()
            assert await client.metric("kc_gateway_fallbacks_total") == 1

    run(scenario())
    by_role = {row.role: row for row in world.traffic()}
    failed = by_role["candidate"]
    assert (failed.ok, failed.dual, failed.output_ids, failed.latency_s) == (False, False, [], None)
    assert by_role["baseline"].ok


def test_what_both_builds_refuse_is_the_callers_error_and_no_evidence(world: World) -> None:
    world.promoting(stage="canary", attempt=4)
    world.route(3, mode=Mode.CANARY, share=1.0, stage=Stage.CANARY, **LIVE)
    refusal = httpx2.Response(400, json={"error": {"message": "too long"}})
    world.kernels.behave = {"candidate": lambda _: refusal, "steady": lambda _: refusal}

    async def scenario() -> None:
        async with world.gateway() as client:
            answer = await client.ask()
            assert (answer.status_code, answer.json()) == (400, {"error": {"message": "too long"}})
            await client.settled()

    run(scenario())
    assert world.traffic() == []


def test_full_serves_the_candidate_and_samples_dual_evaluation(world: World) -> None:
    world.promoting(stage="full", attempt=4)
    world.route(9, mode=Mode.FULL, share=1.0, audit_rate=0.3, stage=Stage.FULL, **LIVE)

    async def scenario() -> None:
        async with world.gateway() as client:
            for i in range(60):
                assert (await client.ask((i + 1,))).headers["x-kc-build"] == rows.CANDIDATE
            await client.settled()

    run(scenario())
    recorded = world.traffic()
    assert {row.role for row in recorded} == {"candidate"}
    assert 4 <= sum(row.dual for row in recorded) <= 36


def test_guarded_slices_stay_off_the_candidate_also_when_the_length_is_unknown(world: World) -> None:
    world.promoting(stage="canary", attempt=4)
    long = Slice.model_validate({"where": {"prompt_tokens": {"gte": 3}}})
    world.route(3, mode=Mode.CANARY, share=1.0, stage=Stage.CANARY, guarded={"long": long}, **LIVE)

    async def scenario() -> None:
        async with world.gateway() as client:
            builds = [
                (await client.ask(prompt)).headers["x-kc-build"] for prompt in ((1, 2, 3), (1, 2), "a text")
            ]
            assert builds == [rows.STEADY, rows.CANDIDATE, rows.STEADY]
            await client.settled()

    run(scenario())
    assert sum(row.role == "mirror" for row in world.traffic()) == 2


def test_without_an_endpoint_or_an_answer_the_error_is_in_openais_shape(world: World) -> None:
    world.route(1)
    world.kernels.behave["steady"] = _break("unreachable")

    async def scenario() -> None:
        async with world.gateway() as client:
            answer = await client.ask()
            assert answer.status_code == 502
            assert answer.json()["error"]["code"] == "upstream_failed"
            await client.settled()

    run(scenario())
    (row,) = world.traffic()
    assert not row.ok


def test_switches_on_a_new_version_and_never_goes_back(world: World) -> None:
    world.promoting(stage="full", attempt=4)
    world.route(5, mode=Mode.FULL, share=1.0, stage=Stage.FULL, **LIVE)

    async def scenario() -> None:
        async with world.gateway() as client:
            assert (await client.ask()).headers["x-kc-build"] == rows.CANDIDATE
            world.route(6)
            await client.gateway.watch.refresh()
            answer = await client.ask()
            assert (answer.headers["x-kc-build"], answer.headers["x-kc-routing-version"]) == (
                rows.STEADY,
                "6",
            )
            await client.settled()

    run(scenario())


def test_keeps_serving_and_recording_resumes_when_the_database_comes_back(world: World, monkeypatch) -> None:
    from sqlalchemy.exc import OperationalError

    world.route(1)
    unit_of_work, reading = world.database.unit_of_work, world.database.reading

    def away():
        raise OperationalError("select", {}, Exception("gone"))

    async def scenario() -> None:
        async with world.gateway() as client:
            monkeypatch.setattr(world.database, "unit_of_work", away)
            monkeypatch.setattr(world.database, "reading", away)
            await client.gateway.watch.refresh()
            assert (await client.ask()).status_code == 200
            await until(lambda: client.gateway.recorder.error is not None)
            ready = await client.http.get("/readyz")
            assert ready.status_code == 200
            assert "cannot be read" in ready.json()["routing_error"]
            monkeypatch.setattr(world.database, "unit_of_work", unit_of_work)
            monkeypatch.setattr(world.database, "reading", reading)
            await client.settled()
            await client.gateway.watch.refresh()
            assert (await client.http.get("/readyz")).json()["routing_error"] is None

    run(scenario())
    assert len(world.traffic()) == 1
