from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.errors import CliError
from app.cli.main import app

CONTRACTS = Path(__file__).parents[3] / "contracts"
DEMO = CONTRACTS / "examples" / "coder-demo.yaml"
FULL = CONTRACTS / "examples" / "coder-bf16.yaml"


def kc(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=True)
    if isinstance(result.exception, CliError):
        return result.exception.code, result.stdout, str(result.exception)
    return result.exit_code, result.stdout, result.stderr


def test_schema_is_the_published_one() -> None:
    assert kc("schema") == (0, (CONTRACTS / "schema.json").read_text(encoding="utf-8"), "")


def test_explain_in_lines() -> None:
    status, out, err = kc("explain", FULL)
    assert (status, err) == (0, "")
    for part in ("S2  At every stage", "341 prompts", "[B1] N1", "[R4]", "Which clauses imply which"):
        assert part in out


def test_explain_as_json() -> None:
    status, out, _ = kc("explain", FULL, "--json")
    found = json.loads(out)
    assert status == 0
    assert [clause["id"] for clause in found["clauses"]][:3] == ["N1", "N2", "N3"]
    assert {"label", "clause", "text", "value"} == set(found["chain"][0])


@pytest.fixture
def edited(tmp_path: Path) -> object:
    def made(old: str, new: str) -> Path:
        text = DEMO.read_text(encoding="utf-8")
        assert text.count(old) == 1
        file = tmp_path / "new.yaml"
        file.write_text(text.replace(old, new), encoding="utf-8")
        return file

    return made


@pytest.mark.parametrize(
    ("old", "new", "status", "said"),
    [
        ("lte: 0.15", "lte: 0.1", 0, "tightened clause S4: limit lte 0.15 → lte 0.1\n"),
        ("lte: 0.15", "lte: 0.2", 1, "loosened clause S4: limit lte 0.15 → lte 0.2\n"),
        ("  - {id: O3,", "  # {id: O3,", 1, "removed clause O3\n"),
        ("  train:     {engine: torch, dtype: float32}", "  train:     {engine: torch, dtype: bfloat16}", 1,
         'incomparable pair.train: predicate without dtype "float32" and with dtype "bfloat16"\n'),
        ("owner: serving-team", "owner: others", 0, ""),
    ],
)  # fmt: skip
def test_diff(edited, old: str, new: str, status: int, said: str) -> None:
    assert kc("diff", DEMO, edited(old, new))[:2] == (status, said)


def test_diff_as_json(edited) -> None:
    status, out, _ = kc("diff", DEMO, edited("lte: 0.15", "lte: 0.2"), "--json")
    found = json.loads(out)
    assert (status, found["loosened"]) == (1, True)
    assert [(one["part"], one["direction"]) for one in found["changes"]] == [("clause S4", "loosened")]


def test_diff_says_how_it_ended(edited) -> None:
    assert kc("diff", DEMO, DEMO) == (0, "", "no difference\n")
    assert kc("diff", DEMO, edited("lte: 0.15", "lte: 0.1"))[2].endswith("nothing is looser\n")


def test_test_contract() -> None:
    status, out, err = kc("test-contract", DEMO, "--prompts", 200)
    assert (status, err) == (0, "every clause can hold and can fail\n")
    assert out.count("n = 200") == len(out.splitlines())
    assert "power" in out


def test_test_contract_as_json_at_min_prompts() -> None:
    status, out, _ = kc("test-contract", DEMO, "--json")
    found = json.loads(out)
    assert (status, found["sound"]) == (0, True)
    assert {one["n"] for one in found["tested"]} == {64}


def test_a_clause_that_cannot_fail(edited) -> None:
    status, out, _ = kc("test-contract", edited("lte: 0.15", "lte: 1.0"))
    assert status == 1
    assert out.endswith("S4 can never fail: it admits no violating pair\n")


@pytest.mark.parametrize("command", ["explain", "test-contract"])
def test_unreadable_files(command: str, tmp_path: Path) -> None:
    assert kc(command, tmp_path / "nowhere.yaml")[0] == 2
    broken = tmp_path / "b.yaml"
    broken.write_text(DEMO.read_text(encoding="utf-8").replace("metric: tv", "metric: tvv"), encoding="utf-8")
    status, out, told = kc(command, broken)
    assert (status, out) == (2, "")
    assert "unknown metric 'tvv'; did you mean 'tv'?" in told


def test_diff_of_an_unreadable_file(tmp_path: Path) -> None:
    for pair in ((DEMO, tmp_path / "x"), (tmp_path / "x", DEMO)):
        assert kc("diff", *pair)[0] == 2


@pytest.mark.parametrize("n", [0, -1])
def test_no_prompts_are_no_test(n: int) -> None:
    assert kc("test-contract", DEMO, "--prompts", n)[0] == 2
