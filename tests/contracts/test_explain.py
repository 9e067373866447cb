"""Explanations in sentences."""

# ruff: noqa: E501 (the sentences read better whole)

from __future__ import annotations

import json
from pathlib import Path

import pytest

import contracts
from contracts.document import read
from contracts.explain import Explanation, explain, lines, promise
from contracts.metrics import METRICS, Shape
from tests.contracts.contract_kit import HEAD, RL, TV, clause, document

EXAMPLES = Path(contracts.__file__).parent / "examples"
TAIL = RL + "reward: {range: [0, 1], grader: g}\nslices: {long: {where: {prompt_tokens: {gte: 9}}}}\n"


def said(text: str, tail: str = TAIL) -> str:
    contract = document(text, tail=tail).contract
    return promise(contract.clauses[0], contract)


PROMISES = [
    (
        clause("tv", "lte: 0.1", exceedance=0.02, slices="[all, long]", phase="decode", stages="[shadow, full]"),
        "At shadow and full on all and long in decode, on average over prompts at most 2% of the decisions have a "
        "total variation distance (tv) above 0.1 (95% sure); otherwise, as L1: log.",
    ),
    (
        clause("topk_agreement", "gte: 0.8", k=10, exceedance=0.02, per="prompt", aggregate="min"),
        "At every stage everywhere, at most 2% of prompts have a smallest share of the k largest logits both sides "
        "agree on (topk_agreement, k = 10) below 0.8 (95% sure); otherwise, as L1: log.",
    ),
    (
        clause("kl", "lte: 0.01", statistic="mean", level="L2"),
        "At every stage everywhere, the mean over prompts of the Kullback–Leibler divergence of inference from "
        "training (kl) is at most 0.01 nats (95% sure); otherwise, as L2: log, guard and freeze.",
    ),
    (
        clause("unmeasurable", "lte: 0", family="numerical", level="L3"),
        "At every stage everywhere, no decision has a logit that is not a number (unmeasurable), certified against "
        "exceedance 0.01 over a sample (95% sure); otherwise, as L3: log, fallback, freeze and page.",
    ),
    (
        clause("latency", "lte: 1.2", family="runtime", statistic="p99", relative_to="baseline"),
        "At every stage everywhere, the p99 of the total latency of a request (latency) is at most 1.2 times the "
        "baseline's (95% sure); otherwise, as L1: log.",
    ),
    (
        clause("failure_rate", "lte: 0.001", family="runtime"),
        "At every stage everywhere, the share of requests that failed (failure_rate) is at most 0.1% (95% sure); "
        "otherwise, as L1: log.",
    ),
    (
        clause("reward_drift", "abs_lte: 0.03"),
        "At every stage everywhere, the difference of expected rewards (reward_drift) is within ±0.03 reward (95% "
        "sure); otherwise, as L1: log.",
    ),
    (
        clause("telemetry_age", "lte: 300 s", family="observability", stages="[full]"),
        "At full everywhere, every reading of the age of the newest telemetry (telemetry_age) is at most 300 s (95% "
        "sure); otherwise, as L1: log.",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), PROMISES)
def test_promises(text: str, expected: str) -> None:
    assert said(text) == expected


def test_actions_by_stage_are_told_by_stage() -> None:
    policy = "escalation: {L1: {default: [log], full: [page, freeze]}}\n"
    text = said(clause("tv", "lte: 0.1", stages="[canary, full]"), policy)
    assert text.endswith("otherwise, as L1: log at canary; page and freeze at full.")


@pytest.mark.parametrize("metric", [*METRICS])
def test_every_metric_has_a_sentence(metric: str) -> None:
    found = METRICS[metric]
    keys: dict[str, object] = {"family": found.family.value}
    if found.shape is Shape.RUNTIME:
        keys["statistic"] = "p90"
    if found.parameter and found.parameter[1]:
        keys[found.parameter[0]] = 7
    text = said(clause(metric, "lte: 1.5" if found.high > 2 else "lte: 0.9", **keys))
    assert metric in text
    assert text.endswith(".")
    assert text.count("; otherwise") == 1


def test_prompts_each_clause_needs() -> None:
    soft = clause("tv", "lte: 0.1", exceedance=0.01, per="prompt", aggregate="max")
    (explained, _) = explain(document(soft, TV).contract).clauses
    assert explained.needs == (
        "at offline_ci: 299 prompts with none beyond, 473 with 1, 628 with 2, 773 with 3 (min_prompts 1)",
        "at shadow, canary and full: 341 prompts with none beyond, 702 with 1, 913 with 2, 1,106 with 3 "
        "(min_prompts 1)",
    )


def test_a_census_and_counterexamples() -> None:
    hard = explain(document(clause("tv", "lte: 0.1"), tail="stages: {offline_ci: {census: true}}\n").contract)
    assert hard.clauses[0].needs[0] == "at offline_ci: a complete count, from one prompt on (min_prompts 1)"
    assert "299 prompts, all within, one beyond violates" in hard.clauses[0].needs[1]


def test_implications_in_words() -> None:
    explained = explain(document(clause("logit_osc", "lte: 0.1"), TV).contract)
    assert explained.implications == ("C implies S: it keeps tv within 0.02499 [B1]",)


@pytest.mark.parametrize("name", sorted(p.name for p in EXAMPLES.glob("*.yaml")))
def test_examples_explain_themselves_in_text_and_json(name: str) -> None:
    contract = read((EXAMPLES / name).read_bytes()).contract
    explained = explain(contract)
    text = "\n".join(lines(explained))
    assert all(clause.id in text for clause in contract.clauses)
    assert ("For post-training" in text) == (contract.rl is not None)
    again = Explanation.model_validate(json.loads(explained.model_dump_json()))
    assert again == explained


def test_nothing_to_say_is_said() -> None:
    text = lines(explain(document(clause("failure_rate", "lte: 5%", family="runtime"), head=HEAD).contract))
    assert "  none: each clause says something of its own" in text
    assert "  nothing follows: no clause bounds logits or distributions" in text
