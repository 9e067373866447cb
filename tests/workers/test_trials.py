"""Contracts tried on the zoo, on a tiny model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from contracts.builds import parse_build
from contracts.document import read
from contracts.slices import Attributes
from tests.workers.documents import provenance
from tests.workers.kernels.fault_kit import SERVING, TRAIN, requests, write_model
from workers.draws import Draw
from workers.kernels.faults import FAULTS
from workers.trials import CLEAN, EAGER, ORDER, Result, Zoo, examine

CLAUSES = """\
  - {id: N1, family: numerical, metric: unmeasurable, limit: {lte: 0}, kind: hard, slices: [all], level: L3}
  - {id: N2, family: numerical, metric: log_ratio, statistic: mean, limit: {abs_lte: 0.02}, kind: hard,
     slices: [all], level: L2}
  - {id: S1, family: statistical, metric: kl, statistic: mean, limit: {lte: 5.0e-5}, kind: hard,
     slices: [all, long], level: L2}
  - {id: S2, family: statistical, metric: kl, limit: {lte: 0.05}, kind: soft, exceedance: 0.01, per: prompt,
     aggregate: max, slices: [all], level: L2}
"""
LENGTHS = [10, 30, 50, 40, 20, 35] * 4 + [600, 610, 620]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("zoo") / "llama", "llama")


def run(
    checkpoint: Path, faults: Sequence[str], clauses: str = CLAUSES, temperature: float = 0.6,
    lengths: Sequence[int] = LENGTHS,
) -> dict[str, Result]:  # fmt: skip
    text = f"""\
apiVersion: kernel-contracts/v1
kind: KernelContract
metadata: {{name: tiny, version: 1.0.0}}
pair: {{train: {{engine: torch}}, inference: {{engine: vllm, dtype: float32}}}}
sampling: {{temperature: {temperature}}}
slices:
  all: {{}}
  long: {{where: {{prompt_tokens: {{gt: 512}}}}}}
clauses:
{clauses}
fallback: {{build: steady}}
stages: {{offline_ci: {{min_prompts: 1, census: true}}, shadow: {{min_prompts: 1}}}}
"""
    draws = [Draw(r, Attributes(len(r.prompt_ids), None, frozenset())) for r in requests(lengths)]
    contract = read(text.encode()).contract
    zoo = Zoo(contract, provenance(), checkpoint, parse_build(TRAIN), parse_build(SERVING), draws)
    try:
        return {result.id: result for result in examine(zoo, faults)}
    finally:
        zoo.close()


def test_the_whole_zoo(llama: Path) -> None:
    found = run(llama, [*FAULTS])
    assert [*found] == [CLEAN, EAGER, ORDER, *FAULTS]
    told = {name: result.outcome for name, result in found.items()}
    expected = dict.fromkeys(FAULTS, "caught") | dict.fromkeys((CLEAN, EAGER, ORDER, "F6"), "passed")
    expected |= {"F10": "not applicable", "F16": "not applicable", "F7": "left to kc calibrate"}
    assert told == expected
    assert found["F1"].phase == "decode"
    assert found["F9"].slice == "long"
    assert found["F13"].clause == "N1"
    assert found["F17"].clause == "provenance"
    assert "routed experts" in found["F16"].reason
    assert found["F3"].metric == "mean log_ratio"
    assert found["F3"].limit.endswith("0.02 nats")


def test_a_contract_that_looks_at_means_misses(llama: Path) -> None:
    lax = """\
  - {id: S1, family: statistical, metric: kl, statistic: mean, limit: {lte: 0.05}, kind: hard,
     slices: [all], level: L2}
"""
    found = run(llama, ["F2", "F1", "F14"], lax)
    assert {name: found[name].outcome for name in ("F2", "F1", "F14")} == {
        "F2": "missed", "F1": "caught", "F14": "missed",
    }  # fmt: skip
    assert "the largest of each prompt" in found["F2"].reason


def test_what_the_suite_cannot_show(llama: Path) -> None:
    found = run(llama, ["F3", "F9", "F11"], temperature=1.0, lengths=[20, 30])
    assert {found[name].outcome for name in ("F3", "F9", "F11")} == {"not applicable"}
    assert "temperature" in found["F3"].reason
    assert "512 tokens" in found["F9"].reason
    assert "chunk of 64" in found["F11"].reason


def test_a_contract_nothing_meets(llama: Path) -> None:
    """What the clean pair violates catches nothing, and the controls say so."""
    strict = """\
  - {id: N, family: numerical, metric: logit_osc, limit: {lte: 1.0e-9}, kind: hard, slices: [all], level: L2}
"""
    found = run(llama, ["F2", "F6"], strict)
    assert {found[name].outcome for name in (CLEAN, EAGER, ORDER)} == {"false alarm"}
    assert found["F2"].outcome == "missed"
    assert found["F6"].outcome == "passed"
