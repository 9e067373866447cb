"""A real vLLM engine in its own process, on a tiny random model, against the training graph.

Needs an interpreter called `vllm` (`make install-vllm`, or KC_PYTHONS); skipped without one.
"""

import random
from dataclasses import replace

import pytest
import torch

from contracts.builds import InvalidBuild, parse_build
from contracts.model import Phase, Sampling
from tests.workers.conftest import VOCAB, write_tokenizer
from tests.workers.tiny import EOS, VOCABULARY
from workers.environments import UnknownEnvironment, interpreter
from workers.kernels.loading import load
from workers.kernels.protocol import InvalidRequest, KernelError, Request
from workers.kernels.remote import RemoteKernel
from workers.paired import paired

CHUNK, BATCH, LONGEST = 32, 4, 256
BUILD = (
    f"vllm:dtype=float32,enforce_eager=on,chunk={CHUNK},batch={BATCH},max_model_len={LONGEST},kv_cache_gib=1"
)
SAMPLING = Sampling(temperature=0.8)


@pytest.fixture(scope="module")
def python():
    try:
        return interpreter("vllm")
    except UnknownEnvironment as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """As the other tests' tiny model, with heads as wide as the engine's attention kernels need."""
    from transformers import LlamaConfig, LlamaForCausalLM

    directory = tmp_path_factory.mktemp("checkpoint") / "wider"
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0}, initializer_range=0.2,
        bos_token_id=1, eos_token_id=EOS, pad_token_id=EOS, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(directory)
    write_tokenizer(directory)
    return directory


@pytest.fixture(scope="module")
def engine(python, checkpoint):
    kernel = RemoteKernel(parse_build(BUILD), checkpoint, python)
    yield kernel
    kernel.close()


@pytest.fixture(scope="module")
def train(checkpoint):
    return load(parse_build("torch:dtype=float32"), checkpoint)


def requests(count, *, outputs, longest=90, seed=0):
    source = random.Random(seed)

    def ids(length):
        return tuple(source.randrange(3, VOCABULARY) for _ in range(length))

    return [
        Request(
            f"r{i}",
            ids(source.randint(1, longest)),
            None if outputs is None else ids(i % (outputs + 1)),
            12,
            i,
        )
        for i in range(count)
    ]


def forced(traces, asked):
    return [
        replace(request, output_ids=tuple(trace.token_ids[trace.prompt_tokens :]))
        for request, trace in zip(asked, traces, strict=True)
    ]


def test_the_fingerprint_is_what_runs(engine):
    found = engine.fingerprint()
    assert (found.engine, found.dtype, found.kv_cache_dtype) == ("vllm", "float32", "float32")
    assert (found.quantization, found.parallelism, found.compile_mode) == ("none", "tp1", "eager")
    assert found.version
    assert found.attention_backend
    assert found.block_size
    assert found.batch_invariance == "off"
    assert found.scales is None or found.scales.startswith("sha256:")
    assert found.flags["architecture"] == "LlamaForCausalLM"
    assert (found.flags["chunk"], found.flags["batch"], found.flags["prefix_caching"]) == (
        CHUNK,
        BATCH,
        False,
    )
    assert engine.vocab_size == VOCABULARY


def test_given_outputs_are_decoded_and_agree_with_the_training_graph(engine, train):
    asked = requests(14, outputs=5)
    seen = {Phase.PREFILL: 0, Phase.DECODE: 0}
    for prompt in paired(train, engine, asked, SAMPLING):
        for phase, found in prompt.phases.items():
            assert found.values["kl"].max() < 1e-6
            assert not found.values["unmeasurable"].any()
            seen[phase] += len(found.values["kl"])
    assert seen[Phase.PREFILL] == sum(
        min(len(r.prompt_ids), r.most_tokens - 1) for r in asked
    )  # prompts longer than a chunk among them
    assert seen[Phase.DECODE] == sum(max(0, len(r.output_ids) - 1) for r in asked)


def test_the_engine_samples_and_its_log_probabilities_are_those_of_its_states(engine, train):
    asked = requests(9, outputs=None, seed=1)
    traces = engine.trace(asked, SAMPLING)
    for trace, other in zip(traces, train.trace(forced(traces, asked), SAMPLING), strict=True):
        output = trace.token_ids[trace.prompt_tokens :]
        assert all(token < VOCABULARY for token in output)
        assert trace.stopped == (output[-1] == EOS)
        assert trace.stopped or len(output) == 12
        z = train.logits(other.states[trace.prompt_tokens - 1 :])[:, :VOCABULARY].float() / 0.8
        expected = z.log_softmax(-1).gather(-1, torch.tensor(output)[:, None])[:, 0]
        assert trace.logprobs == pytest.approx(expected.tolist(), abs=1e-3)
        assert 0.0 < trace.ttft_s <= trace.latency_s


def test_a_seed_decides_and_the_batch_does_not(engine):
    asked = requests(5, outputs=None, seed=2)
    first = [trace.token_ids for trace in engine.trace(asked, SAMPLING)]
    assert [trace.token_ids for trace in engine.trace(asked[::-1], SAMPLING)][::-1] == first
    other = [replace(request, seed=request.seed + 100) for request in asked]
    assert [trace.token_ids for trace in engine.trace(other, SAMPLING)] != first


def test_one_token_decides_nothing(engine):
    (trace,) = engine.trace([Request("r", (5,), ())], SAMPLING)
    assert (trace.token_ids, trace.phases, tuple(trace.states.shape)) == ([5], [], (0, 64))


def test_the_longest_sequence_fits_and_one_token_more_does_not(engine):
    ids = tuple(range(3, 3 + 200)) + tuple(range(3, 3 + 56))
    assert len(engine.trace([Request("r", ids, ())], SAMPLING)[0].states) == LONGEST - 1
    with pytest.raises(InvalidRequest, match="the model has 256 positions"):
        engine.trace([Request("r", (*ids, 3), ())], SAMPLING)


def test_another_rope_base_is_another_program_and_says_so(python, checkpoint, train):
    kernel = RemoteKernel(parse_build(f"{BUILD},rope_theta=1000,prefix_caching=on"), checkpoint, python)
    try:
        assert kernel.fingerprint().flags["rope_theta"] == 1000.0
        assert kernel.fingerprint().flags["prefix_caching"] is True
        (prompt,) = paired(train, kernel, [Request("r", tuple(range(3, 80)), ())], SAMPLING)
        assert prompt.phases[Phase.PREFILL].values["tv"].max() > 0.05
        long = Request("twice", tuple(range(3, 250)), ())
        with pytest.raises(KernelError, match="came from a cache"):
            kernel.trace([long], SAMPLING) and kernel.trace([long], SAMPLING)
    finally:
        kernel.close()


def test_what_the_engine_refuses(python, checkpoint):
    with pytest.raises(InvalidBuild, match="max_model_len"):
        RemoteKernel(parse_build("vllm:max_model_len=999999"), checkpoint, python)
