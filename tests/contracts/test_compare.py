"""Two versions compared: every kind of change, and that what is called tightened really is."""

from __future__ import annotations

import itertools
import json
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import contracts
from contracts.compare import Comparison, compare
from contracts.document import read
from contracts.model import Contract, Limit
from tests.contracts.contract_kit import RL, clause, document, forms, keeps, populations

EXAMPLES = Path(contracts.__file__).parent / "examples"
REST = "slices: {long: {where: {prompt_tokens: {gte: 9}}}}\nreward: {range: [0, 1], grader: g}\n" + RL


def contract(text: str, tail: str = REST, *more: str) -> Contract:
    return document(text, *more, tail=tail).contract


BASE: dict[str, object] = {"exceedance": 0.02}


def soft(limit: str = "lte: 0.1", **keys: object) -> str:
    return clause("tv", limit, **(BASE | keys))


CLAUSES = [
    (soft(), soft("lte: 0.05"), "tightened", "limit lte 0.1 → lte 0.05"),
    (soft(), soft(exceedance=0.01), "tightened", "exceedance 0.02 → 0.01"),
    (soft(), soft(slices="[all, long]"), "tightened", "slices with long"),
    (soft(phase="decode"), soft(), "tightened", "phase decode → both"),
    (soft(stages="[full]"), soft(), "tightened", "stages with canary, offline_ci, shadow"),
    (soft(), soft(level="L2"), "tightened", "level L1 → L2"),
    (soft(), clause("tv", "lte: 0.1"), "tightened", "soft exceedance 0.02 per decision → hard per decision"),
    (
        soft(),
        soft(per="prompt", aggregate="max"),
        "tightened",
        "soft exceedance 0.02 per decision → soft exceedance 0.02 per prompt (max)",
    ),
    (soft(per="prompt", aggregate="mean"), soft(per="prompt", aggregate="max"), "tightened", None),
    (soft(per="prompt", aggregate="min"), soft(), "tightened", None),
    (clause("tv", "lte: 1", statistic="mean"), clause("tv", "lte: 1"), "tightened", "statistic mean → none"),
    (clause("log_ratio", "lte: 0.1"), clause("log_ratio", "abs_lte: 0.1"), "tightened", None),
    (
        clause("topk_agreement", "gte: 0.8", k=5),
        clause("topk_agreement", "gte: 0.9", k=5),
        "tightened",
        "limit gte 0.8 → gte 0.9",
    ),
    (
        clause("latency", "lte: 1 s", family="runtime", statistic="p90"),
        clause("latency", "lte: 1 s", family="runtime", statistic="p99"),
        "tightened",
        "statistic p90 → p99",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "direction", "detail"), CLAUSES)
def test_clauses_tightened_and_loosened(old: str, new: str, direction: str, detail: str | None) -> None:
    forth, back = compare(contract(old), contract(new)), compare(contract(new), contract(old))
    (there,), (here,) = forth.changes, back.changes
    assert (there.part, there.direction, forth.loosened) == ("clause C", direction, False)
    assert (here.direction, back.loosened) == ("loosened", True)
    assert detail is None or there.details == (detail,)


MIXED = [
    (soft(), soft("lte: 0.05", exceedance=0.03)),
    (soft(slices="[all]"), soft(slices="[long]")),
    (soft(), clause("kl", "lte: 0.1", exceedance=0.02)),
    (soft(), soft(per="prompt", aggregate="mean")),
    (soft(phase="decode"), soft(phase="prefill")),
    (clause("topk_agreement", "gte: 0.8", k=5), clause("topk_agreement", "gte: 0.8", k=6)),
    (clause("log_ratio", "lte: 0.1"), clause("log_ratio", "abs_lte: 0.2")),
]


@pytest.mark.parametrize(("old", "new"), MIXED)
def test_clauses_that_cannot_be_compared(old: str, new: str) -> None:
    for a, b in ((old, new), (new, old)):
        found = compare(contract(a), contract(b))
        assert [change.direction for change in found.changes] == ["incomparable"]
        assert found.loosened


def test_clauses_added_and_removed() -> None:
    more = clause("kl", "lte: 0.1", id="K")
    added = compare(contract(soft()), contract(soft(), REST, more))
    removed = compare(contract(soft(), REST, more), contract(soft()))
    assert [(str(c.direction), c.part, added.loosened) for c in added.changes] == [
        ("added", "clause K", False)
    ]
    assert [(str(c.direction), c.part, removed.loosened) for c in removed.changes] == [
        ("removed", "clause K", True)
    ]


PARTS = [
    ("certainty: {alpha: 0.05}", "certainty: {alpha: 0.01}", "certainty", "tightened"),
    ("certainty: {alpha: 0.05}", "certainty: {hard_exceedance: 0.001}", "certainty", "tightened"),
    ("certainty: {alpha: 0.05}", "certainty: {alarm_correction: none}", "certainty", "tightened"),
    ("certainty: {alpha: 0.05}", "certainty: {alarm_correction: bonferroni}", "certainty", "loosened"),
    ("certainty: {alpha: 0.05}", "certainty: {alarm_correction: e-bh}", "certainty", "incomparable"),
    ("fallback: {build: safe}", "fallback: {build: other}", "fallback", "incomparable"),
    ("guard: {build: safe}", "guard: {build: safe, return_after: 30m}", "guard", "tightened"),
    ("guard: {build: safe}\n", "", "guard", "removed"),
    ("train: {engine: torch}", "train: {engine: torch, dtype: float32}", "pair.train", "tightened"),
    ("train: {engine: torch}", "train: {engine: jax}", "pair.train", "incomparable"),
    ("gte: 9", "gte: 8", "slice long", "incomparable"),
    ("range: [0, 1]", "range: [0, 2]", "reward", "incomparable"),
    ("kernel_budget_share: 0.25", "kernel_budget_share: 0.2", "rl", "tightened"),
    ("rl:", "sampling: {temperature: 0.7}\nrl:", "sampling", "incomparable"),
    (RL, "", "rl", "removed"),
    (
        "rl:",
        "escalation: {L1: [log], L2: [freeze], L3: [log, fallback, freeze, page]}\nrl:",
        "escalation L2",
        "loosened",
    ),
    (
        "rl:",
        "escalation: {L1: {default: [log], full: [log, page]}, L2: [log, guard, freeze], "
        "L3: [log, fallback, freeze, page]}\nrl:",
        "escalation L1",
        "tightened",
    ),
    ("rl:", "stages: {shadow: {min_prompts: 9}}\nrl:", "stage shadow", "tightened"),
    ("rl:", "stages: {shadow: {deadline: 9h}}\nrl:", "stage shadow", "tightened"),
    ("rl:", "stages: {shadow: {mirror: 0.5}}\nrl:", "stage shadow", "loosened"),
    ("rl:", "stages: {offline_ci: {census: true}}\nrl:", "stage offline_ci", "incomparable"),
    ("rl:", "stages: {canary: {steps: [0.25]}}\nrl:", "stage canary", "loosened"),
    ("rl:", "stages: {canary: {steps: [0.001, 0.01, 0.05, 0.25]}}\nrl:", "stage canary", "tightened"),
    ("rl:", "stages: {canary: {approval: required}}\nrl:", "stage canary", "tightened"),
    ("rl:", "stages: {full: {approval: none}}\nrl:", "stage full", "loosened"),
    ("rl:", "stages: {full: {audit_rate: 0.5, approval_ttl: 48h}}\nrl:", "stage full", "incomparable"),
]


@pytest.mark.parametrize(("old", "new", "part", "direction"), PARTS)
def test_every_other_part(old: str, new: str, part: str, direction: str) -> None:
    one, two = soft(slices="[all, long]"), soft(id="D", level="L2")
    text = document(one, two, tail=REST).text
    assert text.count(old) == 1
    before, after = read(text.encode()).contract, read(text.replace(old, new).encode()).contract
    (change,) = compare(before, after).changes
    assert (change.part, change.direction) == (part, direction)
    reverse = {"tightened": "loosened", "loosened": "tightened", "removed": "added"}
    (back,) = compare(after, before).changes
    assert back.direction == reverse.get(direction, direction)


@pytest.mark.parametrize("name", sorted(p.name for p in EXAMPLES.glob("*.yaml")))
def test_equal_meaning_is_no_change(name: str) -> None:
    raw = (EXAMPLES / name).read_bytes()
    told = raw.replace(b"owner: serving-team", b"owner: another-team")
    found = compare(read(raw).contract, read(told).contract)
    assert (found.changes, found.loosened) == ((), False)


def test_written_out_defaults_are_no_change() -> None:
    gap, told = clause("ece_gap", "lte: 0.1"), clause("ece_gap", "lte: 0.1", bins=15)
    assert compare(contract(gap), contract(told)).changes == ()
    assert (
        compare(contract(gap), contract(clause("ece_gap", "lte: 0.1", binning="equal_width"))).changes == ()
    )
    assert compare(contract(gap), contract(clause("ece_gap", "lte: 0.1", binning="equal_mass"))).changes != ()
    assert compare(contract(clause("tv", "lte: 0.1")), contract(clause("tv", "abs_lte: 0.1"))).changes == ()


def test_json_and_words() -> None:
    found = compare(contract(soft()), contract(soft("lte: 0.2")))
    assert Comparison.model_validate(json.loads(found.model_dump_json())) == found
    assert str(found.changes[0]) == "loosened clause C: limit lte 0.1 → lte 0.2"
    assert (found.old, found.new) == ("small@1.0.0", "small@1.0.0")


LIMITS = [
    Limit.model_validate({comparator: value})
    for comparator, value in product(("lte", "gte", "abs_lte"), (0.0, 0.1, 0.2))
]


@given(st.sampled_from(LIMITS), st.sampled_from(LIMITS), st.floats(-1, 1))
def test_a_tightened_limit_admits_nothing_new(old: Limit, new: Limit, value: float) -> None:
    a, b = (clause("log_ratio", f"{one.comparator.value}: {one.value}") for one in (old, new))
    for change in compare(contract(a), contract(b)).changes:
        if change.direction == "tightened":
            assert new.exceeded_by(value) or not old.exceeded_by(value)
        elif change.direction == "loosened":
            assert old.exceeded_by(value) or not new.exceeded_by(value)


def test_tightened_never_admits_what_was_refused() -> None:
    """Every pair of forms of a clause, on 300 populations."""
    made = [contract(one.replace("@", "C")) for one in forms()]
    kept = [[keeps(one.clauses[0], population) for population in populations(300)] for one in made]
    seen = 0
    for (old, before), (new, after) in itertools.permutations(zip(made, kept, strict=True), 2):
        for change in compare(old, new).changes:
            inner, outer = {"tightened": (after, before), "loosened": (before, after)}.get(
                change.direction, ([], [])
            )
            seen += bool(inner)
            assert all(b or not a for a, b in zip(inner, outer, strict=True)), change
    assert seen > 300
