from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from app.cli import evaluate
from app.cli.errors import CliError

CONTRACT = Path(__file__).parents[3] / "contracts" / "examples" / "coder-demo.yaml"


class Process:
    """Stands in for the measurement's process."""

    started: list[list[str]]
    status: int = 0

    def __init__(self, arguments: list[str]) -> None:
        Process.started.append(arguments)

    def wait(self) -> int:
        return Process.status


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    Process.started, Process.status = [], 0
    monkeypatch.setattr(evaluate.subprocess, "Popen", Process)
    (tmp_path / "suite.jsonl").write_text("{}")
    return {
        "contract": CONTRACT,
        "checkpoint": tmp_path,
        "train": "torch:dtype=float32",
        "inference": "torch-serving:dtype=bfloat16",
        "suite": tmp_path / "suite.jsonl",
        "out": None,
        "as_json": False,
    }


@pytest.mark.parametrize(("status", "told"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (-9, 4)])
def test_the_exit_status_is_the_measurements(given: dict[str, Any], status: int, told: int) -> None:
    Process.status = status
    assert evaluate.run(**given) == told


def test_arguments_go_through(given: dict[str, Any], tmp_path: Path) -> None:
    evaluate.run(**{**given, "out": tmp_path / "report", "as_json": True, "quiet": True, "rewards": "paired"})
    assert Process.started == [
        [
            sys.executable, "-m", "workers.evaluate", "--contract", str(CONTRACT), "--checkpoint",
            str(tmp_path),
            "--train", "torch:dtype=float32", "--inference", "torch-serving:dtype=bfloat16",
            "--suite", str(tmp_path / "suite.jsonl"), "--out", str(tmp_path / "report"),
            "--rewards", "paired", "--json", "--quiet",
        ]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"contract": Path("nowhere.yaml")}, "nowhere.yaml: No such file"),
        ({"checkpoint": Path("nowhere")}, "nowhere: no such checkpoint directory"),
        ({"suite": Path("nowhere.jsonl")}, "nowhere.jsonl: no such suite"),
        ({"train": "torhc"}, "did you mean 'torch'"),
        ({"inference": "torch-serving:dtype=float31"}, "did you mean 'float32'"),
    ],
)
def test_bad_usage_starts_nothing(given: dict[str, Any], wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(CliError, match=message) as caught:
        evaluate.run(**{**given, **wrong})
    assert caught.value.code == 2
    assert Process.started == []


def test_a_broken_contract_is_told_with_every_place(given: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(CONTRACT.read_text().replace("metric: tv", "metric: tvv"))
    with pytest.raises(CliError, match=r"the contract has errors\n.*c.yaml:\d+:\d+: error: .*tvv") as caught:
        evaluate.run(**{**given, "contract": file})
    assert caught.value.code == 2


def test_a_recorded_measurement_is_judged_again(given: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CliError, match=r"no evidence\.json"):
        evaluate.judge_again(tmp_path, CONTRACT, as_json=True)
    (tmp_path / "evidence.json").write_text("{}")
    assert evaluate.judge_again(tmp_path, CONTRACT, as_json=True) == 0
    (started,) = Process.started
    assert started[1:] == ["-m", "workers.rejudge", str(tmp_path), "--contract", str(CONTRACT), "--json"]


def test_a_probe_of_a_build_and_a_server(given: dict[str, Any], tmp_path: Path) -> None:
    suite = given["suite"]
    options = {"candidate": "torch-serving:chunk=8,batch=2", "baseline": "http://127.0.0.1:8331", "rate": 2.0,
               "out": None}  # fmt: skip
    assert evaluate.probe(CONTRACT, tmp_path, suite, options, as_json=False, quiet=True) == 0
    (started,) = Process.started
    assert started[1:] == [
        "-m", "workers.probe", "--contract", str(CONTRACT), "--checkpoint", str(tmp_path),
        "--suite", str(suite), "--candidate", "torch-serving:batch=2,chunk=8",
        "--baseline", "http://127.0.0.1:8331", "--rate", "2.0", "--quiet",
    ]  # fmt: skip
    with pytest.raises(CliError, match="unknown engine"):
        evaluate.probe(CONTRACT, tmp_path, suite, {"candidate": "vlm"}, as_json=False, quiet=False)


def test_a_calibration(given: dict[str, Any], tmp_path: Path) -> None:
    arguments = (tmp_path, "torch", "torch-serving", given["suite"], 0.7)
    assert evaluate.calibrate(*arguments, as_json=True, quiet=False) == 0
    (started,) = Process.started
    assert started[1:] == [
        "-m", "workers.calibrate", "--checkpoint", str(tmp_path), "--train", "torch", "--inference",
        "torch-serving", "--suite", str(given["suite"]), "--temperature", "0.7", "--json",
    ]  # fmt: skip


def test_faults_go_into_the_serving_build(given: dict[str, Any]) -> None:
    evaluate.run(**given, faults=["F13", "F9"])
    (started,) = Process.started
    build = started[started.index("--inference") + 1]
    assert build == "torch-serving:dtype=bfloat16,fault=F9+F13"
    assert started[started.index("--train") + 1] == "torch:dtype=float32"


def test_an_unknown_fault_starts_nothing(given: dict[str, Any]) -> None:
    with pytest.raises(CliError, match="F1 to F18"):
        evaluate.run(**given, faults=["F77"])
    assert not Process.started
