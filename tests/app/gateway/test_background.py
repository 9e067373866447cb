"""Queues off the request path: bounded, patient with the database, never with the user."""

from __future__ import annotations

import asyncio

from app.gateway.background import Mirrors, Recorder
from tests.app.gateway.conftest import run


def test_mirrors_run_at_most_so_many_at_once_and_one_that_fails_ends_no_other() -> None:
    running, most, done = 0, 0, []

    async def send(item: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        if item == 2:
            raise ValueError("broken")
        done.append(item)

    async def scenario() -> None:
        mirrors = Mirrors(send, capacity=10, workers=3)
        assert all(mirrors.offer(i) for i in range(10))
        assert not mirrors.offer(10)
        task = asyncio.create_task(mirrors.run())
        await mirrors.drained()
        task.cancel()

    run(scenario())
    assert most == 3
    assert sorted(done) == [0, 1, 3, 4, 5, 6, 7, 8, 9]


def test_records_are_written_in_order_in_batches_and_again_after_an_error() -> None:
    written, failures = [], [OSError("gone"), OSError("gone")]

    def write(batch) -> None:
        if failures:
            raise failures.pop()
        written.append(list(batch))

    async def scenario() -> None:
        recorder = Recorder(write, capacity=10, batch=4, linger_s=0.0, retry_s=0.0)
        assert all(recorder.offer(i) for i in range(10))
        assert not recorder.offer(10)
        task = asyncio.create_task(recorder.run())
        await recorder.drained()
        assert recorder.error is None
        task.cancel()

    run(scenario())
    assert written == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
