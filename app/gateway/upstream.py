"""Talking to kernel servers: one call, bounded in time and size, no redirects."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import httpx2

MAX_ANSWER_BYTES = 32 * 2**20
TIMEOUT = httpx2.Timeout(120.0, connect=2.0, write=10.0, pool=5.0)
LIMITS = httpx2.Limits(max_connections=256, max_keepalive_connections=64)


class UpstreamFailed(Exception):
    """No usable answer came from a kernel server: unreachable, too slow, too large, not HTTP."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A kernel server's answer, unmodified, with what telemetry needs of it.

    Attributes:
        prompt_ids, output_ids: token ids; None when the server named none.
        latency_s: seconds from sending the request to its last byte.
        ttft_s: seconds to the first token as the server reports it; None when it does not.
    """

    status: int
    content: bytes
    media_type: str
    latency_s: float
    prompt_ids: tuple[int, ...] | None = None
    output_ids: tuple[int, ...] | None = None
    ttft_s: float | None = None

    @property
    def completed(self) -> bool:
        """Whether this is a completion."""
        return self.status == 200

    @property
    def refused(self) -> bool:
        """Whether the server holds the request itself to be at fault."""
        return 400 <= self.status < 500 and self.status not in (408, 429)


def client(transport: httpx2.AsyncBaseTransport | None = None) -> httpx2.AsyncClient:
    """The one HTTP client of a gateway; ignores proxies and credentials in the environment."""
    return httpx2.AsyncClient(
        transport=transport, timeout=TIMEOUT, limits=LIMITS, follow_redirects=False, trust_env=False
    )


async def complete(http: httpx2.AsyncClient, endpoint: str, body: bytes) -> Answer:
    """POST `body` to the completions of `endpoint`. Raises UpstreamFailed."""
    url = endpoint.rstrip("/") + "/v1/completions"
    started = time.perf_counter()
    content = bytearray()
    try:
        async with http.stream(
            "POST", url, content=body, headers={"content-type": "application/json"}
        ) as response:
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > MAX_ANSWER_BYTES:
                    raise UpstreamFailed(f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise UpstreamFailed(f"{type(error).__name__}: {error}".rstrip(": ")) from error
    latency_s = time.perf_counter() - started
    media_type = response.headers.get("content-type", "application/json")
    answer = Answer(response.status_code, bytes(content), media_type, latency_s)
    return _understood(answer) if answer.completed else answer


def _understood(answer: Answer) -> Answer:
    """The answer with its token ids. Raises UpstreamFailed when it is no completion."""
    try:
        body = json.loads(answer.content)
        choice = body["choices"][0]
        if not isinstance(choice["text"], str):
            raise TypeError("text")
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise UpstreamFailed("the answer is not a completion") from error
    timing = body.get("timing")
    ttft_s = timing.get("ttft_s") if isinstance(timing, dict) else None
    return Answer(
        answer.status,
        answer.content,
        answer.media_type,
        answer.latency_s,
        prompt_ids=_ids(choice.get("prompt_token_ids")),
        output_ids=_ids(choice.get("token_ids")),
        ttft_s=float(ttft_s) if isinstance(ttft_s, int | float) and ttft_s >= 0 else None,
    )


def _ids(value: Any) -> tuple[int, ...] | None:
    whole = isinstance(value, list) and all(type(token) is int and token >= 0 for token in value)
    return tuple(value) if whole else None
