"""Kernel servers over real loopback sockets, well-behaved and not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from app.gateway import upstream
from app.gateway.upstream import Answer, UpstreamFailed
from tests.app.gateway.conftest import run


def _http(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\ncontent-type: application/json\r\n{headers}\r\n"
    )
    return head.encode() + body


@asynccontextmanager
async def _server(answer: bytes | None) -> AsyncIterator[str]:
    """Answers every request with these bytes; with None it never answers."""
    silent = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer is None:
            await silent.wait()
        else:
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        silent.set()
        server.close()


def _ask(answer: bytes | None) -> Answer:
    async def scenario() -> Answer:
        async with _server(answer) as url, upstream.client() as http:
            return await upstream.complete(http, url, b"{}")

    return run(scenario())


def test_an_answer_is_kept_byte_for_byte() -> None:
    choice = b'{"text": "a", "prompt_token_ids": [1], "token_ids": [2, 3]}'
    body = b'{"choices": [' + choice + b'],  "timing": {"ttft_s": 0.5}}'
    answer = _ask(_http(body))
    assert answer.content == body
    assert (answer.prompt_ids, answer.output_ids, answer.ttft_s) == ((1,), (2, 3), 0.5)
    assert answer.latency_s > 0


@pytest.mark.parametrize("ids", [None, [True], [-1], ["a"], {}])
def test_ids_that_are_none_are_none(ids) -> None:
    body = json.dumps({"choices": [{"text": "a", "token_ids": ids}], "timing": {"ttft_s": -1}}).encode()
    answer = _ask(_http(body))
    assert (answer.output_ids, answer.ttft_s) == (None, None)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{"text": null}]}', b"[" * 9999]
)
def test_what_is_no_completion_has_failed(body: bytes) -> None:
    with pytest.raises(UpstreamFailed, match="not a completion"):
        _ask(_http(body))


def test_a_redirect_is_not_followed() -> None:
    answer = _ask(_http(b"", "302 Found", "location: http://192.0.2.1/\r\n"))
    assert not answer.completed
    assert not answer.refused


def test_a_cut_off_answer_has_failed() -> None:
    with pytest.raises(UpstreamFailed):
        _ask(_http(b"{}")[:-1])


def test_too_much_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "MAX_ANSWER_BYTES", 10)
    with pytest.raises(UpstreamFailed, match="larger than 10 bytes"):
        _ask(_http(b"x" * 11))


def test_silence_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "TIMEOUT", httpx2.Timeout(0.05))
    with pytest.raises(UpstreamFailed, match="Timeout"):
        _ask(None)


def test_nobody_there_has_failed() -> None:
    async def scenario() -> Answer:
        async with _server(b"") as url:
            pass
        async with upstream.client() as http:
            return await upstream.complete(http, url, b"{}")

    with pytest.raises(UpstreamFailed, match="ConnectError"):
        run(scenario())
