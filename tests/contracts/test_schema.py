"""The published schema is the model's, and takes what the reader takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

import contracts
from contracts.document import InvalidContract, read
from contracts.metrics import METRICS
from contracts.schema import json_schema, text
from contracts.shape import keys_at

ROOT = Path(contracts.__file__).parent
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
VALIDATOR = Draft202012Validator(json_schema())


def test_the_published_schema_is_generated() -> None:
    written = (ROOT / "schema.json").read_text(encoding="utf-8")
    assert written == text(), "run `kc schema > contracts/schema.json`"


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(json_schema())
    assert "null" not in {node for node in _words(json_schema()) if isinstance(node, str)}


def _words(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return [word for value in node.values() for word in _words(value)]
    if isinstance(node, list):
        return [word for value in node for word in _words(value)]
    return [node]


def plain(raw: bytes) -> Any:
    return json.loads(json.dumps(YAML(typ="safe", pure=True).load(raw)))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_examples_validate(file: Path) -> None:
    assert list(VALIDATOR.iter_errors(plain(file.read_bytes()))) == []


def test_every_key_and_metric_is_in_it() -> None:
    schema = json_schema()
    clause = schema["$defs"]["Clause"]["properties"]
    assert set(schema["properties"]) == set(keys_at(()))
    assert set(clause) == set(keys_at(("clauses", 0)))
    assert [one["const"] for one in clause["metric"]["oneOf"]] == [*METRICS]


BASE = (ROOT / "examples" / "coder-bf16.yaml").read_text(encoding="utf-8")
EDITS = [
    ("limit: {lte: 4.0}", "limit: {lte: 4 logits}", True),
    ("limit: {lte: 4.0}", "limit: {lte: '4 bananas'}", False),
    ("limit: {lte: 4.0}", "limit: {lte: 4, gte: 3}", False),
    ("limit: {lte: 4.0}", "limit: {}", False),
    ("limit: {lte: 4.0}", "limit: 4", False),
    ("limit: {abs_lte: 0.03}", "limit: {abs_lte: -0.03}", False),
    ("deadline: 6h", "deadline: 21600", True),
    ("deadline: 6h", "deadline: 6 fortnights", False),
    ("deadline: 6h", "deadline: -6", False),
    ("deadline: 6h", "deadlin: 6h", False),
    ("{language: python}", "{language: {in: [python, rust]}}", True),
    ("{language: python}", "{language: {}}", False),
    ("{language: python}", "{langage: python}", False),
    ("metric: logit_osc", "metric: logit_oscc", False),
    ("L1: [log]", "L1: {default: [log], full: [log, page]}", True),
    ("L1: [log]", "L1: log", False),
    ("L1: [log]", "L1: [logg]", False),
    ("L1: [log]", "L4: [log]", False),
    ("level: L2, phase: prefill", "level: L2, phase: warmup", False),
    ("min_prompts: 480}\n  shadow", "min_prompts: 0}\n  shadow", False),
    ("kind: KernelContract", "kind: Kernel", False),
    ("  long: ", "  lo ng: ", False),
    ("steps: [0.01, 0.05, 0.25]", "steps: []", False),
]


@pytest.mark.parametrize(("old", "new", "good"), EDITS)
def test_schema_and_reader_agree(old: str, new: str, good: bool) -> None:
    assert BASE.count(old) == 1, old
    raw = BASE.replace(old, new).encode()
    assert (list(VALIDATOR.iter_errors(plain(raw))) == []) is good
    try:
        read(raw)
        took = True
    except InvalidContract:
        took = False
    assert took is good
