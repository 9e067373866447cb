"""What the gateway reads of a request, and what of it goes on to a kernel server."""

from __future__ import annotations

import json

import pytest

from app.gateway.openai import Refused, parse


def _body(**fields) -> bytes:
    return json.dumps({"model": "coder", "prompt": "x", **fields}).encode()


def test_only_what_the_caller_set_is_forwarded_and_token_ids_are_asked_for() -> None:
    request = parse(_body(temperature=0.5, user="ana", metadata={"tags": ["a"]}, return_token_ids=False))
    assert json.loads(request.forwarded()) == {"prompt": "x", "temperature": 0.5, "return_token_ids": True}


def test_the_sticky_key_is_user_then_session_then_prompt() -> None:
    assert parse(_body(user="ana")).sticky_key("s1") == "user:ana"
    assert parse(_body()).sticky_key("s1") == "session:s1"
    keys = [parse(_body(prompt=prompt)).sticky_key(None) for prompt in ("1", [1], "1", [1, 1])]
    assert keys[0] == keys[2]
    assert len(set(keys)) == 3


def test_a_user_cannot_take_a_sessions_key() -> None:
    assert parse(_body(user="session:s1")).sticky_key(None) != parse(_body()).sticky_key("s1")


def test_errors_never_repeat_the_prompt() -> None:
    with pytest.raises(Refused) as refused:
        parse(_body(prompt=["secret", {"a": "secret"}]))
    assert "secret" not in str(refused.value.body())


@pytest.mark.parametrize("raw", [b"", b"null", b"\xff\xfe", b"[" * 100_000, b'{"model": 1e999}'])
def test_whatever_is_no_request_is_refused(raw: bytes) -> None:
    with pytest.raises(Refused) as refused:
        parse(raw)
    assert refused.value.status == 400
