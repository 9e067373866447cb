"""What the parts of a contract mean together, each mistake at its line and column."""

import pytest

from tests.contracts.document_kit import BASE, changed, places


def clause(**keys: str) -> str:
    """BASE with its only clause's lines replaced by `keys`, in order, from line 14 on."""
    lines = {
        "id": "X",
        "family": "statistical",
        "metric": "tv",
        "limit": "{lte: 0.1}",
        "kind": "hard",
        "level": "L1",
    }
    lines |= keys
    body = "\n    ".join(f"{key}: {value}" for key, value in lines.items())
    head, rest = BASE.split("  - id: S1")
    return f"{head}  - {body}\nstages:{rest.split('stages:')[1]}"


MEANING = [
    ({"kind": "soft"}, [(18, 11, "missing-exceedance")]),
    ({"exceedance": "0.1"}, [(20, 5, "exceedance")]),
    ({"metric": "tvv"}, [(16, 13, "unknown-metric")]),
    ({"slices": "[all, lon]"}, [(20, 19, "unknown-slice")]),
    ({"slices": "[all, all]"}, [(20, 19, "duplicate-item")]),
    ({"stages": "[full, full]"}, [(20, 20, "duplicate-item")]),
    ({"family": "numerical"}, [(15, 13, "family")]),
    ({"statistic": "p99"}, [(20, 16, "statistic")]),
    ({"kind": "soft", "exceedance": "0.1", "statistic": "mean"}, [(21, 16, "statistic")]),
    ({"statistic": "mean", "per": "prompt", "aggregate": "max"}, [(20, 5, "statistic")]),
    ({"metric": "failure_rate", "family": "runtime", "statistic": "mean"}, [(20, 16, "statistic")]),
    ({"metric": "latency", "family": "runtime"}, [(16, 13, "missing-statistic")]),
    ({"metric": "topk_agreement"}, [(16, 13, "missing-k")]),
    ({"k": "10"}, [(20, 5, "k")]),
    ({"bins": "10"}, [(20, 5, "bins")]),
    ({"binning": "equal_mass"}, [(20, 5, "bins")]),
    ({"relative_to": "baseline"}, [(20, 5, "relative-to")]),
    ({"per": "prompt"}, [(20, 10, "missing-aggregate")]),
    ({"aggregate": "max"}, [(20, 5, "aggregate")]),
    ({"metric": "ece_gap", "per": "prompt", "aggregate": "max"}, [(20, 10, "per")]),
    ({"metric": "ece_gap", "kind": "soft", "exceedance": "0.1"}, [(18, 11, "soft")]),
    ({"metric": "failure_rate", "family": "runtime", "phase": "decode"}, [(20, 5, "phase")]),
    ({"metric": "kl", "limit": "{lte: 300 s}"}, [(17, 18, "unit")]),
    ({"metric": "telemetry_age", "family": "observability", "limit": "{lte: 5%}"}, [(17, 18, "unit")]),
    (
        {
            "metric": "latency",
            "family": "runtime",
            "statistic": "p90",
            "relative_to": "baseline",
            "limit": "{lte: 2 s}",
        },
        [(17, 18, "unit")],
    ),
    ({"limit": "{lte: -0.1}"}, [(17, 18, "impossible-limit")]),
    ({"limit": "{gte: 1.1}"}, [(17, 18, "impossible-limit")]),
    ({"metric": "clip_fraction_at_zero", "family": "numerical"}, [(16, 13, "missing-rl")]),
    ({"metric": "reward_drift", "limit": "{abs_lte: 0.1}"}, [(16, 13, "missing-reward")]),
    ({"level": "L3"}, [(19, 12, "missing-fallback")]),
]


@pytest.mark.parametrize(("keys", "expected"), MEANING)
def test_clauses_that_could_never_work(keys: dict[str, str], expected: list[tuple[int, int, str]]) -> None:
    assert places(clause(**keys)) == expected


WHOLE = [
    ("prompt_tokens: {gte: 512}", "prompt_token: {gte: 512}", [(12, 7, "unknown-attribute")]),
    ("prompt_tokens: {gte: 512}", "prompt_tokens: {contains: x}", [(12, 23, "operator")]),
    ("prompt_tokens: {gte: 512}", "prompt_tokens: many", [(12, 22, "never-matches")]),
    ("prompt_tokens: {gte: 512}", "prompt_tokens: {gt: 4, lt: 5}", [(12, 22, "never-matches")]),
    ("prompt_tokens: {gte: 512}", "language: {in: [python, 3]}", [(12, 22, "never-matches")]),
    ("prompt_tokens: {gte: 512}", "tags: safety", [(12, 13, "operator")]),
    ("  long:\n", "  all:\n", [(12, 7, "slice-all"), (20, 19, "unknown-slice")]),
    ("{deadline: 10m}", "{deadline: 10m, min_duration: 600 s}", [(23, 22, "deadline")]),
    ("stages:\n", "escalation: {L2: [log]}\nstages:\n", [(21, 12, "level-without-action")]),
    ("stages:\n", "escalation: {L1: []}\nstages:\n", [(22, 18, "level-without-action")]),
    ("stages:\n", "escalation: {L1: [log, log]}\nstages:\n", [(22, 24, "duplicate-item")]),
    (
        "stages:\n",
        "escalation: {L1: {default: [log], full: [page, page]}}\nstages:\n",
        [(22, 48, "duplicate-item")],
    ),
    ("stages:\n", "escalation: {L1: {full: [log]}}\nstages:\n", [(22, 18, "level-without-action")]),
    (
        "stages:\n",
        "escalation: {L1: {default: [log], canary: [fallback]}}\nstages:\n",
        [(21, 12, "missing-fallback")],
    ),
]


@pytest.mark.parametrize(("old", "new", "expected"), WHOLE)
def test_parts_that_do_not_fit(old: str, new: str, expected: list[tuple[int, int, str]]) -> None:
    found = places(changed(old, new))
    assert found == expected


def test_duplicate_clause_id() -> None:
    copy = BASE[BASE.index("  - id") : BASE.index("stages:")]
    assert places(BASE.replace("stages:", copy + "stages:")) == [(22, 9, "duplicate-id")]
