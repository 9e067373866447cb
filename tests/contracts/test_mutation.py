"""The mutation test of a contract: exact power, and clauses that could never hold or fail."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import contracts
from contracts.correction import holm
from contracts.document import read
from contracts.judge import judge
from contracts.lint import lint
from contracts.metrics import METRICS, Shape
from contracts.model import Contract, Stage
from contracts.mutation import Probe, Report, cells_at, examine, lines, tolerated
from contracts.synthetic import evidence
from tests.contracts.contract_kit import RL, TV, clause, document

EXAMPLES = Path(contracts.__file__).parent / "examples"
TAIL = "reward: {range: [0, 1], grader: g}\n" + RL
SOFT = clause("tv", "lte: 0.1", exceedance=0.05, per="prompt", aggregate="max")


def at_offline(contract: Contract, n: int) -> Probe:
    return next(one for one in examine(contract, n).tested if one.stage is Stage.OFFLINE_CI)


def binomial_tail(k: int, n: int, p: float) -> float:
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


def test_power_is_the_exact_binomial_one() -> None:
    """One clause, two cells (prefill and decode), so the alarm is at .05/2."""
    one = at_offline(document(SOFT).contract, 100)
    first = next(k for k in range(101) if binomial_tail(k, 100, 0.05) < 0.025)
    assert (one.beyond, one.needed, one.conforming) == (first, 59, True)
    assert [p.share for p in one.powers] == [0.1, 0.25]
    for power in one.powers:
        assert power.power == pytest.approx(binomial_tail(first, 100, power.share), rel=1e-9)


def test_power_is_what_the_judge_does() -> None:
    """4000 simulated pairs with exceedance .1 in one cell of two, judged in full."""
    contract = document(SOFT).contract
    one = at_offline(contract, 100)
    counts = np.random.default_rng(7).binomial(100, 0.1, size=4000)
    violated = {
        k: judge(
            contract,
            evidence(contract, Stage.OFFLINE_CI, 100, {"C": int(k)}, contract_digest="d"),
            contract_digest="d",
        ).converged
        is False
        for k in range(one.beyond - 3, one.beyond + 3)  # type: ignore[operator]
    }
    # the judge sees both cells alike, so Holm's first threshold decides for both
    assert violated == {k: k >= one.beyond for k in violated}  # type: ignore[operator]
    assert float((counts >= one.beyond).mean()) == pytest.approx(one.powers[0].power, abs=0.03)  # type: ignore[operator]


def test_more_cells_ask_for_more() -> None:
    alone = at_offline(document(SOFT).contract, 100)
    many = at_offline(document(SOFT, TV, *(TV.replace("id: S", f"id: S{i}") for i in range(9))).contract, 100)
    assert many.beyond > alone.beyond  # type: ignore[operator]
    assert cells_at(document(SOFT, TV).contract, Stage.FULL) == 4


@pytest.mark.parametrize("correction", ["holm", "bonferroni", "e-bh", "none"])
def test_the_correction_is_the_contracts_own(correction: str) -> None:
    text = document(SOFT).text.replace("{alpha: 0.05}", f"{{alpha: 0.05, alarm_correction: {correction}}}")
    contract = read(text.encode()).contract
    one = at_offline(contract, 100)
    for k in (one.beyond - 1, one.beyond):  # type: ignore[operator]
        # evidence with the fault in one phase only
        same = evidence(contract, Stage.OFFLINE_CI, 100, {}, contract_digest="d")
        faulty = evidence(contract, Stage.OFFLINE_CI, 100, {"C": k}, contract_digest="d")
        mixed = same.model_copy(update={"cells": (faulty.cells[0], same.cells[1])})
        assert (judge(contract, mixed, contract_digest="d").converged is False) == (k == one.beyond)


def every_clause() -> list[str]:
    """A sensible clause for every metric of the registry."""
    made = []
    for metric in METRICS.values():
        keys: dict[str, object] = {"family": metric.family.value}
        if metric.shape is Shape.RUNTIME:
            keys["statistic"] = "p90"
        if metric.parameter and metric.parameter[1]:
            keys[metric.parameter[0]] = 7
        if "traffic" in metric.needs:
            keys["stages"] = "[canary, full]"
        limit = "gte: 0.9" if metric.worse == "down" else "lte: 1.2" if metric.ideal == 1.0 else "lte: 0.1"
        made.append(clause(metric.id, limit, **keys))
    return made


@pytest.mark.parametrize("text", every_clause(), ids=[*METRICS])
def test_a_clause_on_every_metric_can_hold_and_can_fail(text: str) -> None:
    contract = document(text, tail=TAIL).contract
    report = examine(contract, 400)
    assert report.sound
    for one in report.tested:
        assert one.conforming
        assert one.beyond is not None
        assert 1 <= one.beyond <= 400
        assert [p.power for p in one.powers] == sorted(p.power for p in one.powers)
        assert one.powers[-1].power > 0.5
        assert 0 < tolerated(contract.clauses[0], contract) <= 1


@pytest.mark.parametrize(
    ("text", "holds", "fails"),
    [
        (clause("tv", "lte: 1"), True, False),
        (clause("tv", "lte: 1", exceedance=0.1), True, False),
        (clause("failure_rate", "lte: 1", family="runtime"), True, False),
        (clause("reward_drift", "abs_lte: 1"), True, False),
        (clause("kl", "gte: 0.5", statistic="mean"), False, True),
        (clause("ppl_ratio", "gte: 1.5"), False, True),
        (clause("tv", "lte: 0.1", exceedance="1.0e-9"), False, True),
    ],
)
def test_what_can_never_hold_or_never_fail(text: str, holds: bool, fails: bool) -> None:
    report = examine(document(text, tail=TAIL).contract, 50)
    assert report.never_hold == (() if holds else ("C",))
    assert report.never_fail == (() if fails else ("C",))
    assert not report.sound
    admits = "no violating pair" if holds else "no conforming pair"
    codes = {d.code for d in lint(document(text, tail=TAIL)) if d.severity == "error"}
    assert codes & {"no-violating-pair", "tolerates-all"} if holds else codes == {"no-conforming-pair"}
    assert lines(report)[-1] == f"C can never {'fail' if holds else 'hold'}: it admits {admits}"


def test_too_few_draws_are_said_to_be() -> None:
    report = examine(document(SOFT).contract)
    assert report.sound
    assert (
        "hold from 59 prompts on; too few to violate it, from 2 prompts on something does" in lines(report)[0]
    )


@pytest.mark.parametrize("name", sorted(p.name for p in EXAMPLES.glob("*.yaml")))
def test_examples_are_sound(name: str) -> None:
    report = examine(read((EXAMPLES / name).read_bytes()).contract)
    assert report.sound
    assert Report.model_validate(json.loads(report.model_dump_json())) == report
    assert all(line for line in lines(report))


def test_no_prompts_are_no_test() -> None:
    with pytest.raises(ValueError, match="at least one prompt, not 0"):
        examine(document(TV).contract, 0)


def test_holm_of_one_among_conforming_ones_is_bonferroni() -> None:
    assert holm([0.01, 1.0, 1.0], 0.05) == [True, False, False]
    assert holm([0.02, 1.0, 1.0], 0.05) == [False, False, False]
