from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.cli import worst
from app.cli.errors import CliError


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    calls: list[list[str]] = []

    def begin(arguments: list[str], **_: object) -> SimpleNamespace:
        calls.append(arguments[3:])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(worst.subprocess, "run", begin)
    monkeypatch.setenv("KC_HOME", str(tmp_path / "home"))
    return calls


def test_a_run_by_its_directory_with_the_tokenizer_it_names(tmp_path: Path, started: list[list[str]]) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "run.json").write_text(json.dumps({"checkpoint": str(tmp_path)}))
    assert worst.run(str(tmp_path), None, {"metric": "tv", "tag": None}, as_json=True) == 0
    tokenizer = str(tmp_path / "tokenizer.json")
    assert started == [[str(tmp_path), "--metric", "tv", "--tokenizer", tokenizer, "--json"]]


def test_a_promotion_by_its_id(tmp_path: Path, started: list[list[str]]) -> None:
    records = tmp_path / "home" / "artifacts" / "records" / "p1"
    records.mkdir(parents=True)
    worst.run("p1", None, {}, as_json=False)
    assert started == [[str(records)]]
    for name in ("p2", "p1/../p1", "nowhere/p1"):
        with pytest.raises(CliError, match="no such directory or file, and no promotion"):
            worst.run(name, None, {}, as_json=False)


def test_a_promotion_by_the_beginning_of_its_id(tmp_path: Path, started: list[list[str]]) -> None:
    kept = tmp_path / "home" / "artifacts" / "records"
    for name in ("abc1", "abd2", "abd"):
        (kept / name).mkdir(parents=True)
    worst.run("abc", None, {}, as_json=False)
    worst.run("abd", None, {}, as_json=False)
    assert started == [[str(kept / "abc1")], [str(kept / "abd")]]
    with pytest.raises(CliError, match="more than one promotion"):
        worst.run("ab", None, {}, as_json=False)
    with pytest.raises(CliError, match="no such directory"):
        worst.run("abc12", None, {}, as_json=False)


def test_a_checkpoint_without_tokenizer_is_refused(tmp_path: Path, started: list[list[str]]) -> None:
    with pytest.raises(CliError, match="no such tokenizer"):
        worst.run(str(tmp_path), tmp_path / "nowhere", {}, as_json=False)
    assert started == []
