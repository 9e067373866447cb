"""The serving program: cache, chunks and batches leave a request's numbers alone; faults do not."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch

from contracts.builds import matches, parse_build
from contracts.model import Phase, Sampling
from tests.workers.tiny import EOS, VOCABULARY, make_requests
from workers.kernels.loading import load
from workers.kernels.protocol import Request, UnusableCheckpoint
from workers.kernels.sampling import generator, kept, sample
from workers.kernels.torch_graph import TorchGraph
from workers.kernels.torch_serving import TorchServing, _batches


@pytest.fixture(scope="module")
def graph(tiny_checkpoint):
    return TorchGraph(tiny_checkpoint)


@pytest.fixture(scope="module")
def serving(tiny_checkpoint):
    return TorchServing(tiny_checkpoint, dtype="float32", chunk=16, batch=4)


@pytest.mark.parametrize("attn", ["sdpa", "eager"])
@pytest.mark.parametrize(("chunk", "batch"), [(1, 4), (7, 1), (16, 3), (256, 16)])
def test_float32_serving_is_the_float32_graph(graph, tiny_checkpoint, attn, chunk, batch):
    kernel = TorchServing(tiny_checkpoint, dtype="float32", attn=attn, chunk=chunk, batch=batch)
    requests = make_requests(10)
    for here, there in zip(
        graph.trace(requests, Sampling()), kernel.trace(requests, Sampling()), strict=True
    ):
        assert (here.request, here.token_ids, here.phases) == (there.request, there.token_ids, there.phases)
        torch.testing.assert_close(kernel.logits(there.states), graph.logits(here.states), rtol=0, atol=1e-3)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.15)])
def test_a_request_alone_and_in_a_batch_agree(tiny_checkpoint, dtype, tolerance):
    kernel = TorchServing(tiny_checkpoint, dtype=dtype, chunk=8, batch=6)
    requests = make_requests(12)
    for request, trace in zip(requests, kernel.trace(requests, Sampling()), strict=True):
        (alone,) = kernel.trace([request], Sampling())
        assert trace.states.dtype == getattr(torch, dtype)
        torch.testing.assert_close(trace.states, alone.states, rtol=tolerance, atol=tolerance)


def test_bfloat16_drifts_and_not_wildly(graph, tiny_checkpoint):
    kernel = load(parse_build("torch-serving"), tiny_checkpoint)
    requests = make_requests(4)
    for here, there in zip(
        graph.trace(requests, Sampling()), kernel.trace(requests, Sampling()), strict=True
    ):
        gap = (graph.logits(here.states) - kernel.logits(there.states).float()).abs().max()
        assert 1e-5 < gap < 1.0


def test_a_long_prompt_does_not_pad_the_short_ones():
    lengths = [4, 5, 6, 6, 90, 100]
    assert list(_batches(range(6), lengths, most=4)) == [[0, 1, 2, 3], [4, 5]]
    assert list(_batches(range(6), lengths, most=8)) == [[0, 1, 2, 3], [4, 5]]
    assert list(_batches([], [], most=4)) == []


def test_sampling_does_not_depend_on_the_batch(serving):
    requests, sampling = make_requests(9, outputs=None), Sampling(temperature=0.9, top_p=0.95, top_k=80)
    for request, trace in zip(requests, serving.trace(requests, sampling), strict=True):
        (alone,) = serving.trace([request], sampling)
        assert alone.token_ids == trace.token_ids


def test_a_sampled_output_replayed_gives_the_same_states(serving):
    requests = make_requests(5, outputs=None)
    sampled = serving.trace(requests, Sampling())
    replay = [
        Request(r.id, r.prompt_ids, tuple(t.token_ids[t.prompt_tokens :]))
        for r, t in zip(requests, sampled, strict=True)
    ]
    for first, second in zip(sampled, serving.trace(replay, Sampling()), strict=True):
        torch.testing.assert_close(first.states, second.states, rtol=1e-4, atol=1e-4)
        assert second.logprobs is None
        assert len(first.logprobs) == len(first.token_ids) - first.prompt_tokens


def test_end_of_sequence_ends_it(serving, monkeypatch):
    calls = []

    def ends_on_the_third(*_):
        calls.append(1)
        return (EOS if len(calls) == 3 else 7), -1.0

    monkeypatch.setattr("workers.kernels.torch_serving.sample", ends_on_the_third)
    (trace,) = serving.trace([Request("a", (5, 6), None, max_new_tokens=9)], Sampling())
    assert trace.token_ids == [5, 6, 7, 7, EOS]
    assert trace.stopped
    assert trace.phases == [Phase.PREFILL] * 2 + [Phase.DECODE] * 2


def test_times_are_ordered(serving):
    for trace in serving.trace(make_requests(6, outputs=None), Sampling()):
        assert 0 < trace.ttft_s <= trace.latency_s


def test_a_wrong_rope_base_grows_with_position(graph, tiny_checkpoint):
    kernel = load(parse_build("torch-serving:dtype=float32,rope_theta=100"), tiny_checkpoint)
    assert kernel.fingerprint().flags["rope_theta"] == 100
    request = Request("a", tuple(range(3, 203)), ())
    (here,), (there,) = graph.trace([request], Sampling()), kernel.trace([request], Sampling())
    gap = (graph.logits(here.states) - kernel.logits(there.states)).abs().amax(-1)
    assert gap[0] < 1e-4  # nothing to attend to but itself
    assert gap[2:20].mean() > 1e-3
    assert gap[100:].mean() > gap[1:10].mean()


def test_a_model_without_rope_takes_no_base(tiny_checkpoint, tmp_path):
    copy = shutil.copytree(tiny_checkpoint, tmp_path / "copy")
    config = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 320}
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnusableCheckpoint, match="RoPE"):
        load(parse_build("torch-serving:rope_theta=10000"), copy)


def test_int8_weights_are_255_levels_a_matrix(tiny_checkpoint):
    kernel = TorchServing(tiny_checkpoint, dtype="float32", weights="int8-per-tensor")
    assert matches({"quantization": "int8-per-tensor"}, kernel.fingerprint()) == []
    plain = TorchServing(tiny_checkpoint, dtype="float32")
    weight = kernel._model.body.layers[0].mlp.up_proj.weight
    original = plain._model.body.layers[0].mlp.up_proj.weight
    scale = original.abs().max() / 127
    torch.testing.assert_close(weight / scale, (weight / scale).round(), rtol=0, atol=1e-3)
    assert (weight - original).abs().max() <= scale / 2 * 1.001
    assert torch.equal(kernel._model.body.embed_tokens.weight, plain._model.body.embed_tokens.weight)


def test_defaults_are_a_servers(tiny_checkpoint):
    found = load(parse_build("torch-serving"), tiny_checkpoint).fingerprint()
    asked = {
        "engine": "torch-serving",
        "dtype": "bfloat16",
        "attention_backend": "sdpa",
        "chunk": 256,
        "batch": 8,
    }
    assert matches(asked | {"quantization": "none", "kv_cache_dtype": "bfloat16"}, found) == []


def test_truncation_keeps_what_it_says():
    scores = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.05]).log()
    assert kept(scores, Sampling(top_k=2)).tolist() == [True, True, False, False, False]
    assert kept(scores, Sampling(top_p=0.69)).tolist() == [True, True, False, False, False]
    assert kept(scores, Sampling(top_p=0.71)).tolist() == [True, True, True, False, False]
    assert kept(scores, Sampling(min_p=0.25)).tolist() == [True, True, True, False, False]
    assert kept(scores, Sampling(top_p=1e-6)).tolist() == [True, False, False, False, False]


def test_samples_have_the_frequencies_of_the_softmax():
    logits, source = torch.tensor([1.0, 0.0, -1.0]), generator(3)
    expected = (logits / 0.5).softmax(-1)
    drawn = [sample(logits, Sampling(temperature=0.5), source)[0] for _ in range(4000)]
    for token in range(3):
        share, p = drawn.count(token) / 4000, float(expected[token])
        assert abs(share - p) < 4 * math.sqrt(p * (1 - p) / 4000)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_distribution_give_a_token_and_no_logprob(bad):
    token, logprob = sample(torch.tensor([0.0, bad, 2.0]), Sampling(), generator(0))
    assert token == 2
    assert math.isnan(logprob)


def test_tokens_come_from_the_tokenizers_vocabulary(serving):
    traces = serving.trace(make_requests(8, outputs=None, new=20), Sampling(temperature=50.0))
    assert all(token < VOCABULARY for trace in traces for token in trace.token_ids)
