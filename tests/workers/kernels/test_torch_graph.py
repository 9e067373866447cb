"""The training graph: batching changes nothing, positions mean what they say, bad input is refused."""

from __future__ import annotations

import json
import shutil
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from contracts.builds import BuildSpec, InvalidBuild, matches, parse_build
from contracts.model import Phase, Sampling
from tests.workers.tiny import EOS, VOCABULARY, make_requests
from workers.kernels.loading import load
from workers.kernels.protocol import InvalidRequest, Request, UnusableCheckpoint
from workers.kernels.torch_graph import TorchGraph


@pytest.fixture(scope="module")
def kernel(tiny_checkpoint):
    return TorchGraph(tiny_checkpoint)


def test_states_and_logits_are_the_models_own(kernel, tiny_checkpoint):
    model = AutoModelForCausalLM.from_pretrained(tiny_checkpoint)
    for request, trace in zip(make_requests(9), kernel.trace(make_requests(9), Sampling()), strict=True):
        assert trace.token_ids == [*request.prompt_ids, *request.output_ids]
        if len(trace.token_ids) > 1:
            with torch.no_grad():
                expected = model(torch.tensor([trace.token_ids])).logits[0, :-1]
            torch.testing.assert_close(kernel.logits(trace.states), expected, rtol=1e-4, atol=1e-4)


def test_a_request_alone_and_in_a_batch_agree(kernel):
    requests = make_requests(12, longest=12)
    together = kernel.trace(requests, Sampling())
    for request, trace in zip(requests, together, strict=True):
        (alone,) = kernel.trace([request], Sampling())
        torch.testing.assert_close(trace.states, alone.states, rtol=1e-4, atol=1e-4)


def test_phases_follow_the_prompt(kernel):
    request = Request("a", (5, 6, 7), (8, 9, 10))
    (trace,) = kernel.trace([request], Sampling())
    assert trace.phases == [Phase.PREFILL] * 3 + [Phase.DECODE] * 2
    assert len(trace.states) == 5


def test_one_token_decides_nothing(kernel):
    (trace,) = kernel.trace([Request("a", (5,), ())], Sampling())
    assert trace.phases == []
    assert len(trace.states) == 0


def test_sampling_repeats_with_its_seed_and_explains_its_logprobs(kernel):
    (asked,) = make_requests(1, outputs=None)
    sampling = Sampling(temperature=0.8)
    first, second = (kernel.trace([asked], sampling)[0] for _ in range(2))
    assert first.token_ids == second.token_ids
    output = first.token_ids[first.prompt_tokens :]
    logits = kernel.logits(first.states)[first.prompt_tokens - 1 :, :VOCABULARY]
    expected = (logits / 0.8).log_softmax(-1)[range(len(output)), output]
    torch.testing.assert_close(torch.tensor(first.logprobs), expected, rtol=1e-4, atol=1e-4)
    assert first.stopped == (output[-1] == EOS)


def test_the_padded_vocabulary_is_known(kernel):
    assert kernel.vocab_size == VOCABULARY
    assert kernel.logits(torch.zeros(1, 32)).shape == (1, 320)


def test_the_fingerprint_says_what_runs(tiny_checkpoint):
    found = load(parse_build("torch:dtype=bfloat16,attn=eager"), tiny_checkpoint).fingerprint()
    assert matches({"engine": "torch", "dtype": "bfloat16", "attention_backend": "eager"}, found) == []
    assert found.kv_cache_dtype == "none"
    assert found.flags["rope_theta"] == 100_000.0


@pytest.mark.parametrize(
    ("request_", "message", "position"),
    [
        (Request("a", (), (5,)), "empty", None),
        (Request("a", (5, 6), (7, VOCABULARY)), "outside the vocabulary", 3),
        (Request("a", (-1,), ()), "outside the vocabulary", 0),
        (Request("a", (5,), None), "nothing to sample", None),
        (Request("a", (5,) * 600, ()), "512 positions", None),
    ],
)
def test_bad_requests_are_refused_before_anything_runs(kernel, request_, message, position):
    with pytest.raises(InvalidRequest, match=message) as caught:
        kernel.trace([*make_requests(1), request_], Sampling())
    assert caught.value.request == "a"
    assert caught.value.position == position


def _copy(tiny_checkpoint, tmp_path):
    return shutil.copytree(tiny_checkpoint, tmp_path / "copy")


def test_a_missing_config_is_named(tmp_path):
    with pytest.raises(UnusableCheckpoint, match=r"no config\.json"):
        TorchGraph(tmp_path)


def test_missing_weights_are_named(tiny_checkpoint, tmp_path):
    copy = _copy(tiny_checkpoint, tmp_path)
    (copy / "model.safetensors").unlink()
    with pytest.raises(UnusableCheckpoint, match=r"model\.safetensors"):
        TorchGraph(copy)


def test_a_weight_that_is_not_there_is_not_made_up(tiny_checkpoint, tmp_path):
    copy = _copy(tiny_checkpoint, tmp_path)
    weights = load_file(copy / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnusableCheckpoint, match=r"layers\.1\.mlp\.up_proj"):
        TorchGraph(copy)


def test_a_truncated_weight_file_is_refused(tiny_checkpoint, tmp_path):
    copy = _copy(tiny_checkpoint, tmp_path)
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UnusableCheckpoint):
        TorchGraph(copy)


def test_a_scaled_output_that_the_head_would_miss_is_refused(tiny_checkpoint, tmp_path):
    copy = _copy(tiny_checkpoint, tmp_path)
    config = json.loads((copy / "config.json").read_text())
    config |= {"model_type": "granite", "architectures": ["GraniteForCausalLM"], "logits_scaling": 8.0}
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnusableCheckpoint, match="more than its output matrix"):
        TorchGraph(copy)


def test_an_unknown_engine_or_option_is_refused(tiny_checkpoint):
    with pytest.raises(InvalidBuild):
        load(BuildSpec(engine="vllm"), tiny_checkpoint)
    with pytest.raises(InvalidBuild, match="chunk"):
        load(BuildSpec(engine="torch", options={"chunk": 3}), tiny_checkpoint)


def same(one, other, requests, tolerance):
    pairs = zip(one.trace(requests, Sampling()), other.trace(requests, Sampling()), strict=True)
    for a, b in pairs:
        assert (a.token_ids, a.prompt_tokens, a.phases) == (b.token_ids, b.prompt_tokens, b.phases)
        assert torch.allclose(a.states, b.states, atol=tolerance, rtol=0)


def test_with_a_cache_it_is_the_same_graph_in_steps(tiny_checkpoint):
    whole, cached = TorchGraph(tiny_checkpoint), TorchGraph(tiny_checkpoint, cache="on")
    same(whole, cached, make_requests(8), 1e-5)
    sampled = make_requests(4, outputs=None)
    same(whole, cached, sampled, 1e-5)
    assert (whole.fingerprint().kv_cache_dtype, cached.fingerprint().kv_cache_dtype) == ("none", "float32")
    (trace,) = cached.trace([Request("a", (5, 6, 7), ())], Sampling())
    assert len(trace.states) == 2
    (trace,) = cached.trace([Request("a", (5,), ())], Sampling())
    assert len(trace.states) == 0


@pytest.mark.parametrize("options", [{"grad": "on"}, {"checkpointing": "on"}])
def test_under_autograd_the_numbers_are_those_of_training(tiny_checkpoint, options):
    training = TorchGraph(tiny_checkpoint, **options)
    same(TorchGraph(tiny_checkpoint), training, make_requests(6), 1e-6)
    recorded = []

    def watch(_module, _inputs, output):
        recorded.append(output.last_hidden_state.grad_fn)

    training._model.body.register_forward_hook(watch)
    training.trace(make_requests(2), Sampling())
    assert recorded
    assert None not in recorded
    assert training.fingerprint().flags["grad"] is True
    assert training.fingerprint().flags["checkpointing"] is ("checkpointing" in options)


def test_checkpoints_are_really_made(tiny_checkpoint):
    made = []
    training = TorchGraph(tiny_checkpoint, checkpointing="on")
    for layer in training._model.body.layers:
        inner = layer._gradient_checkpointing_func
        layer._gradient_checkpointing_func = lambda *a, _inner=inner, **k: made.append(1) or _inner(*a, **k)
    training.trace(make_requests(1), Sampling())
    assert len(made) == 2


@pytest.mark.parametrize("other", [{"cache": "on"}, {"weights": "int8-per-tensor"}])
def test_nothing_is_trained_through_a_cache(tiny_checkpoint, other):
    with pytest.raises(InvalidBuild, match="nothing is trained"):
        TorchGraph(tiny_checkpoint, grad="on", **other)


def test_compiled_it_is_the_same_graph(tiny_checkpoint):
    compiled = TorchGraph(tiny_checkpoint, compile="on")
    assert compiled.fingerprint().compile_mode == "default"
    assert TorchGraph(tiny_checkpoint).fingerprint().compile_mode == "eager"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler's own
        same(TorchGraph(tiny_checkpoint), compiled, make_requests(2), 1e-4)
