"""Lint: what reads and is unwise, with its place and its number."""

import math
from pathlib import Path

import pytest

import contracts
from contracts.builds import Fingerprint
from contracts.diagnostics import Diagnostic
from contracts.document import read
from contracts.lint import lint

EXAMPLES = Path(contracts.__file__).parent / "examples"

HEAD = """\
apiVersion: kernel-contracts/v1
kind: KernelContract
metadata: {name: small, version: 1.0.0}
pair: {train: {engine: torch}, inference: {engine: torch-serving}}
rl: {clip: {low: 0.2, high: 0.2}, kernel_budget_share: 0.25}
certainty: {alpha: 0.05}
fallback: {build: safe}
guard: {build: safe}
clauses:
"""


def found(*clauses: str, tail: str = "", head: str = HEAD, **builds: Fingerprint) -> list[Diagnostic]:
    text = head + "".join(f"- {clause}\n" for clause in clauses) + tail
    return lint(read(text.encode(), "c.yaml"), builds)


def codes(diagnostics: list[Diagnostic]) -> list[str]:
    return [d.code for d in diagnostics]


TV = "{id: S, family: statistical, metric: tv, limit: {lte: 0.1}, kind: hard, statistic: mean, level: L1}"
SOFT = (
    "{id: P, family: statistical, metric: tv, limit: {lte: 0.1}, kind: soft, exceedance: 0.01, "
    "per: prompt, aggregate: max, level: L1, stages: [offline_ci]}"
)


def soft_at(n: int) -> list[Diagnostic]:
    return found(SOFT, TV, tail=f"stages: {{offline_ci: {{min_prompts: {n}}}}}\n")


def test_the_demo_contract_is_clean() -> None:
    assert lint(read((EXAMPLES / "coder-demo.yaml").read_bytes())) == []


def test_the_full_example_reads_with_warnings_only() -> None:
    diagnostics = lint(read((EXAMPLES / "coder-bf16.yaml").read_bytes()))
    assert {d.severity for d in diagnostics} == {"warning"}
    assert {"vacuous-bound", "beyond-budget", "too-few-prompts"} <= set(codes(diagnostics))


def test_sample_size_is_the_tables() -> None:
    """rho .01 at alpha .05: 299 prompts (theory.md [S2])."""
    assert codes(soft_at(299)) == []
    (short,) = soft_at(298)
    assert (short.code, short.severity, short.line, short.column) == ("too-few-prompts", "warning", 10, 3)
    assert "299 prompts" in short.message
    assert "offline_ci 298" in short.message


def test_shares_and_streams_need_more_than_one_indicator_a_prompt() -> None:
    per_decision = SOFT.replace("per: prompt, aggregate: max, ", "")
    (short,) = found(per_decision, TV, tail="stages: {offline_ci: {min_prompts: 299}}\n")
    assert short.code == "too-few-prompts"


def test_a_census_needs_no_sample_size() -> None:
    assert found(SOFT, TV, tail="stages: {offline_ci: {census: true}}\n") == []


def test_hard_clauses_over_a_sample() -> None:
    hard = (
        "{id: H, family: numerical, metric: unmeasurable, limit: {lte: 0}, kind: hard, level: L1, "
        "stages: [offline_ci]}"
    )
    (short,) = found(hard, TV)
    assert "299 prompts" in short.message
    assert found(hard, TV, tail="stages: {offline_ci: {min_prompts: 299}}\n") == []


def logit(metric: str, limit: float) -> str:
    return (
        f"{{id: N, family: numerical, metric: {metric}, statistic: mean, limit: {{lte: {limit}}}, "
        "kind: hard, level: L1}"
    )


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
    assert (vacuous.code, vacuous.line) == ("vacuous-bound", 10)


def test_bounds_that_cannot_stand_in_for_the_tv_clause() -> None:
    tight = TV.replace("0.1}", "0.001}")
    assert codes(found(logit("logit_osc", 0.1), tight)) == ["vacuous-bound"]
    assert codes(found(logit("logit_osc", 0.03), tight)) == []


def test_temperature_enters_the_bound() -> None:
    assert codes(found(logit("logit_osc", 4), TV)) == ["vacuous-bound"]
    assert codes(found(logit("logit_osc", 4), TV, tail="sampling: {temperature: 2}\n")) == []


def ratio(limit: float) -> str:
    return (
        f"{{id: N, family: numerical, metric: abs_log_ratio, statistic: mean, limit: {{lte: {limit}}}, "
        "kind: hard, level: L1}"
    )


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
    assert [(d.code, d.severity) for d in found(ratio(limit), TV)] == expected


@pytest.mark.parametrize(
    ("metric", "limit", "code"),
    [
        ("tv", "lte: 1.0", "cannot-fail"),
        ("tv", "gte: 0.0", "cannot-fail"),
        ("tv", "gte: 0.1", "direction"),
        ("ess", "lte: 0.9", "direction"),
        ("kl", "lte: 5", None),
        ("ess", "gte: 0.9", None),
    ],
)
def test_limits_that_say_nothing(metric: str, limit: str, code: str | None) -> None:
    statistic = "" if metric == "ess" else "statistic: mean, "
    clause = (
        f"{{id: A, family: statistical, metric: {metric}, {statistic}limit: {{{limit}}}, "
        "kind: hard, level: L1}"
    )
    assert codes(found(clause, TV)) == ([code] if code else [])


def test_telemetry_before_traffic_and_stages_without_clauses() -> None:
    age = "{id: O, family: observability, metric: telemetry_age, limit: {lte: 300 s}, kind: hard, level: L1}"
    assert codes(found(age, TV)) == ["no-traffic"]
    assert codes(found(TV.replace("level: L1", "level: L1, stages: [offline_ci, shadow, canary]"))) == [
        "empty-stage"
    ]


def test_guard_action_without_a_guard() -> None:
    bare = HEAD.replace("guard: {build: safe}\n", "")
    (missing,) = found(TV.replace("L1", "L2"), head=bare)
    assert (missing.code, missing.severity) == ("missing-guard", "warning")


def test_names_nobody_uses_or_knows() -> None:
    tail = "slices: {all: {}, long: {where: {prompt_tokens: {gte: 9}}}}\n"
    assert codes(found(TV, tail=tail)) == ["unused-slice"]
    head = HEAD.replace("train: {engine: torch}", "train: {engin: torch}").replace(
        "{engine: torch-serving}", "{}"
    )
    assert sorted(codes(found(TV, head=head))) == ["empty-predicate", "unknown-attribute"]


def test_falling_back_to_the_candidate() -> None:
    same = found(TV, safe=Fingerprint(engine="torch-serving"))
    assert [(d.code, d.severity, d.line) for d in same] == [
        ("fallback-is-candidate", "error", 7),
        ("guard-is-candidate", "error", 8),
    ]
    assert found(TV, safe=Fingerprint(engine="torch")) == []
