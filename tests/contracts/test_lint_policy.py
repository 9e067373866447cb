"""Lint of stages, actions, observability, names and builds."""

from __future__ import annotations

import pytest

from contracts.builds import Fingerprint
from tests.contracts.contract_kit import HEAD, TV, WATCH, clause, codes, found


def test_telemetry_before_traffic_and_stages_without_clauses() -> None:
    age = WATCH.replace(", stages: [shadow, canary, full]", "").replace("id: W", "id: A")
    (early,) = found(age, TV, watch=False)
    assert (early.code, early.severity) == ("no-traffic", "error")
    assert "[shadow, canary, full]" in early.message
    bare = TV.replace("level: L1", "level: L1, stages: [shadow, canary]")
    assert codes(found(bare)) == ["empty-stage"]


def test_guard_action_without_a_guard_names_the_slices() -> None:
    bare = HEAD.replace("guard: {build: safe}\n", "")
    slices = "slices: {long: {where: {prompt_tokens: {gte: 9}}}, python: {where: {language: python}}}\n"
    both = TV.replace("L1", "L2, slices: [long, python]")
    missing = found(
        both, TV.replace("id: S", "id: T").replace("L1", "L2, slices: [python, all]"), head=bare, tail=slices
    )
    assert [(d.code, d.severity, d.line) for d in missing] == [
        ("missing-guard", "warning", 8),
        ("missing-guard", "warning", 9),
    ]
    assert "slices long, python" in missing[0].message
    assert "slice all" in missing[1].message


@pytest.mark.parametrize(
    ("level", "actions", "code"),
    [
        ("L2", "[log]", "milder-than-level"),
        ("L2", "[log, freeze]", None),
        ("L2", "{default: [freeze], canary: [page]}", "milder-than-level"),
        ("L3", "[log, freeze]", "milder-than-level"),
        ("L3", "[fallback]", None),
    ],
)
def test_actions_milder_than_the_level(level: str, actions: str, code: str | None) -> None:
    tail = f"escalation: {{L1: [log], {level}: {actions}}}\n"
    diagnostics = found(TV.replace("L1", level), tail=tail)
    assert codes(diagnostics) == ([code] if code else [])
    if "canary" in actions:
        assert "at canary:" in diagnostics[0].message


SLICES = "slices: {long: {where: {prompt_tokens: {gte: 9}}}}\n"


@pytest.mark.parametrize(
    ("watch", "expected"),
    [
        ("", ["canary", "full"]),
        ("stages: [canary]", ["full"]),
        ("stages: [canary, full]", []),
        ("stages: [canary, full], slices: [long]", []),
    ],
)
def test_slices_nothing_watches(watch: str, expected: list[str]) -> None:
    drift = TV.replace("L1", "L1, slices: [long]")
    watching = [WATCH.replace("stages: [shadow, canary, full]", watch)] if watch else []
    diagnostics = found(drift, *watching, tail=SLICES, watch=False)
    assert [d.code for d in diagnostics] == ["unobserved-slice"] * len(expected)
    assert all(stage in d.message for d, stage in zip(diagnostics, expected, strict=True))
    assert all("slice long" in d.message and d.severity == "warning" for d in diagnostics)


def test_offline_clauses_need_no_watching() -> None:
    offline = TV.replace("L1", "L1, stages: [offline_ci]")
    assert "unobserved-slice" not in codes(found(offline, watch=False))


def test_names_nobody_uses_or_knows() -> None:
    tail = "slices: {all: {}, long: {where: {prompt_tokens: {gte: 9}}}}\n"
    assert codes(found(TV, tail=tail)) == ["unused-slice"]
    head = HEAD.replace("train: {engine: torch}", "train: {engin: torch}").replace(
        "{engine: torch-serving}", "{}"
    )
    diagnostics = found(TV, head=head)
    assert sorted(codes(diagnostics)) == ["empty-predicate", "unknown-attribute"]
    assert {d.severity for d in diagnostics} == {"warning"}


def test_falling_back_to_the_candidate() -> None:
    same = found(TV, safe=Fingerprint(engine="torch-serving"))
    assert [(d.code, d.severity, d.line) for d in same] == [
        ("fallback-is-candidate", "error", 6),
        ("guard-is-candidate", "error", 7),
    ]
    assert found(TV, safe=Fingerprint(engine="torch")) == []


def test_a_clause_of_its_own_family_only() -> None:
    """Observability alone leaves nothing to watch."""
    coverage = clause(
        "dual_evaluation_coverage", "gte: 0.1", family="observability", stages="[shadow, canary, full]"
    )
    assert "unobserved-slice" not in codes(found(coverage, watch=False))
