"""The language reference names every key, attribute, unit, metric, action and diagnostic code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from contracts import codes
from contracts.builds import FINGERPRINT_FIELDS
from contracts.metrics import METRICS
from contracts.model import (
    Action,
    BuildRef,
    Certainty,
    Clause,
    Clip,
    Condition,
    Contract,
    LevelActions,
    Limit,
    Metadata,
    OfflineCi,
    Pair,
    Reward,
    RlBudget,
    Sampling,
    Slice,
    Stage,
    StagePlans,
    Statistic,
)
from contracts.slices import ATTRIBUTES
from contracts.units import DURATION_UNITS, PLAIN_UNITS, SIZE_UNITS

DOCS = Path(__file__).parent.parent / "docs"
TEXT = (DOCS / "contract-language.md").read_text(encoding="utf-8")
WORDS = {
    word for quoted in re.findall(r"`([^`\n]+)`", TEXT) for word in re.split(r"[\s:,{}\[\]]+", quoted) if word
}
STAGE_PLANS = [field.annotation for field in StagePlans.model_fields.values()]


def sections() -> dict[str, str]:
    found = re.split(r"^#+ (.*)$", TEXT, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def keys(*models: type[BaseModel] | None) -> list[str]:
    return [info.alias or name for model in models if model for name, info in model.model_fields.items()]


SECTIONS = [
    ("The document", keys(Contract)),
    ("`metadata`", keys(Metadata)),
    ("`pair`", [*keys(Pair), *FINGERPRINT_FIELDS]),
    ("`sampling`", keys(Sampling)),
    ("`slices`", [*keys(Slice, Condition), *ATTRIBUTES]),
    ("`clauses`", [*keys(Clause, Limit), *Stage, *Statistic]),
    ("`reward`", keys(Reward)),
    ("`rl`", keys(RlBudget, Clip)),
    ("`certainty`", [*keys(Certainty), "holm", "bonferroni", "e-bh", "none"]),
    ("`guard`, `fallback`", keys(BuildRef)),
    ("`stages`", [*keys(StagePlans, *STAGE_PLANS), *keys(OfflineCi)]),  # type: ignore[list-item]
    ("Quantities", [*DURATION_UNITS, *SIZE_UNITS, *PLAIN_UNITS]),
    ("Metrics", [*METRICS]),
]


@pytest.mark.parametrize(("section", "names"), SECTIONS, ids=[name for name, _ in SECTIONS])
def test_every_key_is_in_its_section(section: str, names: list[str]) -> None:
    text = sections()[section]
    missing = [name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)]
    assert missing == []


def test_actions_and_levels() -> None:
    text = sections()["`escalation`"]
    assert all(f"`{action.value}`" in text for action in Action)
    assert all(level in text for level in ("L1", "L2", "L3"))
    assert "default" in text
    assert set(LevelActions.model_fields) == {"default", *Stage}


@pytest.mark.parametrize("code", [*codes.CODES])
def test_every_diagnostic_code_is_described(code: str) -> None:
    assert f"| `{code}` | {codes.CODES[code]} |" in TEXT


def test_no_code_or_metric_is_left_over() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| ", sections()["Linting"], flags=re.MULTILINE)
    assert rows == [*codes.CODES]
    assert re.findall(r"^\| `([^`]+)` \| ", sections()["Metrics"], flags=re.MULTILINE) == [*METRICS]


@pytest.mark.parametrize("metric", [*METRICS.values()], ids=[*METRICS])
def test_metrics_say_unit_family_and_source(metric: object) -> None:
    (row,) = re.findall(rf"^\| `{metric.id}` \|.*$", TEXT, flags=re.MULTILINE)  # type: ignore[attr-defined]
    for part in (metric.unit or "–", metric.family.value, metric.shape.value, metric.source):  # type: ignore[attr-defined]
        assert f"| {part} |" in row
    for alias, _ in metric.aliases:  # type: ignore[attr-defined]
        assert f"`{alias}`" in row


def test_the_sample_sizes_are_right() -> None:
    from contracts import intervals, sequential

    for rho in (0.01, 0.02, 0.05):
        fixed = ", ".join(str(intervals.prompts_needed(rho, 0.05, k)) for k in range(4))
        stream = ", ".join(str(sequential.prompts_needed(rho, 0.05, k)) for k in range(4))
        assert f"| {rho} | {fixed} | {stream} |" in TEXT


def test_yaml_answers_name_real_codes() -> None:
    named = set(re.findall(r"`([a-z]+[a-z0-9]*(?:-[a-z0-9]+)+)`", sections()["Reading YAML"]))
    assert named <= set(codes.READING)
    assert {*codes.READING} - named <= {"not-a-mapping", "empty", "syntax", "anchor", "alias", "tag", "key",
                                        "tab", "character"}  # fmt: skip
