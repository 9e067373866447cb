"""Work off the request path: bounded queues that drop and count instead of ever making a user wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import structlog

Item = TypeVar("Item")
log = structlog.get_logger(__name__)


class Mirrors(Generic[Item]):
    """Hands items to `send`, at most `workers` at once; `offer` never waits."""

    def __init__(self, send: Callable[[Item], Awaitable[None]], *, capacity: int, workers: int) -> None:
        self._queue: asyncio.Queue[Item] = asyncio.Queue(capacity)
        self._send = send
        self._workers = workers

    def offer(self, item: Item) -> bool:
        """Whether there was room for the item; when there was none it is gone."""
        try:
            self._queue.put_nowait(item)
        except asyncio.QueueFull:
            return False
        return True

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            item = await self._queue.get()
            try:
                await self._send(item)
            except Exception as error:  # noqa: BLE001 - one mirror that fails must not end the others
                log.error("mirror failed", error=type(error).__name__)
            finally:
                self._queue.task_done()

    async def drained(self) -> None:
        """Return when everything offered so far has been handled."""
        await self._queue.join()


class Recorder(Generic[Item]):
    """Writes items in batches from a thread; a batch that cannot be written is tried again.

    While the database is away the queue fills; what no longer fits is dropped and counted by
    the caller, and serving goes on.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Item]], None],
        *,
        capacity: int,
        batch: int,
        linger_s: float,
        retry_s: float,
    ) -> None:
        self._queue: asyncio.Queue[Item] = asyncio.Queue(capacity)
        self._write = write
        self._batch = batch
        self._linger_s = linger_s
        self._retry_s = retry_s
        self.error: str | None = None

    def offer(self, item: Item) -> bool:
        """Whether there was room for the item; when there was none it is gone."""
        try:
            self._queue.put_nowait(item)
        except asyncio.QueueFull:
            return False
        return True

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            batch = [await self._queue.get()]
            # A transaction costs more than its rows, and others want to write too.
            await asyncio.sleep(self._linger_s)
            while len(batch) < self._batch and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            await self._written(batch)
            for _ in batch:
                self._queue.task_done()

    async def _written(self, batch: Sequence[Item]) -> None:
        while True:
            try:
                await asyncio.to_thread(self._write, batch)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with the database, serving goes on
                if self.error is None:
                    log.error("traffic cannot be recorded; trying again", error=type(error).__name__)
                self.error = type(error).__name__
                await asyncio.sleep(self._retry_s)
            else:
                self.error = None
                return

    async def drained(self) -> None:
        """Return when everything offered so far has been written."""
        await self._queue.join()
