"""Lint of limits: admission, vacuity, implications, the clip budget."""

from __future__ import annotations

import math

import pytest

from contracts.model import Clause
from tests.contracts.contract_kit import HEAD, RL, TV, clause, codes, document, found


def logit(metric: str, limit: float, **keys: object) -> str:
    return clause(metric, f"lte: {limit}", **{"id": "N", "statistic": "mean", **keys})


@pytest.mark.parametrize(
    ("metric", "edge"),
    [
        ("logit_osc", 4 * math.atanh(0.5)),
        ("logit_linf", 2 * math.atanh(0.5)),
        ("logit_l2_centered", 2 * math.sqrt(2) * math.atanh(0.5)),
        ("logit_l2", 2 * math.sqrt(2) * math.atanh(0.5)),
    ],
)
def test_vacuous_bounds(metric: str, edge: float) -> None:
    assert codes(found(logit(metric, edge * 0.999), TV)) == []
    (vacuous,) = found(logit(metric, edge * 1.001), TV)
    assert (vacuous.code, vacuous.line) == ("vacuous-bound", 9)
    assert "[B9]" in vacuous.message


def test_the_theorys_vacuous_example() -> None:
    """ε₂ ≈ 7.8 says 0.992 (theory.md, Vacuity)."""
    (vacuous,) = found(logit("logit_l2_centered", 7.8), TV)
    assert "0.992" in vacuous.message


def test_bounds_that_cannot_stand_in_for_the_tv_clause() -> None:
    tight = TV.replace("0.1}", "0.001}")
    assert codes(found(logit("logit_osc", 0.1), tight)) == ["vacuous-bound"]
    assert codes(found(logit("logit_osc", 0.03), tight)) == []


def test_temperature_enters_the_bound() -> None:
    assert codes(found(logit("logit_osc", 4), TV)) == ["vacuous-bound"]
    assert codes(found(logit("logit_osc", 4), TV, tail="sampling: {temperature: 2}\n")) == []


def test_the_weighted_certificate_needs_the_oscillation() -> None:
    """[B9]: √(½·s²·φ(b)), with s = .1 and b = 1: √(.005·.71828) = .0599."""
    weighted = logit("logit_weighted", 0.1)
    (alone,) = found(weighted, TV)
    assert (alone.code, alone.severity) == ("weighted-alone", "warning")
    enough = "stages: {offline_ci: {min_prompts: 299}}\n"
    osc = logit("logit_osc", 1, id="O", statistic="mean")
    hard = clause("logit_osc", "lte: 1", id="O", stages="[offline_ci]")
    assert codes(found(weighted, osc, TV)) == ["weighted-alone"]  # a mean bounds no single decision
    assert codes(found(weighted, hard, TV, tail=enough)) == []
    wide = clause("logit_osc", "lte: 9", id="O", stages="[offline_ci]")
    messages = [d.message for d in found(weighted, wide, TV, tail=enough)]
    assert any("clause N implies no more than total variation <= 0.7" in m and "[B9]" in m for m in messages)


@pytest.mark.parametrize(
    ("metric", "limit", "code", "severity"),
    [
        ("tv", "lte: 1.0", "cannot-fail", "warning"),
        ("tv", "gte: 0.0", "cannot-fail", "warning"),
        ("tv", "gte: 0.1", "no-conforming-pair", "error"),
        ("kl", "abs_lte: 0.1", None, ""),
        ("ess", "lte: 0.9", "no-conforming-pair", "error"),
        ("ess", "lte: 1", "cannot-fail", "warning"),
        ("ppl_ratio", "gte: 1.1", "no-conforming-pair", "error"),
        ("ppl_ratio", "lte: 0.9", "no-conforming-pair", "error"),
        ("ppl_ratio", "lte: 1.1", None, ""),
        ("reward_drift", "abs_lte: 1", "cannot-fail", "warning"),
        ("reward_drift", "abs_lte: 0.9", None, ""),
        ("kl", "lte: 5", None, ""),
        ("ess", "gte: 0.9", None, ""),
    ],
)
def test_what_no_pair_keeps_and_none_breaks(metric: str, limit: str, code: str | None, severity: str) -> None:
    keys = {"statistic": "mean"} if metric in ("tv", "kl") else {}
    found_ = found(clause(metric, limit, **keys), TV, tail="reward: {range: [0, 1], grader: g}\n")
    assert [(d.code, d.severity) for d in found_ if d.code != "implied"] == (
        [(code, severity)] if code else []
    )


def test_runtime_limits_that_look_the_wrong_way_or_exclude_each_other() -> None:
    keys = {"family": "runtime", "statistic": "p90"}
    slow = clause("latency", "gte: 2 s", id="A", **keys)
    assert codes(found(slow, TV)) == ["direction"]
    assert codes(found(clause("throughput", "lte: 2 tok/s", **keys), TV)) == ["direction"]
    diagnostics = found(slow, clause("latency", "lte: 1 s", id="B", **keys), TV)
    assert codes(diagnostics) == ["no-conforming-pair", "direction"]
    assert {d.severity for d in diagnostics if d.code == "no-conforming-pair"} == {"error"}
    assert codes(found(slow, clause("latency", "lte: 3 s", id="B", **keys), TV)) == ["direction"]


def test_a_contract_nothing_can_violate() -> None:
    diagnostics = found(TV.replace("0.1}", "1.0}"), watch=False)
    assert [(d.code, d.severity) for d in diagnostics if d.severity == "error"] == [
        ("no-violating-pair", "error")
    ]


def test_implied_clauses() -> None:
    looser = TV.replace("id: S", "id: T").replace("0.1}", "0.2}")
    (implied,) = found(looser, TV)
    assert (implied.code, implied.severity, implied.line) == ("implied", "warning", 9)
    assert "clause T says nothing new: clause S implies tv within 0.1" in implied.message
    chained = found(logit("logit_osc", 0.1), TV)
    assert codes(chained) == ["implied"]
    assert "clause N implies tv within 0.025 [B1]" in chained[0].message


def ratio(limit: float) -> str:
    return clause("abs_log_ratio", f"lte: {limit}", id="N", statistic="mean")


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (0.0455, []),
        (0.0457, [("beyond-budget", "warning")]),
        (0.1823, [("beyond-budget", "warning")]),
        (0.1824, [("beyond-clip", "error")]),
    ],
)
def test_the_clip_budget(limit: float, expected: list[tuple[str, str]]) -> None:
    """(0.2, 0.2): below 0.1823 nats, a quarter of which is 0.0456 (theory.md [R4])."""
    assert [(d.code, d.severity) for d in found(ratio(limit), TV, tail=RL)] == expected


def test_a_budget_nothing_enforces() -> None:
    (unbounded,) = found(TV, tail=RL)
    assert (unbounded.code, unbounded.severity) == ("unbounded-ratio", "warning")
    assert "0.0456 nats" in unbounded.message


def test_a_logit_limit_within_the_budget_enforces_it_too() -> None:
    """[B3]: |log w| <= logit_osc/T."""
    enough = RL + "stages: {offline_ci: {min_prompts: 299}}\n"
    near, far = (clause("logit_osc", f"lte: {x}", stages="[offline_ci]") for x in (0.045, 0.047))
    assert codes(found(near, TV, tail=enough)) == []
    assert codes(found(far, TV, tail=enough)) == ["unbounded-ratio"]


def test_truncated_sampling() -> None:
    assert codes(found(TV, tail="sampling: {top_p: 0.9}\n")) == ["truncated-sampling"]
    agreement = clause("top1_flip", "lte: 0.1", statistic="mean")
    assert codes(found(agreement, tail="sampling: {top_k: 9}\n")) == []


def test_the_kit_writes_clauses() -> None:
    assert isinstance(document(ratio(0.1), head=HEAD).contract.clauses[0], Clause)
