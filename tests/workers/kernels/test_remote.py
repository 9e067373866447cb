"""A kernel in its own process gives bit for bit what it gives here, and fails by the same types."""

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from contracts.builds import BuildSpec, InvalidBuild, parse_build
from contracts.model import Sampling
from tests.workers.tiny import make_requests
from workers.kernels.child import KernelDied, KernelOutOfMemory, Limits
from workers.kernels.loading import load
from workers.kernels.protocol import InvalidRequest, KernelError, Request, UnusableCheckpoint
from workers.kernels.remote import RemoteKernel
from workers.paired import paired

BUILD = parse_build("torch-serving:dtype=bfloat16,chunk=16,batch=3")


@pytest.fixture(scope="module")
def local(tiny_checkpoint):
    return load(BUILD, tiny_checkpoint)


@pytest.fixture(scope="module")
def remote(tiny_checkpoint):
    kernel = RemoteKernel(BUILD, tiny_checkpoint)
    yield kernel
    kernel.close()


def test_it_describes_itself_as_the_kernel_does(remote, local):
    assert remote.fingerprint() == local.fingerprint()
    assert remote.vocab_size == local.vocab_size
    assert remote.trace_tokens is None
    assert remote.peak_bytes > 0


@pytest.mark.parametrize("outputs", [6, None])
def test_traces_and_logits_bit_for_bit(remote, local, outputs):
    requests = make_requests(7, outputs=outputs)
    sampling = Sampling(temperature=0.8)
    for there, here in zip(remote.trace(requests, sampling), local.trace(requests, sampling), strict=True):
        assert there.states.dtype == torch.bfloat16
        assert torch.equal(there.states, here.states)
        assert (there.request, there.token_ids, there.phases) == (here.request, here.token_ids, here.phases)
        assert (there.prompt_tokens, there.logprobs, there.stopped) == (
            here.prompt_tokens, here.logprobs, here.stopped,
        )  # fmt: skip
        assert torch.equal(remote.logits(there.states), local.logits(here.states))


def test_no_requests_no_traces(remote):
    assert remote.trace([], Sampling()) == []


def test_logits_held_on_to_are_not_written_over(remote, local):
    states = local.trace(make_requests(1, seed=3), Sampling())[0].states
    held = [remote.logits(states[i : i + 1]) for i in range(len(states))]
    assert torch.equal(
        torch.cat(held), torch.cat([local.logits(states[i : i + 1]) for i in range(len(states))])
    )
    del held
    gc.collect()
    for _ in range(20):
        remote.logits(states)
    assert len(remote._outbox) <= 6  # those let go of were used again


def test_a_pair_over_two_processes(remote, tiny_checkpoint):
    train = load(parse_build("torch:dtype=float32"), tiny_checkpoint)
    for prompt in paired(train, remote, make_requests(3), Sampling()):
        assert all(found.values["tv"].max(initial=0.0) < 0.2 for found in prompt.phases.values())


def test_a_request_nothing_can_run(remote):
    with pytest.raises(InvalidRequest) as caught:
        remote.trace([Request("a: b", (3, 9999), ())], Sampling())
    assert (caught.value.request, caught.value.position) == ("a: b", 1)
    assert str(caught.value).startswith("request 'a: b', position 1: token 9999 is outside")
    assert remote.trace(make_requests(1), Sampling())  # and it lives


def test_a_checkpoint_that_is_none(tmp_path):
    with pytest.raises(UnusableCheckpoint, match=r"no config\.json"):
        RemoteKernel(BUILD, tmp_path)


def test_an_engine_that_is_not_there(tmp_path):
    with pytest.raises(InvalidBuild, match=r"needs vllm|no config\.json"):
        RemoteKernel(BuildSpec(engine="vllm"), tmp_path)


def test_an_interpreter_without_what_it_needs(tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(KernelDied, match="No module named"):
        RemoteKernel(BUILD, tmp_path, bare)


def test_killed_in_the_middle_and_not_to_be_used_again(tiny_checkpoint):
    kernel = RemoteKernel(BUILD, tiny_checkpoint)
    os.kill(kernel.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(KernelDied, match=r"torch-serving.*killed by SIGKILL"):
            kernel.trace(make_requests(1), Sampling())
    assert not kernel.alive
    kernel.close()


def test_more_memory_than_it_may_use_while_it_loads(tiny_checkpoint):
    with pytest.raises(KernelOutOfMemory):
        RemoteKernel(BUILD, tiny_checkpoint, limits=Limits(memory_bytes=50 * 2**20))


def test_after_close_nothing_is_left(tiny_checkpoint):
    kernel = RemoteKernel(parse_build("torch:dtype=float32"), tiny_checkpoint)
    states = kernel.trace(make_requests(1), Sampling())[0].states
    pid = kernel.pid
    kernel.close()
    assert not Path(f"/proc/{pid}").exists()
    assert bool(torch.isfinite(states).all())  # what was handed out stays
    with pytest.raises(KernelError):
        kernel.logits(states)
