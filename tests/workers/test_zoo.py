from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.workers.documents import contract_text
from tests.workers.kernels.fault_kit import write_model
from workers import zoo
from workers.evaluate import USAGE

CLAUSES = """\
  - {id: N1, family: numerical, metric: unmeasurable, limit: {lte: 0}, kind: hard, slices: [all], level: L3}
  - {id: S1, family: statistical, metric: kl, statistic: mean, limit: {lte: %s}, kind: hard,
     slices: [all], level: L2}
"""


@pytest.fixture
def given(tmp_path: Path) -> dict[str, str]:
    """Arguments that can be run; tests change one."""
    checkpoint = write_model(tmp_path / "llama", "llama")
    (tmp_path / "contract.yaml").write_text(contract_text(CLAUSES % 0.01))
    lines = (json.dumps({"id": f"p{i}", "prompt": f"def f{i}(x):\n    return"}) for i in range(6))
    (tmp_path / "suite.jsonl").write_text("\n".join(lines))
    return {
        "--contract": str(tmp_path / "contract.yaml"),
        "--checkpoint": str(checkpoint),
        "--suite": str(tmp_path / "suite.jsonl"),
        "--inference": "torch-serving:dtype=float32",
        "--faults": "F13,F1,F16",
    }


def run(given: dict[str, str], *flags: str) -> int:
    return zoo.main([*(word for pair in given.items() for word in pair), "--quiet", *flags])


def test_json(given: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(given, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["sound"] is True
    told = {one["id"]: one["outcome"] for one in answer["results"]}
    assert {told[name] for name in ("F1", "F13")} == {"caught"}
    assert told["F16"] == "not applicable"
    caught = next(one for one in answer["results"] if one["id"] == "F1")
    assert (caught["clause"], caught["slice"], caught["phase"]) == ("S1", "all", "decode")


def test_table_and_what_is_missed(
    given: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "contract.yaml").write_text(contract_text(CLAUSES % 100))
    assert run(given) == 1
    out = capsys.readouterr().out
    assert "F1 missed: every clause lets it pass; a clause on abs_log_ratio (all; decode) sees it" in out
    assert "1 caught, 1 missed, 1 not applicable; 0 false alarms." in out


def test_prompts_of_its_own(given: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "COUNTS", zoo.Counts(function=2, docstring=1, safety=1, long=1))
    checkpoint = Path(given["--checkpoint"])
    file = zoo._default_suite(checkpoint, tmp_path)
    assert len(file.read_text().splitlines()) == 5
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 512}))
    assert "long" not in zoo._default_suite(checkpoint, tmp_path).read_text()


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--contract", "/nowhere.yaml", "No such file"),
        ("--checkpoint", "/nowhere", "nowhere"),
        ("--inference", "torch-serving:fault=F1", "clean kernels"),
        ("--inference", "llamacpp:file=a.gguf", "clean kernels"),
        ("--faults", "F1,F19", "F1 to F18"),
        ("--suite", "/nowhere.jsonl", "nowhere"),
    ],
)
def test_bad_usage(
    given: dict[str, str], option: str, value: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(given | {option: value}) == USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kc test-contract: ")
    assert words in err
    assert "Traceback" not in err
