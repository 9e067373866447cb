"""Paired evaluation: both kernels on the same token ids, drift at every decision.

The inference kernel goes first and decides the tokens, sampled or given; the training kernel is
then run teacher-forced on exactly those. Only hidden states are kept whole: logits of both sides
exist for one block of positions at a time, so memory grows neither with tokens times vocabulary
nor with the number of prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from contracts.model import Phase, Sampling
from workers.drift import SIDES, drift, worth_fusing
from workers.kernels.protocol import Kernel, Request, Trace, trace_tokens

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
else:
    Floats = Any

_BLOCK = 128  # positions whose logits exist at once
_GROUP_REQUESTS = 32  # whose traces exist at once

Progress = Callable[[int, int, int], None]


class PairingError(Exception):
    """The two kernels did not run the same decisions: nothing between them can be compared.

    Attributes:
        request: id of the request.
        position: index of the first token that differs, or None.
    """

    def __init__(self, request: str, message: str, position: int | None = None) -> None:
        where = "" if position is None else f", position {position}"
        super().__init__(f"request {request!r}{where}: {message}")
        self.request = request
        self.position = position


class TokensDiffer(PairingError):
    """Token ids of the two kernels differ, or a kernel changed what it was given (F17)."""


class VocabulariesDiffer(PairingError):
    """The kernels do not answer over the same vocabulary."""


@dataclass(frozen=True, slots=True)
class PhaseDrift:
    """Every decision of one prompt that one phase computed.

    Attributes:
        offset: index in the trace of the first of the n decisions; they are contiguous.
        values: float64 [n] by metric key (`workers.drift.metric_names`).
        sides: float64 [n] by name (`workers.drift.SIDES`).
        upper: float64 [n] upper ends of the metrics of which `values` are lower ends [C1].
    """

    offset: int
    values: dict[str, Floats]
    sides: dict[str, Floats]
    upper: dict[str, Floats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PairedPrompt:
    """One prompt, evaluated.

    Attributes:
        request: as asked.
        token_ids: prompt and realised output.
        prompt_tokens: P.
        phases: drift by phase; a phase without decisions is absent.
        latency_s, ttft_s: of the inference kernel, seconds; None where it does not say.
        stopped: whether the output ended with an end-of-sequence token.
    """

    request: Request
    token_ids: tuple[int, ...]
    prompt_tokens: int
    phases: dict[Phase, PhaseDrift]
    latency_s: float
    ttft_s: float | None
    stopped: bool

    @property
    def decisions(self) -> int:
        """T - 1."""
        return len(self.token_ids) - 1


def paired(
    train: Kernel,
    inference: Kernel,
    requests: Sequence[Request],
    sampling: Sampling,
    *,
    ks: Sequence[int] = (),
    on_progress: Progress | None = None,
) -> Iterator[PairedPrompt]:
    """Evaluate every request on both kernels.

    Args:
        train: only ever run teacher-forced.
        inference: decides the tokens of requests without `output_ids`.
        ks: of `topk_agreement@k`.
        on_progress: called after each prompt with prompts done, prompts in all, decisions done.

    Yields one PairedPrompt a request, in order.

    Raises:
        InvalidRequest: a request neither kernel can run.
        PairingError: the kernels' tokens, lengths or vocabularies differ; no ratio is formed.
    """
    if train.vocab_size != inference.vocab_size:
        raise VocabulariesDiffer(
            "*", f"training answers over {train.vocab_size} ids, inference over {inference.vocab_size}"
        )
    fuse = worth_fusing(sum(request.most_tokens for request in requests))
    done = decisions = 0
    for group in groups(requests, min(trace_tokens(train), trace_tokens(inference))):
        served = inference.trace(group, sampling)
        _check_given(group, served)
        replay = [
            replace(request, output_ids=tuple(trace.token_ids[trace.prompt_tokens :]))
            for request, trace in zip(group, served, strict=True)
        ]
        learned = train.trace(replay, sampling)
        for request, there, here in zip(group, served, learned, strict=True):
            check_same(here, there.token_ids, there.prompt_tokens)
            _check_states(here, there)
            yield _prompt(train, inference, request, here, there, sampling.temperature, ks, fuse)
            done, decisions = done + 1, decisions + len(there.phases)
            if on_progress is not None:
                on_progress(done, len(requests), decisions)
        del served, learned, there, here  # before the next group's traces come to be


def groups(requests: Sequence[Request], most: int) -> Iterator[list[Request]]:
    """The requests in order, as many at a time as have `most` tokens together, or one."""
    group: list[Request] = []
    tokens = 0
    for request in requests:
        if group and (len(group) == _GROUP_REQUESTS or tokens + request.most_tokens > most):
            yield group
            group, tokens = [], 0
        group.append(request)
        tokens += request.most_tokens
    if group:
        yield group


def _check_given(requests: Sequence[Request], traces: Sequence[Trace]) -> None:
    if len(requests) != len(traces):
        raise PairingError("*", f"inference gave {len(traces)} traces for {len(requests)} requests")
    for request, trace in zip(requests, traces, strict=True):
        given = [*request.prompt_ids, *(request.output_ids or ())]
        ran = trace.token_ids if request.output_ids is not None else trace.token_ids[: len(given)]
        if trace.prompt_tokens != len(request.prompt_ids) or ran != given:
            at = _first_difference(given, ran)
            raise TokensDiffer(request.id, "inference did not run the token ids it was given", at)


def check_same(train: Trace, token_ids: list[int], prompt_tokens: int) -> None:
    """Raise TokensDiffer unless the training kernel ran the inference kernel's token ids."""
    if train.token_ids != token_ids or train.prompt_tokens != prompt_tokens:
        at = _first_difference(train.token_ids, token_ids)
        raise TokensDiffer(
            train.request,
            "training and inference ran different token ids; check tokenizer, chat template and BOS of both",
            at,
        )


def _check_states(train: Trace, inference: Trace) -> None:
    expected = len(inference.token_ids) - 1
    for name, trace in (("training", train), ("inference", inference)):
        if len(trace.states) != expected or len(trace.phases) != expected:
            raise PairingError(
                inference.request, f"{name} gave {len(trace.states)} hidden states for {expected} decisions"
            )


def _first_difference(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


@torch.inference_mode()
def _prompt(
    train: Kernel, inference: Kernel, request: Request, here: Trace, there: Trace,
    temperature: float, ks: Sequence[int], fuse: bool,
) -> PairedPrompt:  # fmt: skip
    tokens = torch.tensor(there.token_ids[1:], dtype=torch.long)
    blocks = [
        drift(
            torch.as_tensor(train.logits(here.states[start : start + _BLOCK])),
            torch.as_tensor(inference.logits(there.states[start : start + _BLOCK])),
            tokens[start : start + _BLOCK],
            temperature=temperature,
            vocab_size=inference.vocab_size,
            ks=ks,
            fuse=fuse,
        )
        for start in range(0, len(tokens), _BLOCK)
    ]
    names = blocks[0] if blocks else ()
    columns = {name: torch.cat([block[name] for block in blocks]).numpy() for name in names}
    return PairedPrompt(
        request=request,
        token_ids=tuple(there.token_ids),
        prompt_tokens=there.prompt_tokens,
        phases={phase: _phase_drift(columns, there.phases, phase) for phase in dict.fromkeys(there.phases)},
        latency_s=there.latency_s,
        ttft_s=there.ttft_s,
        stopped=there.stopped,
    )


def _phase_drift(columns: dict[str, Floats], phases: Sequence[Phase], phase: Phase) -> PhaseDrift:
    start = phases.index(phase)
    end = start + phases.count(phase)
    mine = {name: values[start:end] for name, values in columns.items()}
    sides = {name: mine.pop(name) for name in SIDES}
    return PhaseDrift(offset=start, values=mine, sides=sides)
