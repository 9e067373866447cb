"""Noise floors: zero where a kernel repeats itself, and limits that stand above what was seen."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from contracts.builds import parse_build
from contracts.document import read
from contracts.model import Phase, Sampling
from tests.workers.documents import contract_text
from tests.workers.tiny import make_requests
from workers import calibrate as module
from workers.calibrate import Spread, calibrate, clauses, main, proposals, variants
from workers.kept import KeptKernels

TRAIN, INFERENCE = parse_build("torch:dtype=float32"), parse_build("torch-serving:dtype=bfloat16,chunk=4")


@pytest.fixture(scope="module")
def found(tiny_checkpoint):
    requests = make_requests(6, outputs=None)
    return calibrate(
        tiny_checkpoint, "sha256:0", TRAIN, INFERENCE, requests, Sampling(), opened=KeptKernels()
    )


def of(found, kernel, variant, metric="kl"):
    return [s for s in found if (s.kernel, s.variant, s.metric) == (kernel, variant, metric)]


def test_the_same_again_is_exactly_the_same(found):
    for kernel in ("train", "inference"):
        for metric in ("kl", "abs_log_ratio", "logit_osc", "top1_flip"):
            repeated = of(found, kernel, "repeat", metric)
            assert {s.phase for s in repeated} == {Phase.PREFILL, Phase.DECODE}
            assert {s.worst for s in repeated} == {0.0}
        assert {s.worst for s in of(found, kernel, "repeat", "topk_agreement@10")} == {1.0}


def test_another_composition_is_noise_below_the_pair(found):
    pair = max(s.p50 for s in of(found, "pair", "drift"))
    for variant in ("alone", "reversed"):
        assert max(s.worst for s in of(found, "train", variant)) < pair
    # bfloat16 rounds what another chunk reduces in another order.
    assert max(s.worst for s in of(found, "inference", "chunk=64", "logit_osc")) > 0.0


def test_quantiles_go_the_way_drift_grows():
    values = {(Phase.DECODE, "kl"): np.arange(1, 101) / 100.0,
              (Phase.DECODE, "topk_agreement@10"): np.arange(1, 101) / 100.0}  # fmt: skip
    kl, agreement = module._spreads("pair", "drift", values)
    assert (kl.p50, kl.p99, kl.worst) == (0.51, 1.0, 1.0)
    assert (agreement.p50, agreement.p99, agreement.worst) == (0.5, 0.01, 0.01)
    values = {(Phase.DECODE, "kl"): np.array([math.nan, 1.0])}
    (spread,) = module._spreads("pair", "drift", values)
    assert (spread.n, spread.unmeasurable, spread.worst) == (1, 1, 1.0)
    (spread,) = module._spreads("pair", "drift", {(Phase.DECODE, "kl"): np.array([math.nan])})
    assert (spread.n, spread.unmeasurable) == (0, 1)


def spread(kernel, metric, p99, worst, phase=Phase.DECODE):
    return Spread(kernel, "v", phase, metric, 100, 0, 0.0, p99, worst)


def test_proposals_stand_above_the_pair_and_the_floor():
    seen = [spread("pair", "kl", 0.01, 0.5), spread("pair", "kl", 0.02, 0.5, Phase.PREFILL)]
    assert proposals(seen) == {"kl": 0.025}
    assert proposals([*seen, spread("inference", "kl", 0.0, 0.1)]) == {"kl": 0.3}
    assert proposals([spread("pair", "topk_agreement@10", 0.9, 0.7)]) == {"topk_agreement@10": 0.87}
    assert proposals([spread("pair", "tv", 0.9, 1.0)]) == {"tv": 1.0}
    assert proposals([spread("train", "kl", 0.0, 0.1)]) == {}
    assert proposals([spread("pair", "kl", 0.0, 0.0)]) == {"kl": 1e-6}


def test_proposals_are_clauses_of_a_contract(found):
    text = clauses(proposals(found)).removeprefix("clauses:\n")
    contract = read(contract_text(text).encode()).contract
    assert [clause.metric for clause in contract.clauses] == [
        "logit_osc", "abs_log_ratio", "kl", "tv", "topk_agreement",
    ]  # fmt: skip


def test_variants_of_engines():
    assert [v.name for v in variants(TRAIN)] == ["repeat", "alone", "reversed"]
    assert [v.name for v in variants(INFERENCE)] == ["repeat", "alone", "reversed", "chunk=64"]
    names = [v.name for v in variants(parse_build("vllm:chunk=64"))]
    assert names == ["repeat", "alone", "reversed", "prefix_caching=on"]
    assert str(variants(INFERENCE)[-1].build) == "torch-serving:chunk=64,dtype=bfloat16"


@pytest.fixture
def given(tmp_path, tiny_checkpoint):
    prompts = [{"id": f"p{i}", "prompt": f"def f{i}(x):"} for i in range(3)]
    (tmp_path / "suite.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    return {
        "--checkpoint": str(tiny_checkpoint), "--train": "torch", "--inference": "torch-serving",
        "--suite": str(tmp_path / "suite.jsonl"),
    }  # fmt: skip


def run(given, *flags):
    return main([*(word for pair in given.items() for word in pair), "--quiet", *flags])


def test_the_command(given, capsys):
    assert run(given, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer["limits"]) == {"logit_osc", "abs_log_ratio", "kl", "tv", "topk_agreement@10"}
    assert {s["kernel"] for s in answer["spreads"]} == {"train", "inference", "pair"}
    assert run(given) == 0
    assert "clauses:\n  - {id: C1, family: numerical, metric: logit_osc" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"--train": "torhc"}, 2, "did you mean 'torch'"),
        ({"--suite": "/nowhere"}, 2, "cannot be read"),
        ({"--checkpoint": "/nowhere"}, 2, "nowhere"),
        ({"--temperature": "-1"}, 2, "temperature"),
        ({"--inference": "llamacpp:file=nowhere.gguf,python=nowhere"}, 4, "nowhere"),
    ],
)
def test_what_cannot_be(given, capsys, change, status, says):
    assert run(given | change) == status
    assert says in capsys.readouterr().err
