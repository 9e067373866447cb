from __future__ import annotations

from pathlib import Path

import pytest

from contracts.model import Sampling
from tests.workers.tiny import make_requests
from workers import replay
from workers.kernels.torch_graph import TorchGraph
from workers.replay import Replay


class Counting(TorchGraph):
    """Says how many requests it was given."""

    ran = 0

    def trace(self, requests, sampling):
        self.ran += len(requests)
        return super().trace(requests, sampling)


@pytest.fixture
def kernel(tiny_checkpoint: Path) -> Counting:
    return Counting(tiny_checkpoint)


def test_what_was_run_is_not_run_again(kernel: Counting) -> None:
    wanted, sampling = make_requests(4, outputs=3), Sampling()
    again = Replay(kernel)
    first, second = again.trace(wanted, sampling), again.trace(wanted[::-1], sampling)[::-1]
    assert kernel.ran == 4
    for request, one, other in zip(wanted, first, second, strict=True):
        assert one.request == other.request == request.id
        assert one.token_ids == other.token_ids == [*request.prompt_ids, *request.output_ids]
        assert bool((one.states == other.states).all())
    assert again.vocab_size == kernel.vocab_size
    assert again.fingerprint() == kernel.fingerprint()


def test_sampling_is_never_remembered(kernel: Counting) -> None:
    wanted = make_requests(2, outputs=None)
    again = Replay(kernel)
    assert again.trace(wanted, Sampling())[0].token_ids == again.trace(wanted, Sampling())[0].token_ids
    assert kernel.ran == 4


def test_memory_is_bounded(kernel: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = make_requests(3, outputs=3)
    monkeypatch.setattr(replay, "KEPT_TOKENS", len(wanted[0].prompt_ids) + len(wanted[0].output_ids or ()))
    again = Replay(kernel)
    for _ in range(2):
        again.trace(wanted[:1], Sampling())
        again.trace(wanted[1:], Sampling())
    assert kernel.ran == 1 + 2 + 2
