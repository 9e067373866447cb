"""Requests that arrive together run together: one thread owns the kernel and batches for it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from contracts.model import Sampling
from workers.kernels.protocol import Kernel, Request, Trace

Reader = Callable[[Kernel, Trace], object]


@dataclass(slots=True)
class _Job:
    request: Request
    sampling: Sampling
    read: Reader
    done: Future[tuple[Trace, object]] = field(default_factory=Future)


class MicroBatcher:
    """Runs :meth:`Kernel.trace` on whatever came within `window_s` of the first request.

    Only requests with equal sampling parameters share a batch. When a batch fails, each of
    its requests is tried alone, so that one of them cannot fail the others.

    Args:
        kernel: used by the batcher's own thread only, from start to :meth:`close`.
        window_s: seconds a first request waits for company.
        max_batch: requests in a batch at most.
    """

    def __init__(self, kernel: Kernel, *, window_s: float = 0.004, max_batch: int = 8) -> None:
        self._kernel = kernel
        self._window_s = window_s
        self._max_batch = max_batch
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="kernel", daemon=True)
        self._thread.start()

    def submit(self, request: Request, sampling: Sampling, read: Reader) -> Future[tuple[Trace, object]]:
        """Queue a request; `read(kernel, trace)` runs in the kernel's thread, its result comes along.

        Raises:
            RuntimeError: the batcher is closed.
        """
        job = _Job(request, sampling, read)
        with self._lock:
            if self._closed:
                raise RuntimeError("the kernel is shutting down")
            self._queue.put(job)
        return job.done

    def close(self) -> None:
        """Finish what is queued, then stop; the kernel stays open."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            first = self._queue.get()
            if first is None:
                return
            jobs, stop = self._gather(first)
            groups: dict[Sampling, list[_Job]] = {}
            for job in jobs:
                if job.done.set_running_or_notify_cancel():
                    groups.setdefault(job.sampling, []).append(job)
            for group in groups.values():
                self._serve(group)
            if stop:
                return

    def _gather(self, first: _Job) -> tuple[list[_Job], bool]:
        jobs, until = [first], time.monotonic() + self._window_s
        while len(jobs) < self._max_batch:
            try:
                job = self._queue.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if job is None:
                return jobs, True
            jobs.append(job)
        return jobs, False

    def _serve(self, jobs: Sequence[_Job]) -> None:
        try:
            traces = self._kernel.trace([job.request for job in jobs], jobs[0].sampling)
            pairs = zip(jobs, traces, strict=True)
            results = [(trace, job.read(self._kernel, trace)) for job, trace in pairs]
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the request's answer
            if len(jobs) == 1:
                jobs[0].done.set_exception(error)
                return
            for job in jobs:
                self._serve([job])
            return
        for job, result in zip(jobs, results, strict=True):
            job.done.set_result(result)
