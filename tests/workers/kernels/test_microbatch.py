import threading

import pytest
import torch

from contracts.model import Sampling
from workers.kernels.microbatch import MicroBatcher
from workers.kernels.protocol import Request, Trace, phases

WAIT = 30.0


class FakeKernel:
    """Answers at once, unless held; remembers its batches and the thread they ran in."""

    def __init__(self):
        self.batches = []
        self.threads = set()
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.poison = set()

    def trace(self, requests, sampling):
        self.threads.add(threading.get_ident())
        self.batches.append([request.id for request in requests])
        self.entered.set()
        assert self.gate.wait(WAIT)
        if self.poison & {request.id for request in requests}:
            raise RuntimeError("poisoned")
        return [
            Trace(r.id, [1, 2], 1, phases(1, 2), torch.zeros(1, 4), latency_s=0.1, ttft_s=0.1)
            for r in requests
        ]


@pytest.fixture
def kernel():
    return FakeKernel()


@pytest.fixture
def batcher(kernel):
    batcher = MicroBatcher(kernel, window_s=0.0, max_batch=3)
    yield batcher
    kernel.gate.set()
    batcher.close()


def request(name):
    return Request(name, (1,), None, 1, 0)


def nothing(kernel, trace):
    return trace.request


def hold(kernel, batcher):
    """Occupy the kernel, so that what is submitted now waits in the queue."""
    kernel.gate.clear()
    first = batcher.submit(request("first"), Sampling(), nothing)
    assert kernel.entered.wait(WAIT)
    return first


def test_what_waits_together_runs_together_in_one_thread(kernel, batcher):
    futures = [hold(kernel, batcher)]
    futures += [batcher.submit(request(name), Sampling(), nothing) for name in "abcd"]
    kernel.gate.set()
    assert [f.result(WAIT)[1] for f in futures] == ["first", "a", "b", "c", "d"]
    assert kernel.batches == [["first"], ["a", "b", "c"], ["d"]]
    assert len(kernel.threads) == 1
    assert kernel.threads != {threading.get_ident()}


def test_other_sampling_is_another_batch(kernel, batcher):
    futures = [hold(kernel, batcher)]
    for name, temperature in (("a", 1.0), ("b", 0.5), ("c", 1.0)):
        futures.append(batcher.submit(request(name), Sampling(temperature=temperature), nothing))
    kernel.gate.set()
    for future in futures:
        future.result(WAIT)
    assert kernel.batches == [["first"], ["a", "c"], ["b"]]


def test_one_bad_request_fails_alone(kernel, batcher):
    first = hold(kernel, batcher)
    kernel.poison = {"b"}
    futures = {name: batcher.submit(request(name), Sampling(), nothing) for name in "abc"}
    kernel.gate.set()
    assert first.result(WAIT)
    assert futures["a"].result(WAIT)[1] == "a"
    assert futures["c"].result(WAIT)[1] == "c"
    with pytest.raises(RuntimeError, match="poisoned"):
        futures["b"].result(WAIT)


def test_cancelled_requests_are_not_run(kernel, batcher):
    hold(kernel, batcher)
    gone = batcher.submit(request("gone"), Sampling(), nothing)
    kept = batcher.submit(request("kept"), Sampling(), nothing)
    assert gone.cancel()
    kernel.gate.set()
    kept.result(WAIT)
    assert kernel.batches == [["first"], ["kept"]]


def test_closing_finishes_what_is_queued(kernel, batcher):
    hold(kernel, batcher)
    last = batcher.submit(request("last"), Sampling(), nothing)
    kernel.gate.set()
    batcher.close()
    assert last.result(0)[1] == "last"
    with pytest.raises(RuntimeError, match="shutting down"):
        batcher.submit(request("late"), Sampling(), nothing)
