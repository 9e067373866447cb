from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from app.cli import evaluate, zoo
from app.cli.contracts import examine
from app.cli.errors import USAGE, CliError

CONTRACT = Path(__file__).parents[3] / "contracts" / "examples" / "every-fault.yaml"


class Process:
    """Stands in for the measurement's process."""

    started: list[list[str]]

    def __init__(self, arguments: list[str]) -> None:
        Process.started.append(arguments)

    def wait(self) -> int:
        return 1


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    Process.started = []
    monkeypatch.setattr(evaluate.subprocess, "Popen", Process)
    return dict.fromkeys(("train", "inference", "suite", "faults")) | {"checkpoint": tmp_path}


def run(options: dict[str, Any], prompts: int | None = None, **flags: bool) -> int:
    return zoo.run(CONTRACT, prompts, options, **{"as_json": False, "quiet": False, **flags})


def test_what_is_left_out_is_left_to_the_measurement(options: dict[str, Any], tmp_path: Path) -> None:
    assert run(options) == 1
    assert Process.started == [
        [sys.executable, "-m", "workers.zoo", "--contract", str(CONTRACT), "--checkpoint", str(tmp_path)]
    ]


def test_arguments_go_through(options: dict[str, Any], tmp_path: Path) -> None:
    suite = tmp_path / "suite.jsonl"
    suite.write_text("{}")
    given = {"train": "torch", "inference": "torch-serving:dtype=float32", "suite": suite, "faults": "F1,F8"}
    run(options | given, as_json=True, quiet=True)
    assert Process.started[0][7:] == [
        "--train", "torch", "--inference", "torch-serving:dtype=float32", "--suite", str(suite),
        "--faults", "F1,F8", "--json", "--quiet",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"checkpoint": None}, "--zoo needs --checkpoint"),
        ({"checkpoint": Path("/nowhere")}, "--zoo needs --checkpoint"),
        ({"suite": Path("/nowhere")}, "no such suite"),
        ({"faults": "F1,F19"}, "F1 to F18"),
        ({"train": "tensor"}, "unknown engine"),
    ],
)
def test_bad_usage_starts_nothing(options: dict[str, Any], wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(CliError, match=words) as error:
        run(options | wrong)
    assert error.value.code == USAGE
    assert not Process.started


def test_the_number_of_prompts_is_the_suites(options: dict[str, Any]) -> None:
    with pytest.raises(CliError, match="--prompts"):
        run(options, 300)


def test_its_options_are_for_the_zoo_alone(options: dict[str, Any]) -> None:
    with pytest.raises(CliError, match="--checkpoint is for --zoo"):
        examine(CONTRACT, None, options, as_json=False)
