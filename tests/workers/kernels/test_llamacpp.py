"""llama.cpp runs the checkpoint: its float32 is the graph's, given and sampled, and it says what it is."""

from __future__ import annotations

import math
import shutil

import pytest
import torch

from contracts.builds import InvalidBuild, matches, parse_build
from contracts.model import Phase, Sampling
from tests.workers.kernels.gguf_files import VOCABULARY, write_gguf
from tests.workers.tiny import EOS, make_requests
from workers.environments import UnknownEnvironment
from workers.kernels.protocol import InvalidRequest, Request, UnusableCheckpoint, trace_tokens
from workers.kernels.torch_graph import TorchGraph
from workers.opening import open_kernel
from workers.paired import paired

EXACT = "type_k=f32,type_v=f32,flash_attn=off"
FULL = Sampling()


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint, tmp_path_factory):
    directory = tmp_path_factory.mktemp("gguf")
    shutil.copytree(tiny_checkpoint, directory, dirs_exist_ok=True)
    for kind in ("F32", "Q8_0"):
        write_gguf(directory, directory / f"{kind.lower()}.gguf", kind)
    return directory


@pytest.fixture(scope="module")
def opened(checkpoint):
    """Kernels by their options, each loaded once."""
    kernels = {}

    def kernel(options, directory=checkpoint):
        build = parse_build(f"llamacpp:{options},threads=1" if options else "llamacpp")
        try:
            if directory is not checkpoint:
                return open_kernel(build, directory)
            if options not in kernels:
                kernels[options] = open_kernel(build, directory)
        except UnknownEnvironment as error:
            pytest.skip(f"{error}; or make install-llamacpp")
        return kernels[options]

    yield kernel
    for loaded in kernels.values():
        loaded.close()


@pytest.fixture(scope="module")
def graph(checkpoint):
    return TorchGraph(checkpoint)


def logits(kernel, trace):
    return torch.as_tensor(kernel.logits(trace.states)).clone()


@pytest.mark.parametrize("batch", [5, 64])
def test_float32_is_the_float32_graph(graph, opened, batch):
    kernel = opened(f"file=f32.gguf,n_batch={batch},{EXACT}")
    requests = [*make_requests(8), Request("one", (7,), ()), Request("two", (7,), (8,))]
    for here, there in zip(graph.trace(requests, FULL), kernel.trace(requests, FULL), strict=True):
        assert (here.request, here.token_ids, here.phases) == (there.request, there.token_ids, there.phases)
        assert len(there.states) == len(there.token_ids) - 1
        assert 0 < there.ttft_s <= there.latency_s or len(there.token_ids) == 1
        torch.testing.assert_close(
            logits(kernel, there)[:, :VOCABULARY],
            graph.logits(here.states)[:, :VOCABULARY],
            rtol=0,
            atol=1e-4,
        )


def test_paired_with_the_graph(graph, opened):
    kernel = opened(f"file=f32.gguf,n_batch=64,{EXACT}")
    for prompt in paired(graph, kernel, make_requests(4, outputs=None), FULL):
        for found in prompt.phases.values():
            assert found.values["kl"].max() < 1e-9
            assert not found.values["unmeasurable"].any()


def test_quantised_weights_drift_and_not_wildly(graph, opened):
    kernel = opened(f"file=q8_0.gguf,{EXACT}")
    found = [
        prompt.phases[Phase.PREFILL].values["kl"].mean()
        for prompt in paired(graph, kernel, make_requests(4), FULL)
    ]
    assert 1e-6 < sum(found) / len(found) < 0.05


def test_a_seed_gives_its_tokens_whatever_runs_beside_it(opened):
    kernel, sampling = (
        opened(f"file=f32.gguf,n_batch=64,{EXACT}"),
        Sampling(temperature=0.8, top_p=0.9, top_k=40),
    )
    requests = make_requests(6, outputs=None)
    together = kernel.trace(requests, sampling)
    for request, trace in zip(requests, together, strict=True):
        (alone,) = kernel.trace([request], sampling)
        assert alone.token_ids == trace.token_ids
        assert alone.logprobs == trace.logprobs
    assert len({tuple(trace.token_ids[trace.prompt_tokens :]) for trace in together}) > 1


def test_a_sampled_output_replayed_gives_the_same_logits(opened):
    kernel = opened(f"file=f32.gguf,n_batch=64,{EXACT}")
    requests, sampling = make_requests(5, outputs=None), Sampling(temperature=0.7)
    for request, trace in zip(requests, kernel.trace(requests, sampling), strict=True):
        output = tuple(trace.token_ids[trace.prompt_tokens :])
        (again,) = kernel.trace([Request(request.id, request.prompt_ids, output)], sampling)
        assert torch.equal(logits(kernel, again), logits(kernel, trace))
        scores = logits(kernel, trace)[trace.prompt_tokens - 1 :, :VOCABULARY].double() / 0.7
        expected = scores.log_softmax(-1)[torch.arange(len(output)), torch.tensor(output)]
        torch.testing.assert_close(torch.tensor(trace.logprobs).double(), expected, rtol=0, atol=1e-6)


def test_an_output_ends_where_the_model_says(opened):
    kernel = opened(f"file=f32.gguf,n_batch=64,{EXACT}")
    requests = [Request(f"r{i}", (5, 6), None, max_new_tokens=200, seed=i) for i in range(20)]
    traces = kernel.trace(requests, Sampling(temperature=2.0))
    assert any(trace.stopped for trace in traces)
    for trace in traces:
        output = trace.token_ids[2:]
        assert trace.stopped == (output[-1] == EOS)
        assert EOS not in output[:-1]
        assert max(output) < VOCABULARY
        assert trace.phases == [Phase.PREFILL] * 2 + [Phase.DECODE] * (len(output) - 1)


def test_what_runs_is_what_the_fingerprint_says(opened):
    kernel = opened(f"file=q8_0.gguf,{EXACT}")
    printed = kernel.fingerprint()
    assert printed == kernel.fingerprint()
    assert matches(parse_build(f"llamacpp:file=q8_0.gguf,{EXACT},threads=1").stated.flags, printed) == []
    wanted = {"engine": "llamacpp", "quantization": "q8_0", "kv_cache_dtype": "float32", "device": "cpu",
              "attention_backend": "graph", "dtype": "float32", "architecture": "llama"}  # fmt: skip
    assert matches(wanted, printed) == []
    assert printed.scales == printed.flags["file_digest"]
    assert printed.version
    plain = opened("file=f32.gguf").fingerprint()
    assert (plain.quantization, plain.kv_cache_dtype, plain.attention_backend) == ("none", "float16", "flash")
    assert plain.flags["file_digest"] != printed.flags["file_digest"]


def test_padding_is_no_vocabulary(opened):
    kernel = opened("file=f32.gguf")
    assert kernel.vocab_size == VOCABULARY
    with pytest.raises(InvalidRequest, match="vocabulary of 259"):
        kernel.trace([Request("r", (VOCABULARY,), ())], FULL)


def test_traces_to_hold_at_once_are_bounded_by_their_logits(opened):
    assert trace_tokens(opened("file=f32.gguf")) == 256 * 2**20 // (4 * 320)


def test_what_does_not_fit_the_cache_is_refused(opened):
    kernel = opened(f"file=f32.gguf,n_ctx=256,{EXACT}")
    with pytest.raises(InvalidRequest, match="256 positions"):
        kernel.trace([Request("r", (5,) * 200, None, max_new_tokens=57)], FULL)
    (whole,) = kernel.trace([Request("r", (5,) * 200, (6,) * 56)], FULL)
    assert math.isfinite(float(logits(kernel, whole).sum()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("file=absent.gguf", "no such file"),
        ("n_ctx=512", "name one GGUF.*f32.gguf, q8_0.gguf"),
        ("file=f32.gguf,type_v=q8_0,flash_attn=off", "needs flash_attn=on"),
        ("file=f32.gguf,type_k=q8_0", "f32.gguf: "),  # heads of 8 channels have no blocks of 32
        ("file=broken.gguf", "broken.gguf: "),
    ],
)
def test_what_cannot_be_loaded_is_said(opened, checkpoint, tmp_path, options, message):
    for name in ("f32.gguf", "q8_0.gguf"):
        (tmp_path / name).symlink_to(checkpoint / name)
    (tmp_path / "broken.gguf").unlink(missing_ok=True)
    if "broken" in options:
        (tmp_path / "broken.gguf").write_bytes((checkpoint / "f32.gguf").read_bytes()[:5000])
    with pytest.raises(UnusableCheckpoint, match=message):
        opened(options, tmp_path)


def test_a_build_names_a_file_and_never_a_path():
    for bad in ("../f32.gguf", "/tmp/f32.gguf", "a/b.gguf", "f32.bin", ".gguf"):
        with pytest.raises(InvalidBuild, match="the name of a"):
            parse_build(f"llamacpp:file={bad}")
