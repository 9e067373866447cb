"""The demo's child processes: started by module name, none outlives the `with` block."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2

from app.cli.errors import CliError

STOP_S = 10.0


class Processes:
    """Starts children in process groups of their own and stops the groups, the last one first.

    Their output goes to `logs/NAME.log`. A terminal's interrupt reaches only this process,
    so that the children are stopped in order; SIGTERM and SIGHUP are turned into an exit.
    """

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self.logs = logs
        self._environment = {**os.environ, **environment}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Processes:
        self.logs.mkdir(parents=True, exist_ok=True)
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, _leave)
        return self

    def __exit__(self, *exception: object) -> None:
        # A second interrupt must not leave half of them running.
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._stop_all()
        finally:
            signal.signal(signal.SIGINT, previous)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def start(self, name: str, module: str, *arguments: str) -> None:
        """Start `python -m module arguments...` in the background."""
        with (self.logs / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def run(self, name: str, module: str, *arguments: str) -> None:
        """Run `python -m module arguments...` to its end; its progress is on stderr, which is ours."""
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=self._environment,
            start_new_session=True,
        )
        self._running[name] = process
        status = process.wait()
        del self._running[name]
        if status:
            raise CliError(f"{name} failed: python -m {module} ended with status {status}")

    def wait_healthy(self, name: str, url: str, timeout_s: float = 120.0) -> None:
        """Wait until `url` answers 200. Raises CliError with the log's last lines when it never does."""
        ends = time.monotonic() + timeout_s
        while time.monotonic() < ends:
            self.check()
            with suppress(httpx2.TransportError):
                if httpx2.get(url, timeout=2.0, trust_env=False).status_code == httpx2.codes.OK:
                    return
            time.sleep(0.1)
        raise CliError(f"{name} did not become healthy in {timeout_s:g} s\n{self._tail(name)}")

    def check(self) -> None:
        """Raise CliError when a child that should be running has ended."""
        for name, process in self._running.items():
            status = process.poll()
            if status is not None:
                raise CliError(f"{name} ended unexpectedly with status {status}\n{self._tail(name)}")

    def _tail(self, name: str, lines: int = 12) -> str:
        log = self.logs / f"{name}.log"
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        return "\n".join(["  " + line for line in text.splitlines()[-lines:]] + [f"  (all of it in {log})"])

    def _stop_all(self) -> None:
        groups = list(reversed(self._running.values()))
        for process in groups:
            _signal_group(process, signal.SIGTERM)
        ends = time.monotonic() + STOP_S
        for process in groups:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, ends - time.monotonic()))
            # Whatever of its group is left, a child of the child for instance, goes as well.
            _kill_group(process)
        self._running.clear()


def free_port(preferred: int, host: str = "127.0.0.1") -> int:
    """`preferred` when it can be bound, otherwise a free port."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise CliError(f"no free port on {host}")


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _kill_group(process: subprocess.Popen[bytes], timeout_s: float = 0.5) -> None:
    """Kill the group and wait until it is empty, which a zombie nobody reaps may delay."""
    ends = time.monotonic() + timeout_s
    while _signal_group(process, signal.SIGKILL) and time.monotonic() < ends:
        process.poll()
        time.sleep(0.01)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> bool:
    """Whether there was anyone left to signal."""
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
