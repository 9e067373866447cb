"""A kernel that runs in a process of its own, under the interpreter its build names.

`RemoteKernel` is a `workers.kernels.protocol.Kernel`; `workers.kernels.host` is the other side. Hidden
states and one block of logits at a time are seen here through shared memory and never copied.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from contracts.builds import BuildSpec, Fingerprint, InvalidBuild
from contracts.model import Phase, Sampling
from workers.kernels.child import Child, KernelOutOfMemory, Limits
from workers.kernels.protocol import InvalidRequest, KernelError, Request, Trace, UnusableCheckpoint
from workers.kernels.wire import Buffer, Layout, Message

_TYPES: dict[str, type[KernelError]] = {
    "UnusableCheckpoint": UnusableCheckpoint,
    "KernelOutOfMemory": KernelOutOfMemory,
    "KernelError": KernelError,
}


class RemoteKernel:
    """A kernel in its own process; see `workers.kernels.protocol.Kernel`.

    Every call raises KernelDied, KernelTimeout or KernelOutOfMemory when the process is lost, and
    what the kernel itself raises.

    Args:
        build: what the process loads.
        checkpoint: directory.
        python: the interpreter; None is this one.
        limits: of time and memory.
        threads: of its numeric libraries; None means as many as this process's torch uses.

    Raises InvalidBuild and UnusableCheckpoint as `workers.kernels.loading.load` does.
    """

    def __init__(
        self,
        build: BuildSpec,
        checkpoint: Path | str,
        python: Path | None = None,
        limits: Limits | None = None,
        threads: int | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._name = str(build)
        self._inbox: Buffer | None = None
        self._outbox: dict[int, Buffer] = {}
        self._unused: deque[int] = deque()
        self._child = Child(
            python or Path(sys.executable), self._name, self._limits, threads or torch.get_num_threads()
        )
        try:
            loaded, _ = self._call(
                {"call": "load", "build": self._name, "checkpoint": str(Path(checkpoint).absolute())},
                timeout_s=self._limits.start_s,
            )
        except BaseException:
            self.close()
            raise
        self._fingerprint = Fingerprint.model_validate(loaded["fingerprint"])
        self._vocab_size = int(loaded["vocab_size"])
        self.trace_tokens: int | None = loaded["trace_tokens"]
        self.states_are_logits: bool = loaded["states_are_logits"]

    def fingerprint(self) -> Fingerprint:
        """What is running."""
        return self._fingerprint

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._vocab_size

    @property
    def peak_bytes(self) -> int:
        """The most resident memory its process was seen with."""
        return self._child.peak_bytes

    @property
    def alive(self) -> bool:
        """Whether its process runs; where not, every call says why."""
        return self._child.alive

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._child.pid

    def trace(self, requests: Sequence[Request], sampling: Sampling) -> list[Trace]:
        """Run the requests; one trace each, in their order. Raises InvalidRequest."""
        asked = [
            {
                "id": request.id,
                "prompt_ids": request.prompt_ids,
                "output_ids": request.output_ids,
                "max_new_tokens": request.max_new_tokens,
                "seed": request.seed,
            }
            for request in requests
        ]
        found, fds = self._call({"call": "trace", "requests": asked, "sampling": sampling.model_dump()})
        buffer = Buffer.attach(fds[0])
        return [
            Trace(
                request=told["request"],
                token_ids=told["token_ids"],
                prompt_tokens=told["prompt_tokens"],
                phases=[Phase(phase) for phase in told["phases"]],
                states=Layout.read(told["states"]).torch(buffer.map),
                latency_s=told["latency_s"],
                ttft_s=told["ttft_s"],
                logprobs=told["logprobs"],
                stopped=told["stopped"],
            )
            for told in found["traces"]
        ]

    def logits(self, states: Tensor) -> Tensor:
        """Raw logits [n, >= V] of hidden states [n, d], in the kernel's own dtype, on the CPU."""
        if self.states_are_logits:
            return states
        layout, fds = Layout.of(states), list[int]()
        if self._inbox is None or self._inbox.size < layout.end:
            self._inbox, fd = Buffer.create(layout.end)
            fds.append(fd)
        self._inbox.store(states, layout)
        free = [self._unused.popleft() for _ in range(len(self._unused))]
        found, made = self._call({"call": "logits", "states": layout.message(), "free": free}, fds)
        for number in found["dropped"]:
            del self._outbox[number]
        number = found["buffer"]
        if made:
            self._outbox[number] = Buffer.attach(made[0])
        return self._lent(number, Layout.read(found["logits"]))

    def close(self) -> None:
        """End the process; nothing else may be called afterwards."""
        self._child.kill()
        self._outbox.clear()
        self._inbox = None

    def _lent(self, number: int, layout: Layout) -> Tensor:
        """Logits where the process wrote them; it may write there again once the tensor is gone."""
        lent = memoryview(self._outbox[number].map)
        weakref.finalize(lent, self._unused.append, number).atexit = False
        logits: Tensor = layout.torch(lent)
        return logits

    def _call(
        self, message: Message, fds: Sequence[int] = (), timeout_s: float | None = None
    ) -> tuple[Message, list[int]]:
        """One call and its result. `fds` are closed; those that come back are the caller's."""
        try:
            answer, found = self._child.ask(message, fds, timeout_s)
        finally:
            for fd in fds:
                os.close(fd)
        if "error" in answer:
            raise _error(self._name, answer["error"])
        return answer["result"], found


def _error(name: str, told: Message) -> Exception:
    """What the process raised, as the type it is here."""
    kind, message = told["type"], told["message"]
    if kind == "InvalidRequest":
        return InvalidRequest(told["request"], message, told["position"])
    if kind == "InvalidBuild":
        return InvalidBuild(message, told["word"])
    if kind in _TYPES:
        return _TYPES[kind](message)
    return KernelError(f"{name}: {kind}: {message}")
