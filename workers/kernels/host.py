"""The process a kernel lives in: `python -m workers.kernels.host FD`, under any interpreter with the engine.

It needs `contracts` and `workers` to be importable, pydantic, and the engine's own packages. It says
that it lives from a thread of its own, does one call at a time, and kills itself and everything it
started when the process that started it is gone.

Calls, each answered by `{"result": ...}` or `{"error": ...}`:

    {"call": "load", "build": "torch:dtype=float32", "checkpoint": "..."}
    {"call": "trace", "requests": [...], "sampling": {...}}    states in a buffer made for the answer
    {"call": "logits", "states": LAYOUT, "free": [N, ...]}     logits in a buffer of the pool
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from contracts.builds import InvalidBuild, parse_build
from contracts.model import Sampling
from workers.kernels.loading import load
from workers.kernels.protocol import InvalidRequest, Kernel, KernelError, Request, UnusableCheckpoint
from workers.kernels.wire import Buffer, Closed, Connection, Layout, Message

Answer = tuple[Message, list[int]]  # the descriptors are closed once sent
_FREE = 4  # buffers of logits kept for the next blocks
_MEMORY = ("MemoryError", "OutOfMemoryError")


class Host:
    """A kernel and the buffers it shares with the process that asks."""

    def __init__(self) -> None:
        self._kernel: Kernel | None = None
        self._input: Buffer | None = None
        self._pool: dict[int, Buffer] = {}
        self._free: list[int] = []
        self._made = 0

    def __call__(self, message: Message, fds: list[int]) -> Answer:
        """Do one call. What it raises is the answer to it."""
        calls: dict[str, Callable[[Message, list[int]], Answer]] = {
            "load": self._load, "trace": self._trace, "logits": self._logits,
        }  # fmt: skip
        return calls[message["call"]](message, fds)

    def close(self) -> None:
        """Release the kernel."""
        if self._kernel is not None:
            self._kernel.close()

    @property
    def _loaded(self) -> Kernel:
        if self._kernel is None:
            raise KernelError("nothing is loaded")
        return self._kernel

    def _load(self, message: Message, _fds: list[int]) -> Answer:
        kernel = self._kernel = load(parse_build(message["build"]), Path(message["checkpoint"]))
        return {
            "fingerprint": kernel.fingerprint().model_dump(mode="json"),
            "vocab_size": kernel.vocab_size,
            "trace_tokens": getattr(kernel, "trace_tokens", None),
            "states_are_logits": getattr(kernel, "states_are_logits", False),
        }, []

    def _trace(self, message: Message, _fds: list[int]) -> Answer:
        requests = [
            Request(
                id=one["id"],
                prompt_ids=tuple(one["prompt_ids"]),
                output_ids=None if one["output_ids"] is None else tuple(one["output_ids"]),
                max_new_tokens=one["max_new_tokens"],
                seed=one["seed"],
            )
            for one in message["requests"]
        ]
        traces = self._loaded.trace(requests, Sampling.model_validate(message["sampling"]))
        layouts: list[Layout] = []
        for trace in traces:
            layouts.append(Layout.of(trace.states, layouts[-1].end if layouts else 0))
        buffer, fd = Buffer.create(layouts[-1].end if layouts else 0)
        for trace, layout in zip(traces, layouts, strict=True):
            buffer.store(trace.states, layout)
        told = [
            {
                "request": trace.request,
                "token_ids": trace.token_ids,
                "prompt_tokens": trace.prompt_tokens,
                "phases": [phase.value for phase in trace.phases],
                "states": layout.message(),
                "latency_s": trace.latency_s,
                "ttft_s": trace.ttft_s,
                "logprobs": trace.logprobs,
                "stopped": trace.stopped,
            }
            for trace, layout in zip(traces, layouts, strict=True)
        ]
        return {"traces": told}, [fd]

    def _logits(self, message: Message, fds: list[int]) -> Answer:
        if fds:
            self._input = Buffer.attach(fds.pop())
        dropped = [number for number in map(self._release, message["free"]) if number is not None]
        layout = Layout.read(message["states"])
        if self._input is None:
            raise KernelError("no buffer to read hidden states from")
        # An engine without torch computes with numpy, which has no bfloat16 and needs none.
        memory = self._input.map
        states = layout.torch(memory) if "torch" in sys.modules else layout.numpy(memory)
        logits = self._loaded.logits(states)
        found = Layout.of(logits)
        number, made = self._buffer(found.end)
        self._pool[number].store(logits, found)
        return {"logits": found.message(), "buffer": number, "dropped": dropped}, made

    def _release(self, number: int) -> int | None:
        """Take a buffer back; the number of the one given up for it, if any."""
        self._free.append(number)
        if len(self._free) <= _FREE:
            return None
        del self._pool[self._free[0]]
        return self._free.pop(0)

    def _buffer(self, size: int) -> tuple[int, list[int]]:
        for number in self._free:
            if self._pool[number].size >= size:
                self._free.remove(number)
                return number, []
        self._made += 1
        self._pool[self._made], fd = Buffer.create(size)
        return self._made, [fd]


def describe(error: Exception) -> Message:
    """An error as a message: its type by name, and what that type is made of."""
    told: Message = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, InvalidRequest):
        bare = InvalidRequest(error.request, "", error.position)
        told |= {
            "type": "InvalidRequest",
            "message": told["message"].removeprefix(str(bare)),
            "request": error.request,
            "position": error.position,
        }
    elif isinstance(error, InvalidBuild):
        told |= {"type": "InvalidBuild", "word": error.word}
    elif isinstance(error, UnusableCheckpoint):
        told["type"] = "UnusableCheckpoint"
    elif isinstance(error, KernelError):
        told["type"] = "KernelError"
    elif type(error).__name__ in _MEMORY:
        told["type"] = "KernelOutOfMemory"
    return told


def serve(connection: Connection, beat_s: float, call: Host) -> None:
    """Answer calls until the other side closes its end."""
    lock, done = threading.Lock(), threading.Event()

    def beat() -> None:
        while not done.wait(beat_s):
            with contextlib.suppress(Closed), lock:
                connection.send({"alive": True})

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()
    try:
        while True:
            message, fds = connection.receive()
            try:
                answer, made = call(message, fds)
                body: Message = {"result": answer}
            except Exception as error:  # noqa: BLE001 - every error is an answer
                if not isinstance(error, KernelError | InvalidBuild):
                    traceback.print_exc()
                body, made = {"error": describe(error)}, []
            with lock:
                connection.send(body, made)
            for fd in (*made, *fds):
                os.close(fd)
    except Closed:
        done.set()


def _die_with(fd: int) -> None:
    """Kill this process group once the write end of the pipe `fd` is closed, whatever it is doing."""

    def wait() -> None:
        while os.read(fd, 1):
            pass
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def main(argv: Sequence[str]) -> int:
    """Serve the kernel; arguments are the socket, the pipe to die with, and seconds between heartbeats."""
    sock, pipe, beat_s = int(argv[0]), int(argv[1]), float(argv[2])
    for fd in (sock, pipe):
        os.set_inheritable(fd, False)  # what the engine starts must not keep them open
    _die_with(pipe)
    host = Host()
    serve(Connection(socket.socket(fileno=sock)), beat_s, host)
    host.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
