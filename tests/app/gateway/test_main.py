"""The application's edge: readiness, models, bad requests, hosts, sizes."""

from __future__ import annotations

import pytest

from app.gateway import main
from tests.app import rows
from tests.app.gateway.conftest import World, run


def _answer(world: World, path: str = "/v1/completions", *, deployment: str = rows.TARGET, **request):
    async def scenario():
        async with world.gateway(deployment) as client:
            return await client.http.request(request.pop("method", "POST"), path, **request)

    return run(scenario())


def test_ready_once_a_table_is_read(world: World) -> None:
    world.route(4)
    answer = _answer(world, "/readyz", method="GET")
    assert answer.status_code == 200
    assert answer.json() == {
        "ready": True,
        "deployment": rows.TARGET,
        "routing_version": 4,
        "routing_error": None,
        "recording_error": None,
    }
    assert _answer(world, "/healthz", method="GET").json() == {"status": "ok"}
    assert _answer(world, "/v1/models", method="GET").json()["data"][0]["id"] == rows.TARGET


def test_not_ready_without_a_deployment(world: World) -> None:
    assert _answer(world, "/readyz", method="GET", deployment="nobody").status_code == 503
    body = {"model": "nobody", "prompt": "x"}
    answer = _answer(world, json=body, deployment="nobody")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize(
    ("body", "status", "param", "says"),
    [
        ({}, 400, "model", "required"),
        ({"model": "other", "prompt": "x"}, 404, "model", "does not exist"),
        ({"model": rows.TARGET}, 400, "prompt", "prompt"),
        ({"model": rows.TARGET, "prompt": ""}, 400, "prompt", "at least 1"),
        ({"model": rows.TARGET, "prompt": []}, 400, "prompt", "not empty"),
        ({"model": rows.TARGET, "prompt": [-1]}, 400, "prompt", "token ids"),
        ({"model": rows.TARGET, "prompt": ["a", "b"]}, 400, "prompt", "one text"),
        ({"model": rows.TARGET, "prompt": [True]}, 400, "prompt", "token ids"),
        ({"model": rows.TARGET, "prompt": "x", "max_token": 5}, 400, "max_token", "'max_tokens'"),
        ({"model": rows.TARGET, "prompt": "x", "metadata": {"lang": "c"}}, 400, "metadata", "metadata.lang"),
        ({"model": rows.TARGET, "prompt": "x", "stream": True}, 400, "stream", "Streaming"),
        ({"model": rows.TARGET, "prompt": "x", "n": 2}, 400, "n", "One choice"),
        ({"model": rows.TARGET, "prompt": "x", "temperature": 9}, 400, "temperature", "less than"),
        ([1], 400, None, "JSON object"),
    ],
)
def test_bad_requests_name_the_parameter(world: World, body, status, param, says) -> None:
    world.route(1)
    answer = _answer(world, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["type"]) == (status, param, "invalid_request_error")
    assert says in error["message"]
    assert world.kernels.seen == {}


def test_bodies_that_are_no_json_or_too_large(world: World) -> None:
    world.route(1)
    headers = {"content-type": "application/json"}
    assert _answer(world, content=b"{", headers=headers).status_code == 400
    assert _answer(world, content=b"[" * 4000, headers=headers).status_code == 400
    assert _answer(world, content=b" " * 5000, headers=headers).status_code == 413
    assert _answer(world, content=b"{}", headers={"content-type": "text/plain"}).status_code == 415


def test_unknown_paths_methods_and_hosts(world: World) -> None:
    world.route(1)
    assert (
        _answer(world, "/nowhere", method="GET").json()["error"]["message"] == "There is nothing at /nowhere."
    )
    assert _answer(world, method="GET").status_code == 405
    answer = _answer(world, "/readyz", method="GET", headers={"host": "evil.example:8322"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (421, "unknown_host")


def test_the_process_binds_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {}
    monkeypatch.setattr(main.sys, "setswitchinterval", lambda seconds: None)
    monkeypatch.setattr(main.logs, "configure", lambda: None)
    monkeypatch.setattr(main.uvicorn, "run", lambda app, **options: told.update(options))
    main.main(["--deployment", "coder"])
    assert (told["host"], told["port"], told["access_log"]) == ("127.0.0.1", 8322, False)
