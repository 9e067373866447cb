"""Which clauses imply which, and that no implication is ever false on random pairs of kernels."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.implications import RULES, implications, reachable
from tests.contracts.contract_kit import clause, document, forms, keeps, populations

SOFT = {"exceedance": 0.02}


def pairs(
    *clauses: str, tail: str = "slices: {long: {where: {prompt_tokens: {gte: 9}}}}\n"
) -> list[tuple[str, str, str]]:
    contract = document(*clauses, tail=tail if "long" in "".join(clauses) else "").contract
    return [(one.by, one.of, one.label) for one in implications(contract)]


def one(metric: str, limit: str, id: str, **keys: object) -> str:
    return clause(metric, limit, id=id, **keys)


FOLLOWS = [
    # the same metric
    (one("tv", "lte: 0.1", "A"), one("tv", "lte: 0.2", "B"), ""),
    (one("tv", "lte: 0.1", "A"), one("tv", "lte: 0.1", "B", **SOFT), ""),
    (one("tv", "lte: 0.1", "A"), one("tv", "lte: 0.1", "B", statistic="mean"), ""),
    (one("tv", "lte: 0.1", "A", **SOFT), one("tv", "lte: 0.1", "B", exceedance=0.03), ""),
    (one("tv", "lte: 0.1", "A"), one("tv", "lte: 0.1", "B", slices="[long]"), ""),
    (one("tv", "lte: 0.1", "A"), one("tv", "lte: 0.1", "B", phase="decode"), ""),
    (one("tv", "lte: 0.1", "A"), one("tv", "lte: 0.1", "B", stages="[full]"), ""),
    (one("topk_agreement", "gte: 0.9", "A", k=5), one("topk_agreement", "gte: 0.8", "B", k=5), ""),
    (one("ppl_ratio", "lte: 1.1", "A"), one("ppl_ratio", "lte: 1.2", "B"), ""),
    (one("log_ratio", "abs_lte: 0.1", "A"), one("log_ratio", "lte: 0.1", "B"), ""),
    # by prompt and by decision
    (one("kl", "lte: 1", "A", per="prompt", aggregate="max", **SOFT), one("kl", "lte: 1", "B", **SOFT), ""),
    (
        one("kl", "lte: 1", "A", per="prompt", aggregate="max", **SOFT),
        one("kl", "lte: 1", "B", per="prompt", aggregate="mean", **SOFT),
        "",
    ),
    (one("kl", "lte: 0.001", "A", statistic="mean"), one("kl", "lte: 0.1", "B", exceedance=0.01), ""),
    # the chain
    (one("logit_osc", "lte: 0.1", "A"), one("tv", "lte: 0.025", "B"), "B1"),
    (one("logit_osc", "lte: 0.1", "A"), one("kl", "lte: 0.00126", "B"), "B2"),
    (one("logit_osc", "lte: 0.1", "A"), one("abs_log_ratio", "lte: 0.1", "B"), "B3"),
    (one("logit_l2", "lte: 0.1", "A"), one("tv", "lte: 0.0354", "B"), "Q2, B1"),
    (one("kl", "lte: 0.02", "A"), one("tv", "lte: 0.1", "B"), "B2"),
    (one("kl", "lte: 0.02", "A", statistic="mean"), one("tv", "lte: 0.1", "B", statistic="mean"), "B2"),
    (one("tv", "lte: 0.1", "A", **SOFT), one("tv", "lte: 0.1181", "B", statistic="mean"), "B8"),
    (one("logit_osc", "lte: 0.4", "A", **SOFT), one("tv", "lte: 0.12", "B", statistic="mean"), "B1, B8"),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "label"), FOLLOWS)
def test_what_follows(a: str, b: str, label: str) -> None:
    assert pairs(a, b) == [("A", "B", label)]
    assert pairs(b, a) == [("A", "B", label)] or a.replace("id: A", "") == b.replace("id: B", "")


INDEPENDENT = [
    (one("tv", "lte: 0.1", "A", slices="[long]"), one("tv", "lte: 0.2", "B")),
    (one("tv", "lte: 0.1", "A", **SOFT), one("tv", "lte: 0.1", "B", slices="[long]", **SOFT)),
    (one("tv", "lte: 0.1", "A", phase="prefill"), one("tv", "lte: 0.2", "B")),
    (one("tv", "lte: 0.1", "A", stages="[shadow]"), one("tv", "lte: 0.2", "B")),
    (one("topk_agreement", "gte: 0.9", "A", k=5), one("topk_agreement", "gte: 0.8", "B", k=6)),
    (one("log_ratio", "lte: 0.1", "A"), one("log_ratio", "abs_lte: 0.2", "B")),
    (one("kl", "lte: 1", "A", per="prompt", aggregate="mean", **SOFT), one("kl", "lte: 1", "B", **SOFT)),
    (one("logit_osc", "lte: 0.1", "A", statistic="mean"), one("kl", "lte: 0.00125", "B", statistic="mean")),
    (one("tv", "lte: 0.001", "A"), one("kl", "lte: 1", "B")),
    (one("tv", "lte: 0.001", "A"), one("ece_gap", "lte: 0.5", "B")),
    (one("logit_weighted", "lte: 0.001", "A"), one("tv", "lte: 0.5", "B")),
    (one("kl", "lte: 0.001", "A", **SOFT), one("tv", "lte: 0.5", "B")),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), INDEPENDENT)
def test_what_does_not_follow(a: str, b: str) -> None:
    assert pairs(a, b) == []


def test_quantiles_of_the_same_metric() -> None:
    keys = {"family": "runtime"}
    far, near = (
        one("latency", "lte: 1 s", "A", statistic="p99", **keys),
        one("latency", "lte: 1 s", "B", statistic="p90", **keys),
    )
    assert pairs(far, near) == [("A", "B", "")]
    slow, slower = (
        one("throughput", "gte: 9 tok/s", "A", statistic="p50", **keys),
        one("throughput", "gte: 9 tok/s", "B", statistic="p90", **keys),
    )
    assert pairs(slow, slower) == [("A", "B", "")]


def test_of_two_equal_clauses_the_later_follows() -> None:
    assert pairs(one("tv", "lte: 0.1", "B"), one("tv", "lte: 0.1", "A")) == [("B", "A", "")]


def test_a_cut_support_breaks_the_chain() -> None:
    tail = "sampling: {top_k: 5}\n"
    osc, tv = one("logit_osc", "lte: 0.1", "A"), one("tv", "lte: 0.9", "B")
    assert pairs(osc, tv, tail="") == [("A", "B", "B1")]
    contract = document(osc, tv, tail=tail).contract
    assert implications(contract) == ()


def test_exceedance_that_is_left() -> None:
    contract = document(
        one("tv", "lte: 0.1", "A", **SOFT), one("tv", "lte: 0.1", "B", exceedance=0.03)
    ).contract
    (implied,) = implications(contract)
    assert (implied.limit, implied.exceedance) == (0.1, 0.02)


def drift(z: np.ndarray, d: np.ndarray, t: float) -> dict[str, float]:
    """Every metric of one decision, from its definition in theory.md section 2."""
    p, q = (np.exp(x / t - np.logaddexp.reduce(x / t)) for x in (z + d, z))
    log_w = np.log(p) - np.log(q)
    centred = d - d.mean()
    return {
        "logit_l2": float(np.linalg.norm(d)),
        "logit_l2_centered": float(np.linalg.norm(centred)),
        "logit_linf": float(np.abs(d).max()),
        "logit_osc": float(np.ptp(d)),
        "logit_weighted": math.sqrt(max(float(q @ d**2 - (q @ d) ** 2), 0.0)),
        "tv": 0.5 * float(np.abs(p - q).sum()),
        "kl": float(p @ log_w),
        "kl_reverse": float(-(q @ log_w)),
        "abs_log_ratio": float(np.abs(log_w).max()),
        "log_ratio": float(log_w.max()),
    }


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 50), st.sampled_from([0.5, 1.0, 2.0]), st.floats(-3, 1))
def test_no_rule_is_ever_false(seed: int, vocabulary: int, t: float, size: float) -> None:
    rng = np.random.default_rng(seed)
    z, d = rng.normal(size=(2, vocabulary)) * np.array([[3.0], [10.0**size]])
    measured = drift(z, d, t)
    for rule in RULES:
        bound = rule.bound(measured[rule.source], t)
        assert measured[rule.target] <= bound * (1 + 1e-9) + 1e-12, rule
    for metric in {rule.source for rule in RULES}:
        for target, (bound, _) in reachable(metric, measured[metric], t, means=False).items():
            assert measured[target] <= bound * (1 + 1e-9) + 1e-12, (metric, target)


@pytest.mark.parametrize("rule", [r for r in RULES if r.concave], ids=lambda r: f"{r.source}-{r.target}")
def test_rules_for_means_are_concave(rule: object) -> None:
    xs = [x / 10 for x in range(1, 80)]
    for a, b in zip(xs, xs[2:], strict=False):
        middle = float((Fraction(a) + Fraction(b)) / 2)
        ends = (rule.bound(a, 1.0) + rule.bound(b, 1.0)) / 2  # type: ignore[attr-defined]
        assert rule.bound(middle, 1.0) >= ends - 1e-12  # type: ignore[attr-defined]


def test_no_implication_between_forms_is_ever_false() -> None:
    """Every pair of forms of a clause, on 300 populations."""
    contracts = [document(one.replace("@", "C")).contract for one in forms()]
    clauses = [contract.clauses[0] for contract in contracts]
    kept = [[keeps(clause, population) for population in populations(300)] for clause in clauses]
    seen = 0
    for i, j in itertools.permutations(range(len(clauses)), 2):
        pair = tuple(clauses[n].model_copy(update={"id": name}) for n, name in ((i, "A"), (j, "B")))
        for implied in implications(contracts[0].model_copy(update={"clauses": pair})):
            by, of = (i, j) if implied.by == "A" else (j, i)
            seen += 1
            assert all(b or not a for a, b in zip(kept[by], kept[of], strict=True)), (
                clauses[by],
                clauses[of],
            )
    assert seen > 300
