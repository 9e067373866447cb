"""Running code nobody trusts: what a model wrote, and the tests it must pass.

A program gets a user, PID, network, IPC, UTS and mount namespace of its own, a small file system in memory
as its only writable place, reads nothing but the interpreter and the system's libraries (Landlock), has
limits on processor time, memory, processes, files and output, an empty environment, and no way to leave
anything behind. Where the machine does not allow that, nothing is run.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO

import psutil

from workers.sandbox_child import UNAVAILABLE

_LOOK_S = 0.05  # between two looks at how many processes there are
_CHILD = Path(__file__).with_name("sandbox_child.py")
_SYSTEM = (
    "/usr",
    "/lib",
    "/lib64",
    "/bin",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/dev/null",
    "/dev/urandom",
)


class SandboxUnavailable(RuntimeError):
    """The machine cannot confine a program (user namespaces or Landlock are missing); nothing was run."""


class End(StrEnum):
    """How a program ended."""

    EXITED = "exited"
    KILLED = "killed"  # by a signal, a limit's for instance
    TIMEOUT = "timeout"
    OUTPUT = "output"  # it wrote more than it may


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may use.

    Attributes:
        seconds: of the wall's clock.
        cpu_s: of processor time, for each process.
        memory_bytes: of address space, for each process.
        disk_bytes: of its file system, which is memory.
        file_bytes: of one file.
        output_bytes: of what is kept of standard output and error together; more ends it.
        processes: at the same time, threads included.
    """

    seconds: float = 10.0
    cpu_s: int = 5
    memory_bytes: int = 512 * 2**20
    disk_bytes: int = 16 * 2**20
    file_bytes: int = 4 * 2**20
    output_bytes: int = 64 * 2**10
    processes: int = 16


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a program.

    Attributes:
        status: exit status; None unless it exited by itself.
        output: standard output and error as UTF-8, undecodable bytes replaced.
    """

    end: End
    status: int | None
    output: str


def run(program: str, limits: Limits = Limits()) -> Outcome:
    """Run a Python program with nothing but the standard library, and wait for its end.

    Raises SandboxUnavailable; whatever the program does is an outcome.
    """
    with tempfile.TemporaryDirectory(prefix="sandbox-") as folder:
        wanted = {
            "program": program,
            "folder": folder,
            "disk_bytes": limits.disk_bytes,
            "readable": _readable(),
            "limits": {
                "RLIMIT_CPU": limits.cpu_s,
                "RLIMIT_AS": limits.memory_bytes,
                "RLIMIT_FSIZE": limits.file_bytes,
                "RLIMIT_NPROC": limits.processes,
                "RLIMIT_NOFILE": 64,
                "RLIMIT_CORE": 0,
            },
        }
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={},
            cwd=folder,
            start_new_session=True,
        )
        try:
            _send(process, json.dumps(wanted).encode())
            end, output = _output(process, limits)
        finally:
            _kill(process)
    return _outcome(end, process.returncode, output)


def _readable() -> list[str]:
    library = sysconfig.get_paths()
    own = {sys.prefix, sys.base_prefix, library["stdlib"], library["platstdlib"]}
    own |= {str(Path(sys.executable).resolve().parent)}
    return sorted(own | set(_SYSTEM))


def _send(process: subprocess.Popen[bytes], wanted: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # it ended before: its status says why
        _pipe(process.stdin).write(wanted)
        _pipe(process.stdin).close()


def _output(process: subprocess.Popen[bytes], limits: Limits) -> tuple[End, bytes]:
    stdout = _pipe(process.stdout)
    ends, kept = time.monotonic() + limits.seconds, bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        while (left := ends - time.monotonic()) > 0:
            if not selector.select(min(left, _LOOK_S)):
                if _processes(process.pid) > limits.processes:
                    return End.KILLED, bytes(kept)
                continue
            chunk = os.read(stdout.fileno(), 65536)
            if not chunk:
                process.wait(max(0.1, left))
                return End.EXITED, bytes(kept)
            kept += chunk
            if len(kept) > limits.output_bytes:
                return End.OUTPUT, bytes(kept[: limits.output_bytes])
    return End.TIMEOUT, bytes(kept)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the first process: the namespace ends with it, and everything in it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    _pipe(process.stdout).close()


def _processes(pid: int) -> int:
    """How many the program has; those that confine it are not counted.

    The system's own limit does not hold for root, whoever it says it is in its namespace.
    """
    try:
        return len(psutil.Process(pid).children(recursive=True)) - 1
    except psutil.Error:
        return 0


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise RuntimeError("the sandbox was started without pipes")
    return stream


def _outcome(end: End, status: int, output: bytes) -> Outcome:
    text = output.decode("utf-8", errors="replace")
    if end is not End.EXITED:
        return Outcome(end, None, text)
    if status == UNAVAILABLE and "sandbox:" in text:
        raise SandboxUnavailable(
            f"programs cannot be confined on this machine ({text.strip()[:200]}): it takes user namespaces "
            "and Landlock; run graders that execute code on one that has them"
        )
    if status < 0 or status > 128:
        return Outcome(End.KILLED, None, text)
    return Outcome(end, status, text)
