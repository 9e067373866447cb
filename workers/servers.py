"""Kernel servers for a while: healthy before anyone asks them, gone afterwards, their memory watched."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import psutil

START_S = 300.0  # a serving engine takes its time to start


class NotServing(RuntimeError):
    """A server could not be started, or ended before the load did."""


@dataclass(slots=True)
class Server:
    """One side's server: its address, and how much memory its processes took at most.

    `peak_bytes` is None for a server that was not started here.
    """

    url: str
    process: subprocess.Popen[bytes] | None = None
    log: Path | None = None
    peak_bytes: int | None = None
    _stop: threading.Event = field(default_factory=threading.Event)

    def watch(self, every_s: float = 0.2) -> None:
        """Follow the resident memory of its process and all its children until stopped."""
        while self.process is not None and not self._stop.wait(every_s):
            self.peak_bytes = max(self.peak_bytes or 0, _resident(self.process.pid))

    def stop_watching(self) -> None:
        """End :meth:`watch`."""
        self._stop.set()

    def check(self) -> None:
        """Raise NotServing with the log's last lines when its process has ended."""
        if self.process is not None and self.process.poll() is not None:
            lines = self.log.read_text(errors="replace").splitlines()[-8:] if self.log else []
            raise NotServing("\n".join([f"the server ended with status {self.process.returncode}", *lines]))


def _resident(pid: int) -> int:
    total = 0
    try:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            total += process.memory_info().rss
    except psutil.Error:
        pass  # it ended between two looks
    return total


@contextmanager
def served(build: str, checkpoint: Path, logs: Path) -> Iterator[Server]:
    """A server of `build` for the block, once it is healthy; its whole process group ends with it.

    Raises NotServing when it never becomes healthy.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = logs / f"{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "workers.serve",
                "--build", build, "--checkpoint", str(checkpoint), "--port", str(port),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    server = Server(f"http://127.0.0.1:{port}", process, log)
    watcher = threading.Thread(target=server.watch, name="memory", daemon=True)
    try:
        _wait_healthy(server)
        watcher.start()
        yield server
    finally:
        server.stop_watching()
        _end(process)


def _wait_healthy(server: Server) -> None:
    ends = time.monotonic() + START_S
    while time.monotonic() < ends:
        server.check()
        try:
            if httpx2.get(f"{server.url}/health", timeout=2.0, trust_env=False).is_success:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.2)
    raise NotServing(f"the server was not healthy after {START_S:g} s")


def _end(process: subprocess.Popen[bytes], patience_s: float = 10.0) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(patience_s)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
