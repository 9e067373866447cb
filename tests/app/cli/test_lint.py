from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.errors import CliError
from app.cli.main import app

EXAMPLES = Path(__file__).parents[3] / "contracts" / "examples"
CONTRACT = (EXAMPLES / "coder-demo.yaml").read_text()
WARNED = CONTRACT.replace("min_prompts: 64", "min_prompts: 5")
BROKEN = CONTRACT.replace("metric: tv", "metric: tvv").replace("kind: KernelContract", "kind: Kernel")


@pytest.fixture
def write(tmp_path: Path) -> object:
    def made(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return made


def lint(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["lint", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_demo_contract_is_clean() -> None:
    assert lint(str(EXAMPLES / "coder-demo.yaml")) == (0, "", "1 contract: 0 errors, 0 warnings\n")


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.name)
def test_no_example_has_errors(file: Path) -> None:
    assert lint(str(file))[0] == 0


def test_warnings_alone_are_clean(write) -> None:
    file = write("w.yaml", WARNED)
    status, out, err = lint(file)
    assert status == 0
    assert all(": warning: " in line and line.startswith(f"{file}:") for line in out.splitlines())
    assert err.startswith("1 contract: 0 errors, ")


def test_every_error_of_every_file_has_its_place(write) -> None:
    broken, warned = write("b.yaml", BROKEN), write("w.yaml", WARNED)
    status, out, _ = lint(broken, warned, "--format", "json")
    rows = json.loads(out)
    assert status == 1
    assert {row["file"] for row in rows} == {broken, warned}
    errors = [row for row in rows if row["severity"] == "error"]
    assert [set(row) for row in rows] == [{"file", "line", "column", "code", "severity", "message"}] * len(
        rows
    )
    lines = BROKEN.splitlines()
    assert any(
        "tvv" in row["message"] and "tvv" in lines[row["line"] - 1][row["column"] - 1 :] for row in errors
    )
    assert any("Kernel" in lines[row["line"] - 1][row["column"] - 1 :] for row in errors)


def test_a_file_that_is_not_there(write) -> None:
    status, out, err = lint("nowhere.yaml", write("b.yaml", BROKEN))
    assert status == 2
    assert "kc: nowhere.yaml: No such file or directory" in err
    assert ": error: " in out
    assert "\n1 contract: " in err  # the one that was read


def test_what_was_not_read_is_not_said_to_have_no_errors() -> None:
    assert lint("nowhere.yaml") == (2, "", "kc: nowhere.yaml: No such file or directory\n")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"[1, 2", b"a: &a [*a]"])
def test_what_is_no_contract_at_all(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes(content)
    status, out, _ = lint(str(file))
    assert status == 1
    assert out.startswith(f"{file}:1:")


def test_sarif_has_every_finding_and_every_file(write) -> None:
    broken, warned = write("b.yaml", BROKEN), write("w.yaml", WARNED)
    status, out, err = lint(broken, warned, "--format", "sarif")
    (run,) = json.loads(out)["runs"]
    rows = json.loads(lint(broken, warned, "--format", "json")[1])
    assert (status, err) == (1, "")
    assert [result["ruleId"] for result in run["results"]] == [row["code"] for row in rows]
    assert len(run["artifacts"]) == 2


def test_sarif_of_a_clean_contract() -> None:
    status, out, _ = lint(str(EXAMPLES / "coder-demo.yaml"), "--format", "sarif")
    (run,) = json.loads(out)["runs"]
    assert (status, run["results"], json.loads(out)["version"]) == (0, [], "2.1.0")


def test_a_fallback_that_is_the_candidate() -> None:
    file = str(EXAMPLES / "coder-demo.yaml")
    same = "smollm2-fp32=torch-serving:dtype=bfloat16"
    status, out, _ = lint(file, "--build", same, "--format", "json")
    assert status == 1
    assert [row["code"] for row in json.loads(out)] == ["guard-is-candidate", "fallback-is-candidate"]
    assert lint(file, "--build", "smollm2-fp32=torch-serving:dtype=float32")[0] == 0


@pytest.mark.parametrize("text", ["torch", "=torch", "safe=", "safe=torh", "safe=torch:dtype=bfloat"])
def test_builds_that_cannot_be(text: str) -> None:
    result = CliRunner().invoke(app, ["lint", str(EXAMPLES / "coder-demo.yaml"), "--build", text])
    assert isinstance(result.exception, CliError)
    assert result.exception.code == 2
