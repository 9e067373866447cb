"""What every kernel offers, what it is asked, what it hands back, and how it fails.

Position `t` of a sequence of T tokens is the decision about token `t + 1`, so a trace has T - 1
decisions. Positions 0 .. P - 1 of a prompt of P tokens are prefill (P - 1 decides the first
output token), the later ones decode [S6].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from contracts.builds import Fingerprint
from contracts.model import Phase, Sampling

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    Array = Tensor | NDArray[np.float32]

TRACE_TOKENS = 8192


class KernelError(Exception):
    """A kernel cannot do what it was asked."""


class UnusableCheckpoint(KernelError):
    """The checkpoint directory cannot be loaded as this kernel needs it."""


class InvalidRequest(KernelError):
    """A request no kernel can run; `request` is its id, `position` the offending token's, if any."""

    def __init__(self, request: str, message: str, position: int | None = None) -> None:
        where = "" if position is None else f", position {position}"
        super().__init__(f"request {request!r}{where}: {message}")
        self.request = request
        self.position = position


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to run.

    Attributes:
        id: identity of the draw.
        prompt_ids: token ids of the prompt, at least one.
        output_ids: the realised output to run teacher-forced; None asks the kernel to sample it.
        max_new_tokens: how many tokens to sample at most; ignored with `output_ids`.
        seed: of this request's own random generator.
    """

    id: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...] | None
    max_new_tokens: int = 0
    seed: int = 0

    @property
    def most_tokens(self) -> int:
        """The longest the sequence can become."""
        new = self.max_new_tokens if self.output_ids is None else len(self.output_ids)
        return len(self.prompt_ids) + new


@dataclass(slots=True)
class Trace:
    """One sequence as a kernel ran it.

    Attributes:
        request: id of the request.
        token_ids: prompt and realised output, T of them.
        prompt_tokens: P.
        phases: [T - 1], the path that computed each decision.
        states: [T - 1, d], final hidden states after the final norm, in the kernel's dtype; of an
            engine whose output matrix cannot be had, its raw logits, float32 [T - 1, >= V]. A numpy
            array from a kernel that runs without torch.
        latency_s: seconds from the start of its batch to its last token.
        ttft_s: seconds from the start of its batch to its first output token, or to the end of
            prefill where no output was asked for.
        logprobs: for a sampled output, float32 log-probability of each output token at the
            sampling temperature over the full vocabulary (NaN where a logit was); else None.
        stopped: whether the output ended with an end-of-sequence token.
    """

    request: str
    token_ids: list[int]
    prompt_tokens: int
    phases: list[Phase]
    states: Array
    latency_s: float
    ttft_s: float
    logprobs: list[float] | None = None
    stopped: bool = False


class Kernel(Protocol):
    """A loaded kernel build."""

    def fingerprint(self) -> Fingerprint:
        """What is running."""
        ...

    @property
    def vocab_size(self) -> int:
        """V: ids the tokenizer knows, without the padding rows of the output matrix."""
        ...

    def trace(self, requests: Sequence[Request], sampling: Sampling) -> list[Trace]:
        """Run the requests; one trace each, in their order.

        With `output_ids` a request is run teacher-forced; without, its output is sampled at
        `sampling` and ends with an end-of-sequence token or at `max_new_tokens`.

        Raises InvalidRequest before anything has run.
        """
        ...

    def logits(self, states: Any) -> Array:
        """Raw logits [n, >= V] of n rows of a trace's states, in the kernel's own dtype."""
        ...

    def close(self) -> None:
        """Release the weights; nothing else may be called afterwards."""
        ...


def trace_tokens(kernel: Kernel) -> int:
    """The most tokens whose traces should exist at once; a kernel whose states are large says fewer."""
    return getattr(kernel, "trace_tokens", None) or TRACE_TOKENS


def phases(prompt_tokens: int, tokens: int) -> list[Phase]:
    """The phase of each of the `tokens - 1` decisions."""
    prefill = min(prompt_tokens, tokens - 1)
    return [Phase.PREFILL] * prefill + [Phase.DECODE] * (tokens - 1 - prefill)


def check_requests(requests: Sequence[Request], *, vocab_size: int, positions: int) -> None:
    """Raise InvalidRequest at the first request that cannot be run.

    Args:
        vocab_size: ids must be in [0, vocab_size).
        positions: the longest sequence the model was made for.
    """
    for request in requests:
        if not request.prompt_ids:
            raise InvalidRequest(request.id, "the prompt is empty; it needs at least one token")
        if request.output_ids is None and request.max_new_tokens < 1:
            raise InvalidRequest(
                request.id, "nothing to sample: give output_ids or max_new_tokens of at least 1"
            )
        if request.most_tokens > positions:
            raise InvalidRequest(
                request.id,
                f"{request.most_tokens} tokens, and the model has {positions} positions; shorten it",
            )
        for position, token in enumerate((*request.prompt_ids, *(request.output_ids or ()))):
            if not 0 <= token < vocab_size:
                raise InvalidRequest(
                    request.id,
                    f"token {token} is outside the vocabulary of {vocab_size}; "
                    "was it made with this checkpoint's tokenizer?",
                    position,
                )
