from __future__ import annotations

import json
from collections.abc import Callable

import httpx2
import pytest

from app.cli.client import ControlPlane, Refused
from app.cli.errors import CliError

Handler = Callable[[httpx2.Request], httpx2.Response]


def client(handler: Handler, url: str = "http://kc.test") -> ControlPlane:
    return ControlPlane(url, transport=httpx2.MockTransport(handler))


def test_a_contract_is_sent_as_it_was_written() -> None:
    seen: list[httpx2.Request] = []

    def handler(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(201, json={"name": "c"})

    assert client(handler).register_contract(b"kind: x # kept\n") == {"name": "c"}
    assert seen[0].content == b"kind: x # kept\n"
    assert seen[0].headers["content-type"] == "application/yaml"


def test_identities_are_escaped() -> None:
    paths: list[bytes] = []

    def handler(request: httpx2.Request) -> httpx2.Response:
        paths.append(request.url.raw_path)
        return httpx2.Response(200, json={})

    client(handler).promotion("a/../b")
    assert paths == [b"/v1/promotions/a%2F..%2Fb"]


def test_a_problem_becomes_its_detail() -> None:
    problem = {"title": "Conflict", "status": 409, "detail": "coder-demo 1.0.0 has other content"}
    with pytest.raises(Refused, match=r"^coder-demo 1.0.0 has other content$") as caught:
        client(lambda _: httpx2.Response(409, json=problem)).register("checkpoints", name="x", path="y")
    assert (caught.value.code, caught.value.status) == (1, 409)


def test_diagnostics_are_listed_with_their_places() -> None:
    diagnostic = {
        "file": "c.yaml",
        "line": 3,
        "column": 7,
        "code": "x",
        "severity": "error",
        "message": "no such metric",
    }
    problem = {"detail": "the contract has errors", "diagnostics": [diagnostic]}
    with pytest.raises(Refused) as caught:
        client(lambda _: httpx2.Response(422, json=problem)).register_contract(b"")
    assert str(caught.value) == "the contract has errors\n  c.yaml:3:7: error: no such metric"


@pytest.mark.parametrize("body", [b"<html>bad gateway</html>", json.dumps([1]).encode()])
def test_an_answer_that_is_no_problem_document(body: bytes) -> None:
    with pytest.raises(Refused, match="answered 502 Bad Gateway"):
        client(lambda _: httpx2.Response(502, content=body)).promotions()


def test_nobody_answers() -> None:
    def handler(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("connection refused", request=request)

    with pytest.raises(CliError, match=r"no control plane answers at http://kc.test .*kc serve"):
        client(handler).promotions()


def test_too_slow() -> None:
    def handler(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ReadTimeout("", request=request)

    with pytest.raises(CliError, match="did not answer in time"):
        client(handler).promotions()


def test_no_url_at_all() -> None:
    with pytest.raises(CliError, match="not an http") as caught:
        ControlPlane("nonsense").promotions()
    assert caught.value.code == 2
