"""Kernels that are asked the same again, or in another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from contracts.builds import Fingerprint
from contracts.model import Sampling
from workers.kernels.protocol import Kernel, Request, Trace

KEPT_TOKENS = 1 << 17  # of traces that are kept; more are run again


class Replay:
    """A kernel that remembers what it ran teacher-forced, up to `KEPT_TOKENS` tokens.

    A kernel is a function of its token ids up to how a batch is put together, which is why what it is
    compared with should be compared with the same run of it.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._traces: dict[tuple[tuple[int, ...], tuple[int, ...]], Trace] = {}
        self._tokens = 0

    def fingerprint(self) -> Fingerprint:
        """Of the kernel."""
        return self._kernel.fingerprint()

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._kernel.vocab_size

    def trace(self, requests: Sequence[Request], sampling: Sampling) -> list[Trace]:
        """Run what was not run before; one trace each, in their order."""
        new = [
            r for r in requests if r.output_ids is None or (r.prompt_ids, r.output_ids) not in self._traces
        ]
        ran = (
            {r.id: trace for r, trace in zip(new, self._kernel.trace(new, sampling), strict=True)}
            if new
            else {}
        )
        found = []
        for request in requests:
            if request.output_ids is None:
                found.append(ran[request.id])
                continue
            key = (request.prompt_ids, request.output_ids)
            trace = self._traces.get(key) or ran[request.id]
            if key not in self._traces and self._tokens + len(trace.token_ids) <= KEPT_TOKENS:
                self._traces[key] = trace
                self._tokens += len(trace.token_ids)
            found.append(replace(trace, request=request.id))
        return found

    def logits(self, states: Any) -> Any:
        """Raw logits [n, >= V] of hidden states [n, d]."""
        return self._kernel.logits(states)

    def close(self) -> None:
        """Release the weights and what is remembered."""
        self._traces.clear()
        self._kernel.close()
