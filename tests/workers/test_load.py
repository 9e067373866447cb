"""Open-loop load in virtual time: what a stalling, failing or slow server looks like to clients."""

from __future__ import annotations

import asyncio
import itertools
import json
import selectors
import statistics
from collections import Counter

import httpx2
import pytest

from workers.load import Load, Prompt, blocks, run

PROMPTS = [Prompt(f"p{i}", (1, 2, 3 + i), 4) for i in range(5)]
URLS = {"candidate": "http://candidate", "baseline": "http://baseline"}


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer instead of waiting for it."""

    def __init__(self):
        self._now = 0.0
        super().__init__(_Jump(self))

    def time(self):
        return self._now


class _Jump(selectors.SelectSelector):
    def __init__(self, loop):
        super().__init__()
        self._loop = loop

    def select(self, timeout=None):
        found = super().select(0)
        if not found and timeout:
            self._loop._now += timeout
        return found


def observe(load, handler):
    """What clients of servers that answer with `handler(request, now)` observe."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:

        async def answer(request):
            return await handler(request, asyncio.get_running_loop().time)

        return runner.run(run(load, PROMPTS, URLS, transport=httpx2.MockTransport(answer)))


def stream(*pieces, tokens=3, end="[DONE]"):
    """A streamed answer: seconds to wait before each event."""

    async def content():
        for wait in pieces:
            await asyncio.sleep(wait)
            yield b'data: {"choices": [{"text": "x"}]}\n\n'
        yield b'data: {"choices": [], "usage": {"completion_tokens": %d}}\n\n' % tokens
        if end:
            yield f"data: {end}\n\n".encode()

    return httpx2.Response(200, content=content())


def test_both_servers_get_the_same_arrivals_in_turns():
    load = Load(rate=4.0, seconds=45.0, warm_up_s=10.0, block_s=15.0, seed=3)
    found = blocks(load, PROMPTS)
    assert [(block.side[0], block.warm) for block in found] == [
        ("c", True), ("b", True), ("b", False), ("c", False),
        ("c", False), ("b", False), ("b", False), ("c", False),
    ]  # fmt: skip
    for one, other in zip(found[::2], found[1::2], strict=True):
        assert one.arrivals == other.arrivals
    assert found == blocks(load, PROMPTS)
    assert found != blocks(Load(rate=4.0, seconds=45.0, seed=4), PROMPTS)


def test_arrivals_are_a_poisson_process():
    found = blocks(Load(rate=5.0, seconds=4000.0, warm_up_s=0.0, block_s=4000.0), PROMPTS)
    times = [at for at, _ in found[0].arrivals]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert len(times) == pytest.approx(20_000, abs=5 * 20_000**0.5)
    # Gaps of a Poisson process are exponential: their deviation is their mean.
    assert statistics.stdev(gaps) == pytest.approx(statistics.mean(gaps), rel=0.05)
    assert set(Counter(prompt.id for _, prompt in found[0].arrivals)) == {prompt.id for prompt in PROMPTS}


def test_times_of_a_streaming_server():
    async def handler(request, now):
        body = json.loads(request.content)
        assert (body["stream"], body["max_tokens"]) == (True, 4)
        return stream(0.5, 0.25, 0.25)

    found = observe(Load(rate=2.0, seconds=20.0, warm_up_s=5.0, block_s=10.0), handler)
    assert {one.warm for one in found} == {True, False}
    for one in found:
        assert (one.ok, one.tokens) == (True, 3)
        assert one.ttft_s == pytest.approx(0.5)
        assert one.latency_s == pytest.approx(1.0)
        assert one.lag_s == pytest.approx(0.0)


def test_a_stall_is_met_by_everyone_who_arrives_during_it():
    # One server that serves one at a time and stalls once for 10 seconds: a closed loop would see one
    # slow request; of those that arrive meanwhile each waits for what is left of it.
    free = {"at": 0.0}

    async def handler(request, now):
        start = max(now(), free["at"])
        stalled = 20.0 <= start < 21.0 and not free.get("stalled")
        free["at"] = start + (10.0 if stalled else 0.01)
        free["stalled"] = free.get("stalled") or stalled
        await asyncio.sleep(free["at"] - now())
        return stream(0.0)

    found = observe(Load(rate=5.0, seconds=60.0, warm_up_s=0.0, block_s=60.0), handler)
    slow = [one for one in found if one.latency_s > 1.0]
    assert len(slow) > 30
    assert statistics.mean(one.latency_s for one in slow) == pytest.approx(5.5, abs=1.5)


def test_a_server_that_does_not_stream():
    async def handler(request, now):
        if json.loads(request.content).get("stream"):
            return httpx2.Response(400, json={"error": {"message": "no streaming"}})
        await asyncio.sleep(3.0)  # 1 s in a queue, then 2 s of work, the first token after 0.5 s
        timing = {"latency_s": 2.0, "ttft_s": 0.5}
        return httpx2.Response(200, json={"choices": [{"text": "x", "token_ids": [1, 2]}], "timing": timing})

    for one in observe(Load(rate=1.0, seconds=10.0, warm_up_s=0.0), handler):
        assert (one.ok, one.tokens) == (True, 2)
        assert (one.latency_s, one.ttft_s) == (pytest.approx(3.0), pytest.approx(1.5))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda: httpx2.Response(500), "500"),
        (lambda: httpx2.Response(302, headers={"location": "http://elsewhere"}), "302"),
        (lambda: stream(0.1, end=""), "ended before it was done"),
        (lambda: stream(), "no token"),
        (lambda: httpx2.Response(200, content=b"data: {nonsense\n\n"), "JSONDecodeError"),
        (lambda: httpx2.Response(200, content=b'data: {"error": "oom"}\n\n'), "oom"),
        (lambda: stream(500.0), "TimeoutError"),
    ],
)
def test_what_is_no_whole_answer_in_time_has_failed(answer, says):
    async def handler(request, now):
        if request.url.host == "candidate":
            return answer()
        return stream(0.1)

    found = observe(Load(rate=2.0, seconds=10.0, warm_up_s=0.0, timeout_s=60.0), handler)
    assert {one.ok for one in found if one.side == "baseline"} == {True}
    failed = [one for one in found if one.side == "candidate"]
    assert failed
    for one in failed:
        assert not one.ok
        assert one.ttft_s is None
        assert says in one.error


def test_a_server_that_is_not_there():
    async def handler(request, now):
        raise httpx2.ConnectError("refused")

    assert {one.ok for one in observe(Load(rate=1.0, seconds=5.0, warm_up_s=0.0), handler)} == {False}


@pytest.mark.parametrize(
    "change", [{"rate": 0}, {"seconds": -1}, {"block_s": float("nan")}, {"warm_up_s": -1}]
)
def test_a_load_that_cannot_be(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        Load(**{"rate": 1.0, "seconds": 1.0} | change)
