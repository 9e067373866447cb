"""Lint as a whole: examples, severities, places, order."""

from pathlib import Path

import pytest

import contracts
from contracts.codes import CODES, REFUSED, UNWISE, severity
from contracts.document import read
from contracts.lint import lint
from tests.contracts.contract_kit import TV, clause, codes, found

EXAMPLES = Path(contracts.__file__).parent / "examples"


@pytest.mark.parametrize("name", sorted(p.name for p in EXAMPLES.glob("coder-demo*.yaml")))
def test_the_demo_contracts_are_clean(name: str) -> None:
    assert lint(read((EXAMPLES / name).read_bytes())) == []


def test_the_full_example_reads_with_warnings_only() -> None:
    diagnostics = lint(read((EXAMPLES / "coder-bf16.yaml").read_bytes()))
    assert {d.severity for d in diagnostics} == {"warning"}
    assert set(codes(diagnostics)) == {"vacuous-bound", "beyond-budget", "too-few-prompts"}


def test_everything_wrong_is_found_at_once_and_in_order_of_place() -> None:
    everything = found(
        clause("topk_agreement", "gte: 0.5", id="A", k=5, stages="[full]"),
        clause("tv", "gte: 0.1", id="B"),
        clause("logit_osc", "lte: 9", id="D", statistic="mean"),
        TV,
        tail="slices: {all: {}, long: {where: {prompt_tokens: {gte: 9}}}}\n",
    )
    assert codes(everything) == [
        "too-few-prompts",
        "too-few-prompts",
        "no-conforming-pair",
        "vacuous-bound",
        "unused-slice",
    ]
    assert [d.line for d in everything] == sorted(d.line for d in everything)
    assert {d.code: d.severity for d in everything} == {
        "too-few-prompts": "warning",
        "no-conforming-pair": "error",
        "vacuous-bound": "warning",
        "unused-slice": "warning",
    }


def test_severities() -> None:
    assert all(severity(code) == "error" for code in REFUSED)
    assert all(severity(code) == "warning" for code in UNWISE)
    assert all(text.endswith(".") for text in CODES.values())
