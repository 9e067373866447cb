from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.cli.demo_traffic import Users, read_prompts
from app.cli.errors import CliError

PROMPTS = [
    {"id": "a", "prompt": "def f():", "language": "python", "tags": ["short"]},
    {"id": "b", "token_ids": [1, 2, 3]},
]


def test_prompts_go_round_every_time_as_another_user() -> None:
    seen: list[dict[str, Any]] = []
    answered: list[None] = []

    def handler(request: httpx2.Request) -> httpx2.Response:
        seen.append(json.loads(request.content))
        return httpx2.Response(200, json={})

    transport = httpx2.MockTransport(handler)
    with Users("http://gw.test", "coder", PROMPTS, at_once=1, max_tokens=7, transport=transport) as users:
        users.send(2, lambda: answered.append(None))
        users.send(1, lambda: answered.append(None))
    assert [body["prompt"] for body in seen] == ["def f():", [1, 2, 3], "def f():"]
    assert seen[0]["metadata"] == {"language": "python", "tags": ["short"]}
    assert seen[1]["metadata"] == {}
    assert len({body["user"] for body in seen}) == len({body["seed"] for body in seen}) == 3
    assert {(body["model"], body["max_tokens"], body["temperature"]) for body in seen} == {("coder", 7, 1.0)}
    assert len(answered) == 3


def test_a_user_who_is_not_served_ends_the_demo() -> None:
    transport = httpx2.MockTransport(lambda _: httpx2.Response(502, text="no kernel answers"))
    with (
        Users("http://gw.test", "coder", PROMPTS, at_once=2, max_tokens=7, transport=transport) as users,
        pytest.raises(CliError, match="502: no kernel answers"),
    ):
        users.send(4, lambda: None)


def test_the_gateway_is_gone() -> None:
    def handler(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused", request=request)

    transport = httpx2.MockTransport(handler)
    with (
        Users("http://gw.test", "coder", PROMPTS, at_once=1, max_tokens=7, transport=transport) as users,
        pytest.raises(CliError, match="did not answer a user: refused"),
    ):
        users.send(1, lambda: None)


def test_blank_lines_are_no_prompts(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    file.write_text('{"id": "a"}\n\n{"id": "b"}\n')
    assert [prompt["id"] for prompt in read_prompts(file)] == ["a", "b"]
