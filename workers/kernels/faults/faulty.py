"""A kernel with faults in it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from contracts.builds import Fingerprint
from contracts.model import Sampling
from workers.kernels.faults import attention
from workers.kernels.faults.models import FaultNotApplicable
from workers.kernels.faults.registry import FAULTS
from workers.kernels.models import Model
from workers.kernels.protocol import Kernel, Request, Trace

TOP_P = 0.8
STAND_IN = -9999.0  # what servers send over HTTP where a log-probability is minus infinity
ONE_IN = 6  # sequences F2 breaks one of
FLATTER = 0.35  # F2's logits at one decision
BATCH, LEAK, MOST = 8, 0.01, 0.5  # F15: logits shrink by LEAK after every BATCH requests


def inject(kernel: Any, faults: Sequence[str]) -> Faulty:
    """The kernel with these faults in it.

    Args:
        kernel: of engine `torch` or `torch-serving`; it is changed and must not be used by itself after.
        faults: ids of `FAULTS`.

    Raises FaultNotApplicable when it has nothing a fault could break, and then it is unusable.
    """
    model = getattr(kernel, "_model", None)
    if not isinstance(model, Model):
        raise FaultNotApplicable(f"faults are for torch kernels, not for {type(kernel).__name__}")
    steps = attention.Steps()
    for name in faults:
        fault = FAULTS[name]
        if fault.cached and not steps.watch(kernel):
            raise FaultNotApplicable(f"{name} needs a kernel that decodes from a KV cache: torch-serving")
        if fault.weights is not None:
            fault.weights(model)
        elif fault.attend is not None:
            attention.install(model, fault.attend, steps)
    return Faulty(kernel, faults)


class Faulty:
    """A kernel with faults; those of what it hands out are made here.

    With F4 its states have a last column more, 1 where a decision was of a sampled token.
    """

    def __init__(self, kernel: Kernel, faults: Sequence[str]) -> None:
        self._kernel, self._faults = kernel, tuple(faults)
        self._temperature = 1.0
        self._requests = 0
        self._broken = False

    def fingerprint(self) -> Fingerprint:
        """Of the kernel, with the flag `fault`: evidence of it can never be taken for a clean one's."""
        clean = self._kernel.fingerprint()
        changes: dict[str, Any] = {"flags": {**clean.flags, "fault": "+".join(self._faults)}}
        if "F6" in self._faults:
            changes["compile_mode"] = "fused-norm"
        return clean.model_copy(update=changes)

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._kernel.vocab_size

    def trace(self, requests: Sequence[Request], sampling: Sampling) -> list[Trace]:
        """Run the requests; one trace each, in their order. Raises InvalidRequest."""
        self._temperature = sampling.temperature
        if "F17" in self._faults:
            requests = [replace(r, prompt_ids=r.prompt_ids[1:] or r.prompt_ids) for r in requests]
        sampled = sampling.model_copy(update={"top_p": TOP_P}) if "F4" in self._faults else sampling
        traces = self._kernel.trace(requests, sampled)
        for request, trace in zip(requests, traces, strict=True):
            trace.states = self._spoilt(request, trace)
            trace.logprobs = None if trace.logprobs is None else self._reported(trace)
            self._requests += 1
        return traces

    def _spoilt(self, request: Request, trace: Trace) -> Tensor:
        states = torch.as_tensor(trace.states).clone()
        middle = len(states) // 2
        if "F2" in self._faults and chosen(request):
            states[middle : middle + 1] *= FLATTER
        if "F15" in self._faults:
            states *= 1.0 - min(MOST, LEAK * (self._requests // BATCH))
        if "F13" in self._faults and not self._broken and len(states):
            states[middle] = torch.nan
            self._broken = True
        if "F4" in self._faults:
            mark = states.new_zeros(len(states), 1)
            mark[trace.prompt_tokens - 1 :] = 1.0
            states = torch.cat((states, mark), -1)
        return states

    @torch.inference_mode()
    def _reported(self, trace: Trace) -> list[float]:
        """Log-probabilities, float32, of the sampled tokens as this kernel has them."""
        first = trace.prompt_tokens - 1
        scores = self.logits(torch.as_tensor(trace.states)[first:])[:, : self.vocab_size].float()
        chosen_ids = torch.tensor(trace.token_ids[trace.prompt_tokens :])[:, None]
        found = (scores / self._temperature).log_softmax(-1).gather(-1, chosen_ids)
        return [float(value) for value in found[:, 0]]

    @torch.inference_mode()
    def logits(self, states: Tensor) -> Tensor:
        """Raw logits [n, >= V] of rows of a trace's states, as the faulty kernel reports them."""
        sampled = None
        if "F4" in self._faults:
            states, sampled = states[:, :-1], states[:, -1:] > 0
        logits = torch.as_tensor(self._kernel.logits(states))
        if sampled is not None:
            outside = ~kept(logits[:, : self.vocab_size] / self._temperature, TOP_P)
            logits[:, : self.vocab_size].masked_fill_(outside & sampled, STAND_IN)
        if "F3" in self._faults:
            # Whoever divides by T finds the distribution at T = 1.
            logits = logits * self._temperature
        return logits

    def close(self) -> None:
        """Release the weights."""
        self._kernel.close()


def chosen(request: Request) -> bool:
    """Whether F2 breaks a sequence: by a hash of its prompt, so always the same ones."""
    text = ",".join(map(str, request.prompt_ids)).encode()
    return hashlib.sha256(text).digest()[0] % ONE_IN == 0


def kept(scores: Tensor, top_p: float) -> Tensor:
    """The smallest sets of most likely tokens that hold `top_p`, bool [n, V]; sums in float32."""
    probabilities, ids = scores.float().softmax(-1).sort(dim=-1, descending=True, stable=True)
    inside = probabilities.cumsum(-1) - probabilities < top_p
    return torch.zeros_like(inside).scatter(-1, ids, inside)
