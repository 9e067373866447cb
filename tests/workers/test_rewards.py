"""Rewards of both kernels' answers, paired and importance-weighted."""

from __future__ import annotations

import json
import math

import pytest
import torch

from contracts.document import read
from contracts.judge import judge
from contracts.model import Sampling
from contracts.slices import Attributes
from tests.workers.conftest import write_checkpoint
from tests.workers.documents import DIGEST, contract_text, provenance
from tests.workers.tiny import make_requests
from workers import evaluate as command
from workers.draws import Draw, InvalidEvaluation, Task
from workers.evaluation import evaluate
from workers.kernels.builds import read_build
from workers.kernels.torch_graph import TorchGraph
from workers.paired import paired
from workers.rewards import log_weight

REWARD = "reward: {range: [0, 1], grader: exact-match}\n"
DRIFT = (
    "  - {id: S6, family: statistical, metric: reward_drift, limit: {abs_lte: 0.5}, kind: hard, level: L2}"
)
FLIPS = "  - {id: S7, family: statistical, metric: flip_rate, limit: {lte: 0.5}, kind: hard, level: L2}"


@pytest.fixture(scope="module")
def other_checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("other") / "tiny", seed=1)


def test_the_weight_of_an_answer_is_that_of_its_tokens(tiny_checkpoint, other_checkpoint):
    from transformers import AutoModelForCausalLM

    requests = [r for r in make_requests(12, outputs=6) if r.output_ids]
    kernels = TorchGraph(tiny_checkpoint), TorchGraph(other_checkpoint)
    models = [
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
        for folder in (tiny_checkpoint, other_checkpoint)
    ]
    for prompt in paired(*kernels, requests, Sampling(temperature=0.7)):
        ids = torch.tensor([prompt.token_ids])
        of = []
        for model in models:
            with torch.no_grad():
                scores = model(ids).logits[0, :, :259] / 0.7
            logs = scores.log_softmax(-1)
            start = prompt.prompt_tokens
            of.append(
                sum(float(logs[i - 1, prompt.token_ids[i]]) for i in range(start, len(prompt.token_ids)))
            )
        assert log_weight(prompt) == pytest.approx(of[0] - of[1], abs=1e-3)


def draws(count=30, **task):
    requests = make_requests(count, outputs=None, new=3)
    return [Draw(r, Attributes(len(r.prompt_ids), None, frozenset()), Task(**task)) for r in requests]


def measured(
    checkpoint, clauses, given, *, inference="torch-serving:dtype=float32", reward=REWARD, **options
):
    text = contract_text(clauses, inference="float32") + reward
    contract = read(text.encode()).contract
    evidence = evaluate(
        contract, provenance(), checkpoint, read_build("torch:dtype=float32"), read_build(inference), given,
        shard="s", **options,
    )  # fmt: skip
    return evidence, {v.clause: v for v in judge(contract, evidence, contract_digest=DIGEST).verdicts}


def test_kernels_that_agree_answer_alike(tiny_checkpoint):
    evidence, verdicts = measured(tiny_checkpoint, f"{DRIFT}\n{FLIPS}", draws(reference="x"))
    rewards = evidence.cell("S6", "all", None).rewards
    assert (rewards.form, rewards.gap.n, rewards.gap.mean) == ("paired", 30, 0.0)
    assert evidence.cell("S7", "all", None).outcomes.n == 30
    assert {v.verdict for v in verdicts.values()} == {"HOLDS"}


def test_weighted_rewards_take_one_generation(tiny_checkpoint, monkeypatch):
    from workers.kernels import torch_graph

    monkeypatch.setattr(torch_graph.TorchGraph, "_stepped", None)
    evidence, verdicts = measured(tiny_checkpoint, DRIFT, draws(reference="x"), rewards="weighted")
    cell = evidence.cell("S6", "all", None)
    assert (cell.rewards.form, cell.rewards.gap.n) == ("weighted", 30)
    assert cell.weights is not None
    assert "effective sample size" in verdicts["S6"].reason


def test_flips_are_not_known_from_one_kernel(tiny_checkpoint):
    _, verdicts = measured(tiny_checkpoint, FLIPS, draws(reference="x"), rewards="weighted")
    assert verdicts["S7"].verdict == "NO_DATA"


def test_prompts_without_a_task_are_no_draws(tiny_checkpoint):
    _, verdicts = measured(tiny_checkpoint, DRIFT, draws())
    assert verdicts["S6"].verdict == "NO_DATA"


def test_what_the_contract_asks_of_graders_is_checked_before_weights_are_loaded(tiny_checkpoint, monkeypatch):
    from workers import kept

    monkeypatch.setattr(kept, "open_kernel", None)
    with pytest.raises(InvalidEvaluation, match="no grader is called"):
        measured(tiny_checkpoint, DRIFT, draws(), reward="reward: {range: [0, 1], grader: magic}\n")
    truncated = contract_text(DRIFT, sampling="{temperature: 1.0, top_p: 0.9}", inference="float32") + REWARD
    with pytest.raises(InvalidEvaluation, match="kept mass"):
        evaluate(
            read(truncated.encode()).contract, provenance(), tiny_checkpoint,
            read_build("torch:dtype=float32"), read_build("torch-serving:dtype=float32"), draws(),
            shard="s", rewards="weighted",
        )  # fmt: skip


def test_from_the_command_line(tiny_checkpoint, tmp_path, capsys):
    prompts = [
        {"id": f"p{i}", "prompt": f"def f{i}(x):", "reference": "return x", "max_new_tokens": 3}
        for i in range(4)
    ]
    (tmp_path / "suite.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    (tmp_path / "contract.yaml").write_text(contract_text(f"{DRIFT}\n{FLIPS}") + REWARD)
    status = command.main(
        [
            "--contract", str(tmp_path / "contract.yaml"), "--checkpoint", str(tiny_checkpoint),
            "--train", "torch:dtype=float32", "--inference", "torch-serving:dtype=bfloat16",
            "--suite", str(tmp_path / "suite.jsonl"), "--json", "--quiet",
        ]
    )  # fmt: skip
    answer = json.loads(capsys.readouterr().out)
    assert status == 0
    assert {v["clause"]: v["n"] for v in answer["verdicts"]} == {"S6": 4, "S7": 4}
    assert not math.isnan(answer["verdicts"][0]["observed"])
