"""Paired evaluation: the same ids on both sides or nothing, phases where they belong, bounded memory."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from contracts.model import Phase, Sampling
from tests.workers.tiny import VOCABULARY, make_requests
from workers import paired as module
from workers.drift import SIDES, drift, metric_names
from workers.kernels.protocol import InvalidRequest, Request
from workers.kernels.torch_graph import TorchGraph
from workers.kernels.torch_serving import TorchServing
from workers.paired import PairingError, TokensDiffer, VocabulariesDiffer, paired

KS = (1, 10)


@pytest.fixture(scope="module")
def train(tiny_checkpoint):
    return TorchGraph(tiny_checkpoint)


@pytest.fixture(scope="module")
def inference(tiny_checkpoint):
    return TorchServing(tiny_checkpoint, chunk=16, batch=4)


class Altered:
    """A kernel with one thing about its traces or logits changed."""

    def __init__(self, kernel, *, trace=lambda trace: trace, logits=lambda z: z, vocab_size=None):
        self.kernel, self.change, self.change_logits = kernel, trace, logits
        self.vocab_size = vocab_size or kernel.vocab_size
        self.widest = 0

    def trace(self, requests, sampling):
        return [self.change(trace) for trace in self.kernel.trace(requests, sampling)]

    def logits(self, states):
        self.widest = max(self.widest, len(states))
        return self.change_logits(self.kernel.logits(states))


def run(train, inference, requests, sampling=Sampling(), **options):  # noqa: B008
    return list(paired(train, inference, requests, sampling, ks=KS, **options))


@pytest.mark.parametrize("outputs", [6, None])
def test_every_decision_of_every_prompt_once_in_order(train, inference, outputs):
    requests = make_requests(9, outputs=outputs)
    found = run(train, inference, requests)
    assert [prompt.request for prompt in found] == requests
    for prompt in found:
        assert prompt.token_ids[: prompt.prompt_tokens] == prompt.request.prompt_ids
        expected = 0
        for phase in prompt.phases.values():
            assert phase.offset == expected
            assert set(phase.values) == set(metric_names(KS))
            assert set(phase.sides) == set(SIDES)
            lengths = {len(column) for column in (phase.values | phase.sides).values()}
            assert len(lengths) == 1
            assert all(column.dtype == np.float64 for column in phase.values.values())
            expected += lengths.pop()
        assert expected == prompt.decisions


def test_values_are_those_of_whole_logits(train, inference):
    request = replace(make_requests(1)[0], prompt_ids=tuple(range(3, 203)), output_ids=(7, 8, 9))
    (prompt,) = run(train, inference, [request], Sampling(temperature=0.7))
    (here,), (there,) = (kernel.trace([request], Sampling()) for kernel in (train, inference))
    whole = drift(
        train.logits(here.states), inference.logits(there.states), torch.tensor(here.token_ids[1:]),
        temperature=0.7, vocab_size=VOCABULARY, ks=KS,
    )  # fmt: skip
    for name in metric_names(KS):
        mine = np.concatenate([prompt.phases[p].values[name] for p in (Phase.PREFILL, Phase.DECODE)])
        np.testing.assert_allclose(mine, whole[name].numpy(), rtol=1e-3, atol=1e-6)
    assert prompt.phases[Phase.DECODE].offset == 200


def test_a_kernel_against_itself_has_no_drift(train):
    for prompt in run(train, train, make_requests(5)):
        for phase in prompt.phases.values():
            assert all((phase.values[name] == 0).all() for name in metric_names(()))


def test_float32_serving_hardly_drifts_and_bfloat16_does(train, inference, tiny_checkpoint):
    exact = TorchServing(tiny_checkpoint, dtype="float32")
    requests = make_requests(6)

    def worst(kernel):
        return max(
            phase.values["kl"].max() for p in run(train, kernel, requests) for phase in p.phases.values()
        )

    assert worst(exact) < 1e-8 < worst(inference) < 0.1


def test_a_phase_without_decisions_is_absent(train, inference):
    found = run(
        train, inference, [Request("one", (5,), ()), Request("p", (5, 6), ()), Request("d", (5,), (6, 7))]
    )
    assert [list(prompt.phases) for prompt in found] == [[], [Phase.PREFILL], [Phase.PREFILL, Phase.DECODE]]


def test_no_requests_are_no_prompts(train, inference):
    assert run(train, inference, []) == []


def test_progress_counts_prompts_and_decisions(train, inference, monkeypatch):
    monkeypatch.setattr(module, "_GROUP_REQUESTS", 2)
    seen, requests = [], make_requests(5)
    found = run(train, inference, requests, on_progress=lambda *step: seen.append(step))
    assert [step[:2] for step in seen] == [(i + 1, 5) for i in range(5)]
    assert seen[-1][2] == sum(prompt.decisions for prompt in found)


def test_groups_do_not_change_the_numbers(train, inference, monkeypatch):
    requests = make_requests(6, outputs=None)
    whole = run(train, inference, requests)
    monkeypatch.setattr(inference, "trace_tokens", 1, raising=False)
    single = run(train, inference, requests)
    assert [p.token_ids for p in single] == [p.token_ids for p in whole]


def test_logits_exist_for_one_block_at_a_time(train, inference, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 8)
    watched = Altered(train)
    run(watched, inference, make_requests(6, longest=100))
    assert watched.widest == 8


def test_a_nan_logit_is_an_unmeasurable_decision_at_its_position(train, inference):
    def spoil(z):
        z = z.clone()
        z[2, 5] = math.nan
        return z

    (prompt,) = run(train, Altered(inference, logits=spoil), [Request("a", (5, 6, 7, 8, 9), ())])
    values = prompt.phases[Phase.PREFILL].values
    assert values["unmeasurable"].tolist() == [0, 0, 1, 0]
    assert np.isnan(values["kl"]).tolist() == [False, False, True, False]


def test_a_dropped_bos_is_refused_with_its_position(train, inference):
    def drop(trace):
        return replace(trace, token_ids=trace.token_ids[1:], states=trace.states[1:], phases=trace.phases[1:])

    with pytest.raises(TokensDiffer, match="BOS") as caught:
        run(Altered(train, trace=drop), inference, [Request("a", (5, 6, 7), (8,))])
    assert (caught.value.request, caught.value.position) == ("a", 0)


def test_an_engine_that_changes_given_tokens_is_refused(train, inference):
    def change(trace):
        return replace(trace, token_ids=[*trace.token_ids[:-1], 77])

    with pytest.raises(TokensDiffer, match="position 3") as caught:
        run(train, Altered(inference, trace=change), [Request("a", (5, 6, 7), (8,))])
    assert caught.value.position == 3


def test_missing_states_are_refused(train, inference):
    def lose(trace):
        return replace(trace, states=trace.states[:-1])

    with pytest.raises(PairingError, match="2 hidden states for 3 decisions"):
        run(train, Altered(inference, trace=lose), [Request("a", (5, 6, 7), (8,))])


def test_a_missing_trace_is_refused(train, inference, monkeypatch):
    monkeypatch.setattr(inference, "trace", lambda *_: [])
    with pytest.raises(PairingError, match="0 traces for 1 requests"):
        run(train, inference, [Request("a", (5, 6, 7), (8,))])


def test_different_vocabularies_are_refused(train, inference):
    with pytest.raises(VocabulariesDiffer, match="259"):
        run(train, Altered(inference, vocab_size=258), make_requests(1))


def test_a_bad_request_is_refused(train, inference):
    with pytest.raises(InvalidRequest, match="position 1"):
        run(train, inference, [Request("a", (5, 999), ())])
