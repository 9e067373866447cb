"""A kernel's process seen from outside: started, watched, and killed for good.

One thread a process reads what it says, and ends it when it is silent, uses too much memory, or
dies; whoever waits for an answer is told why there will be none.
"""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from workers.kernels.protocol import KernelError
from workers.kernels.wire import BadMessage, Closed, Connection, Message

PACKAGES = ("contracts", "workers")
_SOURCES = Path(__file__).resolve().parent.parent.parent
_TICK_S = 0.25  # how often memory is looked at: what grows faster than this the system has to stop
_LINES, _LINE = 200, 2000  # kept of what the process says: lines, and bytes of one
# A server's secrets are no business of an engine's: only what engines are configured by goes on.
_ENVIRONMENT = (
    "PATH", "HOME", "LANG", "TZ", "TMPDIR", "USER", "LD_LIBRARY_PATH", "LD_PRELOAD", "CC", "CXX",
    "KC_IMAGE_DIGEST",
)  # fmt: skip
_PREFIXES = (
    "LC_", "XDG_", "OMP_", "KMP_", "GOMP_", "MKL_", "TORCH", "PYTORCH_", "VLLM_", "TRITON_", "GGML_",
    "HF_HUB_", "CUDA", "NVIDIA_", "NCCL_", "HIP_", "ROCR_", "TOKENIZERS_", "TQDM_",
)  # fmt: skip
_SECRETS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")


class KernelDied(KernelError):
    """The kernel's process ended by itself; `status` is its exit status, negative for a signal."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class KernelTimeout(KernelError):
    """The kernel took longer than it may to start, to answer, or to show that it lives; it was killed."""


class KernelOutOfMemory(KernelError):
    """The kernel used more memory than it may, or than there is; it was killed if it still ran."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a kernel's process may take.

    Attributes:
        start_s: seconds until it has loaded.
        call_s: seconds until it answers.
        silence_s: seconds without a sign of life; it gives one ten times as often.
        memory_bytes: resident memory of it and its own children, sharing counted once a process;
            None is no limit.
    """

    start_s: float = 900.0
    call_s: float = 3600.0
    silence_s: float = 60.0
    memory_bytes: int | None = None


class Child:
    """One process running `workers.kernels.host`, in a session of its own.

    Args:
        python: its interpreter.
        name: what errors call it.
        threads: of its numeric libraries; None leaves what the environment says.
    """

    def __init__(
        self, python: Path, name: str, limits: Limits | None = None, threads: int | None = None
    ) -> None:
        self._name, self._limits = name, limits or Limits()
        self._answers: queue.SimpleQueue[tuple[Message, list[int]] | KernelError] = queue.SimpleQueue()
        self._said: deque[str] = deque(maxlen=_LINES)
        self._heard = time.monotonic()
        self._ended = threading.Event()
        self.peak_bytes = 0
        self._room = _room()
        try:
            self._start(python, threads)
        except OSError as error:
            shutil.rmtree(self._room, ignore_errors=True)
            raise KernelDied(f"{name}: {python} cannot be started: {error.strerror or error}") from None
        self._watcher = threading.Thread(target=self._watch, name=f"kernel {name}", daemon=True)
        self._watcher.start()

    @property
    def pid(self) -> int:
        """Of the process, which leads a process group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs and is watched."""
        return not self._ended.is_set()

    def ask(
        self, message: Mapping[str, object], fds: Sequence[int] = (), timeout_s: float | None = None
    ) -> tuple[Message, list[int]]:
        """Send a call and wait for its answer; one call at a time.

        Raises KernelDied, KernelTimeout or KernelOutOfMemory; the process is dead then, as it is
        after anything else that interrupts the wait.
        """
        try:
            with contextlib.suppress(Closed):  # why it is closed comes as the answer
                self._connection.send(message, fds)
            wait = self._limits.call_s if timeout_s is None else timeout_s
            answer = self._answers.get(timeout=wait)
        except queue.Empty:
            self.kill()
            raise KernelTimeout(self._text(f"no answer to {message.get('call')} in {wait:g} s")) from None
        except BaseException:
            self.kill()
            raise
        if isinstance(answer, KernelError):
            self._answers.put(answer)  # to whoever asks next, too
            raise answer
        return answer

    def kill(self) -> None:
        """Kill the process and everything it started; nothing is left of it when this returns."""
        self._kill()
        if threading.current_thread() is not self._watcher:
            self._watcher.join()

    def _start(self, python: Path, threads: int | None) -> None:
        ours, theirs = socket.socketpair()
        watched, self._lifeline = os.pipe()
        fds = (theirs.fileno(), watched)
        try:
            self._process = subprocess.Popen(
                [str(python), "-P", "-s", "-m", "workers.kernels.host",
                 *map(str, fds), str(self._limits.silence_s / 10)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                pass_fds=fds, start_new_session=True, cwd=self._room, env=_environment(self._room, threads),
            )  # fmt: skip
        except OSError:
            ours.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(watched)
        ours.settimeout(self._limits.silence_s)  # of one message, not of an answer
        self._connection = Connection(ours)

    def _watch(self) -> None:
        try:
            failure = self._follow()
        except Exception as error:  # noqa: BLE001 - whoever waits must be told whatever it is
            failure = KernelDied(self._text(f"{type(error).__name__}: {error}"))
        self._kill()
        self._connection.close()
        os.close(self._lifeline)
        if self._process.stdout is not None:
            self._process.stdout.close()
        shutil.rmtree(self._room, ignore_errors=True)
        self._answers.put(failure)

    def _follow(self) -> KernelError:
        """Read until the process must end or has ended; says why."""
        output = self._process.stdout
        assert output is not None  # noqa: S101 - it is a pipe
        os.set_blocking(output.fileno(), False)
        looked = 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection.fileno(), selectors.EVENT_READ)
            selector.register(output, selectors.EVENT_READ)
            while not self._ended.is_set():
                for key, _ in selector.select(_TICK_S):
                    if key.fileobj is output:
                        if not self._listen(output.fileno()):
                            selector.unregister(output)
                    elif failure := self._receive():
                        self._listen(output.fileno())
                        return failure
                now = time.monotonic()
                if now - self._heard > self._limits.silence_s:
                    return KernelTimeout(self._text(f"no sign of life for {self._limits.silence_s:g} s"))
                if now - looked > _TICK_S:
                    looked = now
                    if failure := self._weigh():
                        return failure
        return KernelDied(self._text("it was closed"))

    def _receive(self) -> KernelError | None:
        try:
            message, fds = self._connection.receive()
        except Closed:
            return self._dead()
        except TimeoutError:
            return KernelTimeout(self._text("it stopped in the middle of a message"))
        except BadMessage as error:
            return KernelDied(self._text(f"it sent {error}"))
        self._heard = time.monotonic()
        if "alive" not in message:
            self._answers.put((message, fds))
        return None

    def _dead(self) -> KernelError:
        try:
            status = self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            return KernelDied(self._text("it closed its connection"))
        if status >= 0:
            return KernelDied(self._text(f"ended with status {status}"), status)
        number = signal.Signals(-status)
        hint = "; the system may have been out of memory" if number is signal.SIGKILL else ""
        return KernelDied(self._text(f"killed by {number.name}{hint}"), status)

    def _weigh(self) -> KernelError | None:
        used = 0
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            for one in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    used += one.memory_info().rss
        self.peak_bytes = max(self.peak_bytes, used)
        most = self._limits.memory_bytes
        if most is None or used <= most:
            return None
        return KernelOutOfMemory(
            self._text(f"{used / 2**30:.2f} GiB of memory, more than the {most / 2**30:.2f} GiB it may use")
        )

    def _listen(self, fd: int) -> bool:
        """Keep what the process says; whether it may say more."""
        try:
            text = os.read(fd, 1 << 16)
        except BlockingIOError:
            return True
        self._said.extend(line[:_LINE] for line in text.decode(errors="replace").splitlines() if line.strip())
        return bool(text)

    def _kill(self) -> None:
        self._ended.set()
        found: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            found = psutil.Process(self.pid).children(recursive=True)  # those who left the group too
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        for one in found:
            with contextlib.suppress(psutil.Error):
                one.kill()
        self._process.wait()

    def _text(self, what: str) -> str:
        last = "\n".join(list(self._said)[-12:])
        return f"{self._name}: {what}" + (f"; it last said:\n{last}" if last else "")


def _room() -> Path:
    """A directory from which this project's packages can be imported, and nothing else of its environment."""
    room = Path(tempfile.mkdtemp(prefix="kernel-"))
    for package in PACKAGES:
        (room / package).symlink_to(_SOURCES / package, target_is_directory=True)
    return room


def _environment(room: Path, threads: int | None) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if (name in _ENVIRONMENT or name.startswith(_PREFIXES)) and not name.endswith(_SECRETS)
    }
    if threads is not None:
        kept |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return kept | {"PYTHONPATH": str(room), "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
