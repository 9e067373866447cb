"""Open-loop load: requests arrive when a Poisson process says, whether or not earlier ones were answered.

Two servers take turns in blocks, in the order A B B A, so that whatever drifts on the machine meanwhile
meets both alike and neither disturbs the other. Every time is counted from when a request was to arrive,
not from when the client got round to sending it: a server that stalls cannot hide the wait of those behind
(coordinated omission).
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import httpx2

Side = Literal["candidate", "baseline"]
_ORDER: tuple[Side, ...] = ("candidate", "baseline", "baseline", "candidate")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is sent, and the most tokens that may come back."""

    id: str
    prompt: str | tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Load:
    """How a server is loaded.

    Attributes:
        rate: arrivals a second, on average, while a server has its turn.
        seconds: of measured load each server gets.
        warm_up_s: of load each server gets before, which does not count.
        block_s: length of one turn.
        timeout_s: a request that takes longer has failed.
        seed: of arrivals and the choice of prompts.
    """

    rate: float
    seconds: float
    warm_up_s: float = 10.0
    block_s: float = 15.0
    timeout_s: float = 120.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rate", "seconds", "block_s", "timeout_s"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}: a positive number is needed")
        if not 0.0 <= self.warm_up_s < math.inf:
            raise ValueError(f"warm_up_s is {self.warm_up_s}: it cannot be negative")


@dataclass(frozen=True, slots=True)
class Block:
    """One server's turn: seconds from its start at which requests arrive, and which prompts they are."""

    side: Side
    warm: bool
    arrivals: tuple[tuple[float, Prompt], ...]


@dataclass(frozen=True, slots=True)
class Observation:
    """One request as a client met it; seconds since it was to arrive.

    Attributes:
        warm: whether it was warm-up.
        ok: whether a whole answer came in time.
        latency_s: to the last byte; of a failed request, to the failure.
        ttft_s: to the first token; None when the server does not say.
        tokens: generated; 0 when that is not known.
        lag_s: how late the client was in sending it.
    """

    prompt: str
    side: Side
    warm: bool
    ok: bool
    latency_s: float
    ttft_s: float | None
    tokens: int
    lag_s: float
    error: str = ""


def blocks(load: Load, prompts: Sequence[Prompt]) -> list[Block]:
    """The turns of both servers; the same for the same load and prompts.

    Each pair of turns brings both servers the same arrivals with the same prompts.
    """
    source = random.Random(load.seed)  # noqa: S311 - it makes load and guards nothing
    found: list[Block] = []
    spans = [(True, load.warm_up_s)] if load.warm_up_s else []
    whole, rest = divmod(load.seconds, load.block_s)
    spans += [(False, load.block_s)] * int(whole) + ([(False, rest)] if rest > 1e-9 else [])
    for number, (warm, length) in enumerate(spans):
        arrivals = tuple(_arrivals(source, load.rate, length, prompts))
        first = 2 * (number % 2)
        found += [Block(side, warm, arrivals) for side in _ORDER[first : first + 2]]
    return found


def _arrivals(
    source: random.Random, rate: float, length: float, prompts: Sequence[Prompt]
) -> list[tuple[float, Prompt]]:
    at, found = source.expovariate(rate), []
    while at < length:
        found.append((at, source.choice(prompts)))
        at += source.expovariate(rate)
    return found


async def run(
    load: Load,
    prompts: Sequence[Prompt],
    urls: Mapping[Side, str],
    *,
    transport: httpx2.AsyncBaseTransport | None = None,
    done: Callable[[Observation], None] = lambda _: None,
) -> list[Observation]:
    """Load the servers at `urls` in turns; one observation a request, warm-up included.

    A failure of a server's is an observation, never an exception.
    """
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64)
    async with httpx2.AsyncClient(
        transport=transport, timeout=load.timeout_s, limits=limits, trust_env=False, follow_redirects=False
    ) as http:
        found: list[Observation] = []
        for block in blocks(load, prompts):
            found += await _block(http, urls[block.side], block, load.timeout_s, done)
    return found


async def _block(
    http: httpx2.AsyncClient, url: str, block: Block, timeout_s: float, done: Callable[[Observation], None]
) -> list[Observation]:
    clock = asyncio.get_running_loop().time
    started = clock()

    async def one(at: float, prompt: Prompt) -> Observation:
        due = started + at
        await asyncio.sleep(max(0.0, due - clock()))
        seen = await _observe(http, url, prompt, block, due, timeout_s)
        done(seen)
        return seen

    # Those still unanswered at the end of the turn are waited for: they are part of it.
    return list(await asyncio.gather(*(one(at, prompt) for at, prompt in block.arrivals)))


async def _observe(
    http: httpx2.AsyncClient, url: str, prompt: Prompt, block: Block, due: float, timeout_s: float
) -> Observation:
    clock = asyncio.get_running_loop().time
    sent, error, first, tokens = clock(), "", None, 0
    try:
        async with asyncio.timeout(timeout_s):
            first, tokens = await _ask(http, url, prompt, clock)
    except (httpx2.HTTPError, TimeoutError, ValueError, KeyError, TypeError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    return Observation(
        prompt=prompt.id,
        side=block.side,
        warm=block.warm,
        ok=not error,
        latency_s=clock() - due,
        ttft_s=None if error or first is None else first - due,
        tokens=tokens,
        lag_s=sent - due,
        error=error,
    )


async def _ask(
    http: httpx2.AsyncClient, url: str, prompt: Prompt, clock: Callable[[], float]
) -> tuple[float | None, int]:
    """When the first token came, and how many did. Raises what makes it no whole answer."""
    body: dict[str, Any] = {"prompt": prompt.prompt, "max_tokens": prompt.max_tokens, "temperature": 1.0}
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    target = url.rstrip("/") + "/v1/completions"
    async with http.stream("POST", target, json=body | stream) as response:
        if response.status_code == httpx2.codes.OK:
            return await _streamed(_events(response), clock)
        if response.status_code != httpx2.codes.BAD_REQUEST:
            response.raise_for_status()
            raise ValueError(f"status {response.status_code}")
    # A server that does not stream says so with 400: the answer then comes in one piece.
    answer = await http.post(target, json=body | {"return_token_ids": True})
    answer.raise_for_status()
    return _whole(answer.json(), clock())


async def _events(response: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    ended = False
    async for line in response.aiter_lines():
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:"):
            continue
        if data == "[DONE]":
            ended = True
            break
        event = json.loads(data)
        if "error" in event:
            raise ValueError(f"the server broke off: {event['error']}")
        yield event
    if not ended:
        raise ValueError("the stream ended before it was done")


async def _streamed(
    events: AsyncIterator[dict[str, Any]], clock: Callable[[], float]
) -> tuple[float | None, int]:
    first, tokens = None, 0
    async for event in events:
        if event.get("choices") and first is None:
            first = clock()
        if event.get("usage"):
            tokens = int(event["usage"]["completion_tokens"])
    if first is None:
        raise ValueError("the stream had no token")
    return first, tokens


def _whole(body: dict[str, Any], now: float) -> tuple[float | None, int]:
    choice = body["choices"][0]
    timing = body.get("timing") or {}
    ids = choice.get("token_ids")
    tokens = len(ids) if isinstance(ids, list) else int((body.get("usage") or {}).get("completion_tokens", 0))
    if not {"ttft_s", "latency_s"} <= timing.keys():
        return None, tokens
    # What the server took after its first token, taken back from when the last one was here: what a
    # request waited before its batch began is in it that way.
    return now - (float(timing["latency_s"]) - float(timing["ttft_s"])), tokens
