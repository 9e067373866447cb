"""Lint of sample sizes, against theory.md's exact numbers [S2], [S3]."""

from __future__ import annotations

import pytest

from contracts.diagnostics import Diagnostic
from tests.contracts.contract_kit import TV, clause, codes, found

SOFT = clause("tv", "lte: 0.1", id="P", exceedance=0.01, per="prompt", aggregate="max", stages="[offline_ci]")


def soft_at(n: int, text: str = SOFT) -> list[Diagnostic]:
    return found(text, TV, tail=f"stages: {{offline_ci: {{min_prompts: {n}}}}}\n")


def test_sample_sizes_are_the_tables() -> None:
    """rho .01 at alpha .05: 299, 473, 628, 773 prompts with 0, 1, 2, 3 exceedances (theory.md [S2])."""
    (short,) = soft_at(298)
    assert (short.code, short.severity, short.line, short.column) == ("too-few-prompts", "warning", 9, 3)
    for part in ("offline_ci 298", "299 prompts", "473 with 1", "628 with 2", "773 with 3"):
        assert part in short.message


@pytest.mark.parametrize("n", [299, 300, 472])
def test_certified_only_without_any_exceedance(n: int) -> None:
    (only,) = soft_at(n)
    assert (only.code, only.severity) == ("no-exceedance-allowed", "warning")
    assert "only with no exceedance at all" in only.message
    assert "473 with 1" in only.message


def test_enough_prompts() -> None:
    assert soft_at(473) == []


@pytest.mark.parametrize(
    ("rho", "counts"), [(0.02, (149, 236, 313, 386)), (0.001, (2995,)), (0.05, (59, 93, 124, 153))]
)
def test_other_exceedances(rho: float, counts: tuple[int, ...]) -> None:
    (short,) = soft_at(10, SOFT.replace("exceedance: 0.01", f"exceedance: {rho}"))
    assert f"needs {counts[0]} prompts" in short.message
    for k, n in enumerate(counts[1:], 1):
        assert f"{n} with {k} beyond it" in short.message


def test_shares_and_streams_need_more_than_one_indicator_a_prompt() -> None:
    """341, 702, 913, 1106 (theory.md [S3])."""
    for text in (SOFT.replace("per: prompt, aggregate: max, ", ""), SOFT.replace("offline_ci", "shadow")):
        (short,) = found(text, TV, tail="stages: {offline_ci: {min_prompts: 299}}\n")
        for part in ("341 prompts", "702 with 1", "913 with 2", "1106 with 3"):
            assert part in short.message


def test_a_census_needs_no_sample_size() -> None:
    assert found(SOFT, TV, tail="stages: {offline_ci: {census: true}}\n") == []


def test_hard_clauses_over_a_sample_allow_no_exceedance_anyway() -> None:
    hard = clause("unmeasurable", "lte: 0", family="numerical", stages="[offline_ci]")
    (short,) = found(hard, TV)
    assert "hard_exceedance 0.01 at alpha 0.05 needs 299 prompts" in short.message
    assert "with 1" not in short.message
    assert found(hard, TV, tail="stages: {offline_ci: {min_prompts: 299}}\n") == []


def test_shares_of_requests() -> None:
    failures = clause("failure_rate", "lte: 0.01", family="runtime", stages="[offline_ci]")
    (short,) = found(failures, TV)
    assert "failure_rate 0.01 at alpha 0.05 needs 299 requests" in short.message


def test_stages_that_need_the_same_are_told_together() -> None:
    (short,) = found(SOFT.replace("[offline_ci]", "[shadow, full]"), TV)
    assert "(shadow 1, full 1)" in short.message


@pytest.mark.parametrize(("rho", "n", "code"), [(0.99, 100, "tolerates-all"), (0.99, 299, None)])
def test_failure_tolerance_of_all_measurements(rho: float, n: int, code: str | None) -> None:
    """100 of 100 beyond are compatible with exceedance .99 (.99^100 = .37); 299 of 299 are not (.0495)."""
    diagnostics = soft_at(n, SOFT.replace("exceedance: 0.01", f"exceedance: {rho}"))
    assert codes(diagnostics) == ([code] if code else [])
    assert all(d.severity == "error" for d in diagnostics)


def test_a_failure_rate_of_one() -> None:
    (only,) = found(clause("failure_rate", "lte: 100%", family="runtime"), TV)
    assert (only.code, only.severity) == ("tolerates-all", "error")


def test_out_of_reach() -> None:
    (short,) = soft_at(10**6, SOFT.replace("0.01", "1.0e-9"))
    assert "needs 2995732273 prompts" in short.message
    assert "too many with 1" in short.message
    (stream,) = soft_at(1, SOFT.replace("0.01", "1.0e-9").replace("offline_ci", "shadow"))
    assert (stream.code, stream.severity) == ("no-conforming-pair", "error")
    assert "more prompts than anyone has" in stream.message
