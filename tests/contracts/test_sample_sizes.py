"""Sample sizes against theory.md's numbers, and against the judge's own verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest

import contracts
from contracts.document import read
from contracts.finding import Setting
from contracts.judge import find
from contracts.model import Clause, Contract, Stage
from contracts.reductions import phases_of
from contracts.sample_sizes import can_alarm, draws_needed, needs, share_limit
from contracts.synthetic import cell
from tests.contracts.contract_kit import TV, WATCH, clause, document

EXAMPLES = Path(contracts.__file__).parent / "examples"
REWARD = "reward: {range: [0, 1], grader: g}\n"


def first(text: str, tail: str = REWARD) -> tuple[Clause, Contract]:
    contract = document(text, tail=tail).contract
    return contract.clauses[0], contract


@pytest.mark.parametrize(
    ("rho", "expected"), [(0.01, (299, 473, 628, 773)), (0.02, (149, 236, 313, 386)), (0.001, (2995,))]
)
def test_fixed_samples(rho: float, expected: tuple[int, ...]) -> None:
    soft, contract = first(clause("tv", "lte: 0.1", exceedance=rho, per="prompt", aggregate="max"))
    for k, n in enumerate(expected):
        assert draws_needed(soft, contract, Stage.OFFLINE_CI, k) == n


@pytest.mark.parametrize(
    ("rho", "expected"), [(0.1, (33, 68, 88, 107)), (0.05, (67, 138, 180, 218)), (0.02, (170, 350, 455, 551))]
)
def test_streams_and_shares(rho: float, expected: tuple[int, ...]) -> None:
    soft, contract = first(clause("tv", "lte: 0.1", exceedance=rho))
    for stage in Stage:
        assert tuple(draws_needed(soft, contract, stage, k) for k in range(4)) == expected


EVERY = [
    clause("tv", "lte: 0.1", exceedance=0.1),
    clause("tv", "lte: 0.1", exceedance=0.1, per="prompt", aggregate="mean"),
    clause("tv", "lte: 0.1"),
    clause("tv", "lte: 0.2", statistic="mean"),
    clause("topk_agreement", "gte: 0.8", k=5, statistic="mean"),
    clause("kl", "lte: 0.2", statistic="mean"),
    clause("ppl_ratio", "lte: 1.1"),
    clause("ess", "gte: 0.9"),
    clause("ece_gap", "lte: 0.1"),
    clause("flip_rate", "lte: 0.1"),
    clause("reward_drift", "abs_lte: 0.2"),
    clause("failure_rate", "lte: 0.1", family="runtime"),
    clause("failure_rate", "lte: 0", family="runtime"),
    clause("latency", "lte: 1 s", family="runtime", statistic="p90"),
    clause("latency", "lte: 1.2", family="runtime", statistic="p90", relative_to="baseline"),
    clause("throughput", "gte: 9 tok/s", family="runtime", statistic="p50"),
    clause("peak_memory", "lte: 2 GiB", family="runtime"),
    clause("dual_evaluation_coverage", "gte: 0.1", family="observability"),
    WATCH,
]


@pytest.mark.parametrize("text", EVERY)
@pytest.mark.parametrize("stage", [Stage.OFFLINE_CI, Stage.SHADOW])
def test_the_judge_agrees_to_the_draw(text: str, stage: Stage) -> None:
    one, contract = first(text)
    n = draws_needed(one, contract, stage)
    assert n is not None
    setting = Setting.of(contract, stage)

    def holds(draws: int) -> bool:
        made = cell(one, contract, draws, 0, "all", phases_of(one)[0])
        return find(one, made, setting, contract.reward).holds

    assert holds(n)
    assert n == 1 or not holds(n - 1)


def test_needs_by_stage() -> None:
    soft, contract = first(
        clause("tv", "lte: 0.1", exceedance=0.05, per="prompt", aggregate="max", stages="[offline_ci, full]"),
        "stages: {full: {min_prompts: 67}}\n",
    )
    offline, full = needs(soft, contract)
    assert (offline.stage, offline.counts, offline.minimum) == ("offline_ci", (59, 93, 124, 153), 1)
    assert (full.stage, full.counts, full.minimum) == ("full", (67, 138, 180, 218), 67)
    assert (offline.noun, offline.exact) == ("prompt", True)


def test_one_counterexample_leaves_one_number() -> None:
    hard, contract = first(clause("tv", "lte: 0.1"))
    assert [need.counts for need in needs(hard, contract)] == [(299,)] * 4


def test_a_census_is_complete_from_the_first_prompt() -> None:
    hard, contract = first(clause("tv", "lte: 0.1"), "stages: {offline_ci: {census: true}}\n")
    assert draws_needed(hard, contract, Stage.OFFLINE_CI) == 1
    assert draws_needed(hard, contract, Stage.SHADOW) == 299


def test_shares() -> None:
    assert share_limit(*first(clause("tv", "lte: 0.1"))) == 0.01
    assert share_limit(*first(TV)) == 0.1
    assert share_limit(*first(clause("topk_agreement", "gte: 0.8", k=5, statistic="mean"))) is None
    assert share_limit(*first(clause("kl", "lte: 0.1", statistic="mean"))) is None


@pytest.mark.parametrize(
    ("rho", "n", "able"), [(0.9, 20, False), (0.9, 29, True), (0.05, 2, True), (0.05, 1, False)]
)
def test_when_all_beyond_is_an_alarm(rho: float, n: int, able: bool) -> None:
    """.9^29 = .0471 < .05 <= .9^28."""
    soft, contract = first(
        clause("tv", "lte: 0.1", exceedance=rho, per="prompt", aggregate="max"),
        f"stages: {{offline_ci: {{min_prompts: {n}}}}}\n",
    )
    assert can_alarm(soft, contract, Stage.OFFLINE_CI) is able


@pytest.mark.parametrize("name", ["coder-bf16.yaml", "coder-demo.yaml"])
def test_examples_have_a_number_for_everything(name: str) -> None:
    contract = read((EXAMPLES / name).read_bytes()).contract
    assert all(n is not None for c in contract.clauses for need in needs(c, contract) for n in need.counts)
