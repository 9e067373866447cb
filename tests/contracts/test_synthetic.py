"""Synthetic pairs: two identical kernels always conform, known faulty ones never do."""

from __future__ import annotations

from pathlib import Path

import pytest

import contracts
from contracts.document import Document, read
from contracts.judge import judge
from contracts.model import Stage
from contracts.synthetic import evidence

EXAMPLES = Path(contracts.__file__).parent / "examples"


def example(name: str) -> Document:
    return read((EXAMPLES / name).read_bytes())


@pytest.mark.parametrize("stage", list(Stage))
@pytest.mark.parametrize("name", ["coder-demo.yaml", "coder-bf16.yaml"])
def test_identical_kernels_converge_and_kernels_beyond_every_limit_violate(name: str, stage: Stage) -> None:
    document = example(name)
    contract, n = document.contract, 4000
    same = evidence(contract, stage, n, {}, contract_digest=document.digest)
    assert judge(contract, same, contract_digest=document.digest).converged is True
    broken = {clause.id: n - 1 for clause in contract.clauses}
    worst = evidence(contract, stage, n, broken, contract_digest=document.digest)
    judgement = judge(contract, worst, contract_digest=document.digest)
    assert {v.verdict for v in judgement.verdicts} == {"VIOLATED"}


@pytest.mark.parametrize("name", ["coder-demo.yaml"])
def test_one_fault_is_found_where_it_is(name: str) -> None:
    document = example(name)
    contract, n = document.contract, 1000
    for clause in contract.clauses_at(Stage.CANARY):
        faulty = evidence(contract, Stage.CANARY, n, {clause.id: n - 1}, contract_digest=document.digest)
        judgement = judge(contract, faulty, contract_digest=document.digest)
        assert {v.clause for v in judgement.verdicts if v.verdict == "VIOLATED"} == {clause.id}
        assert judgement.converged is False


def test_evidence_is_a_function_of_its_counts() -> None:
    document = example("coder-bf16.yaml")
    one, two = (
        evidence(document.contract, Stage.FULL, 50, {"S2": 3}, contract_digest=document.digest)
        for _ in range(2)
    )
    assert one.digest == two.digest
    assert one.prompts == 50
