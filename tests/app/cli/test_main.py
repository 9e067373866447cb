from __future__ import annotations

import sys
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from app.cli import main as cli
from app.cli import processes
from app.cli.errors import CliError

COMMANDS = (
    "lint", "evaluate", "demo", "serve", "worker", "gateway", "kernel-server",
    "promote", "status", "approve", "freeze", "resume", "abort", "retry", "register",
)  # fmt: skip


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.app, arguments)
    return result.exit_code, result.output


def test_help_names_every_command() -> None:
    status, text = invoke("--help")
    assert status == 0
    assert all(command in text for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_without_a_cut_first_line(command: str) -> None:
    status, text = invoke(command, "--help")
    assert status == 0
    assert text.startswith("Usage:")
    listed = next(line for line in invoke("--help")[1].splitlines() if line.split()[:1] == [command])
    assert not listed.endswith("...")


def test_bad_usage_is_two() -> None:
    assert invoke("nonsense")[0] == 2
    assert invoke("lint")[0] == 2
    assert invoke("evaluate")[0] == 2


def test_an_error_is_one_line_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kc", "status", "--url", "http://127.0.0.1:9"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 1
    text = capsys.readouterr().err
    assert text.startswith("kc: no control plane answers at http://127.0.0.1:9")
    assert text.count("\n") == 1


class TestProcesses:
    """Long-running commands become the module's process."""

    @pytest.fixture(autouse=True)
    def _exec(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[list[str]] = []

        def execv(path: str, arguments: list[str]) -> NoReturn:
            assert path == arguments[0] == sys.executable
            self.started.append(arguments[1:])
            raise SystemExit(0)

        monkeypatch.setattr(processes.os, "execv", execv)

    @pytest.mark.parametrize(
        ("command", "module"),
        [
            ("serve --port 9000 --no-embedded-worker",
             "app.main --host 127.0.0.1 --port 9000 --no-embedded-worker"),
            ("worker", "workers.local"),
            ("gateway --deployment coder",
             "app.gateway.main --deployment coder --host 127.0.0.1 --port 8322"),
            ("kernel-server --build torch --checkpoint d --port 1",
             "workers.serve --build torch --checkpoint d --host 127.0.0.1 --port 1"),
        ],
    )  # fmt: skip
    def test_becomes(self, command: str, module: str) -> None:
        assert invoke(*command.split())[0] == 0
        assert self.started == [["-m", *module.split()]]

    def test_a_worker_without_torch_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(processes, "find_spec", lambda name: None)
        with pytest.raises(CliError, match=r"kernel-contracts\[torch\]") as caught:
            processes.become("workers.local")
        assert caught.value.code == 4
        assert self.started == []
