"""What `workers.sandbox` starts: takes everything away from itself, then runs one Python program.

Run by path under `python -I -S`, so it imports the standard library alone. Of three processes the first
waits for the second, which is process 1 of a PID namespace: when it ends, the kernel ends whatever the
third, the program, has left behind.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import Any, NoReturn

UNAVAILABLE = 125  # the machine does not let a process be confined like this
_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
_PDEATHSIG, _NO_NEW_PRIVS = 1, 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 2, 1 << 3
_FIRST_ABI = (1 << 13) - 1  # every access the first version of Landlock knows
_INSIDE = 65534

libc = ctypes.CDLL(None, use_errno=True)


def main() -> NoReturn:
    """Confine, run, exit with the program's status; a signal is 128 and its number."""
    wanted: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    libc.prctl(_PDEATHSIG, signal.SIGKILL)
    uid, gid = os.getuid(), os.getgid()
    _checked("namespaces", libc.unshare(_NEWUSER | _NEWNET | _NEWPID | _NEWIPC | _NEWNS | _NEWUTS))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{_INSIDE} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{_INSIDE} {gid} 1")
    sys.exit(_status_of(_forked(lambda: _first(wanted))))


def _first(wanted: dict[str, Any]) -> NoReturn:
    """Process 1: a file system for the program alone, then the program; ends when it does."""
    libc.prctl(_PDEATHSIG, signal.SIGKILL)
    folder = os.fsencode(wanted["folder"])
    size = f"size={wanted['disk_bytes']},nr_inodes=256,mode=0700".encode()
    _checked("tmpfs", libc.mount(b"tmpfs", folder, b"tmpfs", 2 | 4, size))
    os.chdir(folder)
    Path("program.py").write_text(wanted["program"], encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    program = _forked(lambda: _program(wanted))
    while True:
        # Process 1 is left the children of those that ended; only the program's end is its end.
        pid, status = os.wait()
        if pid == program:
            os._exit(os.waitstatus_to_exitcode(status) % 256 if status & 127 == 0 else 128 + (status & 127))


def _program(wanted: dict[str, Any]) -> NoReturn:
    _checked("no_new_privs", libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
    _see_only(wanted["readable"], wanted["folder"])
    for name, value in wanted["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    os.closerange(3, 4096)
    environment = {"HOME": wanted["folder"], "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"}
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-B", "program.py"], environment)  # noqa: S606


def _see_only(readable: list[str], writable: str) -> None:
    """Landlock: read and execute beneath some directories, anything beneath one, nothing elsewhere."""
    handled = struct.pack("Q", _FIRST_ABI)
    ruleset = _checked("Landlock", libc.syscall(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0))
    look = _EXECUTE | _READ_FILE | _READ_DIR
    for path, allowed in [*((p, look) for p in readable), (writable, _FIRST_ABI)]:
        if Path(path).exists():
            directory = os.open(path, os.O_PATH)
            fitting = allowed if Path(path).is_dir() else allowed & (_EXECUTE | _READ_FILE)
            rule = struct.pack("=Qi", fitting, directory)
            _checked(f"Landlock, {path}", libc.syscall(_ADD_RULE, ruleset, 1, rule, 0))
            os.close(directory)
    _checked("Landlock", libc.syscall(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def _forked(run: Any) -> int:
    child = os.fork()
    if child == 0:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - a fork must never go on as its parent
            os.write(2, f"sandbox: {error}\n".encode())
            os._exit(UNAVAILABLE)
    return child


def _status_of(child: int) -> int:
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if status & 127 == 0 else 128 + (status & 127)


def _checked(what: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        os.write(2, f"sandbox: {what}: {os.strerror(number)}\n".encode())
        os._exit(UNAVAILABLE)
    return result


if __name__ == "__main__":
    main()
