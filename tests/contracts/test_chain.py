"""The chain's numbers, against theory.md's formulas by hand."""

from __future__ import annotations

import math

import mpmath
import pytest

from contracts.chain import Step, chain, post_training
from tests.contracts.contract_kit import RL, clause, document

REWARD = "reward: {range: [-1, 1], grader: g}\n"


def steps(*clauses: str, tail: str = REWARD) -> dict[str, Step]:
    return {step.label: step for step in chain(document(*clauses, tail=tail).contract)}


def trained(*clauses: str) -> dict[str, Step]:
    found = list(post_training(document(*clauses, tail=RL).contract))
    return {step.label + step.clause: step for step in found}


def test_from_the_oscillation_of_every_decision() -> None:
    found = steps(clause("logit_osc", "lte: 0.4"), tail=REWARD + "sampling: {temperature: 2}\n")
    h, tv = mpmath.mpf("0.2"), mpmath.tanh(mpmath.mpf("0.05"))
    expected = {
        "B1": tv,
        "B2": h**2 / 8,
        "B3": h,
        "B4": mpmath.cosh(h / 2) ** 2,
        "B5": 2 * tv,
        "B6": min(1 - (1 - tv) ** 256, mpmath.sqrt(256 * h**2 / 8 / 2), 1),
    }
    assert set(found) == set(expected)
    for label, value in expected.items():
        assert found[label].value == pytest.approx(float(value), rel=1e-12), label
        assert f"{float(value):.4g}" in found[label].text


def test_from_the_centred_distance_with_the_linear_form() -> None:
    found = steps(clause("logit_l2_centered", "lte: 0.5"))
    assert found["B1"].value == pytest.approx(math.tanh(0.5 / (2 * math.sqrt(2))))
    assert f"{0.5 / (2 * math.sqrt(2)):.4g} by its linear form" in found["B1"].text
    assert found["B3"].value == pytest.approx(math.sqrt(2) * 0.5)


def test_soft_clauses_pay_for_their_exceedance() -> None:
    found = steps(clause("logit_osc", "lte: 0.4", exceedance=0.02))
    assert found["B8"].value == pytest.approx(2 * (0.98 * math.tanh(0.1) + 0.02))
    assert "B5" not in found
    assert "B6" not in found


def test_means_bound_no_single_decision() -> None:
    found = steps(clause("logit_osc", "lte: 0.4", statistic="mean"))
    assert set(found) == {"B1", "B5"}
    assert set(steps(clause("tv", "lte: 0.1", per="prompt", aggregate="min", exceedance=0.1))) == set()


def test_the_weighted_certificate() -> None:
    """[B9]: KL(q‖p) <= s²·(e − 2) at b = 1."""
    found = steps(clause("logit_weighted", "lte: 0.1"), clause("logit_osc", "lte: 1", id="O"))
    assert found["B9"].value == pytest.approx(math.sqrt(0.01 * (math.e - 2) / 2))
    (alone,) = chain(document(clause("logit_weighted", "lte: 0.1"), tail=REWARD).contract)
    assert "bounds nothing" in alone.text


def test_distributions_rewards_and_calibration() -> None:
    found = steps(
        clause("kl", "lte: 0.02"),
        clause("reward_drift", "abs_lte: 0.1", id="R"),
        clause("ece_gap", "lte: 0.1", id="E"),
    )
    assert found["B2"].value == pytest.approx(0.1)
    assert found["B5"].value == pytest.approx(0.2)
    assert found["B7"].value == pytest.approx(2 * math.sqrt(2) * 0.1 / 2)
    assert "measured" in found["Q11"].text


def test_a_cut_support_has_no_chain() -> None:
    (only,) = chain(document(clause("kl", "lte: 0.02"), tail="sampling: {top_k: 5}\n").contract)
    assert only.label == "S8"


def test_post_training() -> None:
    found = trained(
        clause("abs_log_ratio", "lte: 0.1", id="W"), clause("logit_osc", "lte: 0.1", id="O"),
        clause("tv", "lte: 0.1", id="T", exceedance=0.02),
    )  # fmt: skip
    room = min(-math.log(0.8), math.log(1.2))
    assert found["R4"].value == pytest.approx(room)
    assert found["R4W"].value == pytest.approx(0.1 / room)
    assert "beyond the budget of 25%" in found["R4W"].text
    assert found["R2W"].value == pytest.approx(math.expm1(0.1))
    assert found["R3W"].value == pytest.approx(math.expm1(0.1))
    assert found["R2O"].value == pytest.approx(2 * math.tanh(0.025))
    assert found["R5O"].value == pytest.approx(math.cosh(0.05) ** (-512))
    assert found["R1T"].value == pytest.approx(2 * (0.98 * 0.1 + 0.02))


def test_no_rl_section_no_post_training() -> None:
    assert list(post_training(document(clause("tv", "lte: 0.1")).contract)) == []


def test_infinite_bounds_are_no_numbers() -> None:
    found = steps(clause("logit_osc", "lte: 1000"))
    assert found["B4"].value is None
    assert "beyond float64" in found["B3"].text
