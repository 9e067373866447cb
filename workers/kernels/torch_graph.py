"""Engine `torch`: the plain Hugging Face graph, teacher-forced.

The program gradients are taken through: with `grad` under autograd as a trainer runs it. Without a
cache, sampling runs the whole graph again for every token: slow, and honest about which program decided.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from contracts.builds import Fingerprint, InvalidBuild
from contracts.model import Sampling
from workers.kernels.models import (
    program_flags,
    read_model,
    running_attention,
    running_device,
    running_dtype,
)
from workers.kernels.protocol import Request, Trace, check_requests, phases
from workers.kernels.quantize import quantize
from workers.kernels.sampling import generator, sample

_TOKENS = 1024  # of one forward pass, padding included
_PADDING = 1 / 8  # the largest share of it that may be padding


class TorchGraph:
    """The kernel of engine `torch`; see `workers.kernels.protocol.Kernel`.

    Args:
        checkpoint: directory.
        dtype: float32, bfloat16 or float16.
        attn: sdpa or eager.
        weights: int8, int4 or int8-per-tensor, of the body's linear layers; None leaves them.
        cache: on or off; on, a request runs by itself, its outputs one at a time from a KV cache.
        compile: on or off; on, the body is compiled whole by `torch.compile`; what cannot be, or would
            have to be compiled too often, is an error and never runs eagerly.
        grad: on or off; on, the forward pass records what a backward pass would need.
        checkpointing: on or off; on, with activation checkpointing, which implies `grad`.

    Raises UnusableCheckpoint, CannotQuantize, and InvalidBuild for options that exclude each other.
    """

    def __init__(
        self,
        checkpoint: Path,
        dtype: str = "float32",
        attn: str = "sdpa",
        weights: str | None = None,
        cache: str = "off",
        compile: str = "off",
        grad: str = "off",
        checkpointing: str = "off",
    ) -> None:
        self._cached, self._compiled = cache == "on", compile == "on"
        self._checkpointing = checkpointing == "on"
        self._grad = grad == "on" or self._checkpointing
        if self._grad and (self._cached or weights):
            raise InvalidBuild("torch: nothing is trained through a KV cache or quantised weights", "grad")
        self._model = read_model(checkpoint, dtype=dtype, attn=attn)
        self._dtype, self._attn, self._weights = dtype, attn, weights
        self._scales = quantize(self._model, weights)
        if self._grad:
            _prepare_training(self._model.body, checkpointing=self._checkpointing)
        if self._compiled:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # raised by the compiler's own imports
                torch._dynamo.config.fail_on_recompile_limit_hit = True
                self._model.body = torch.compile(self._model.body, dynamic=True, fullgraph=True)

    def fingerprint(self) -> Fingerprint:
        """What is running."""
        return Fingerprint(
            engine="torch",
            version=torch.__version__,
            dtype=running_dtype(self._model),
            quantization=self._weights or "none",
            scales=self._scales,
            attention_backend=running_attention(self._model),
            kv_cache_dtype=self._dtype if self._cached else "none",
            compile_mode="default" if self._compiled else "eager",
            parallelism="tp1",
            device=running_device(self._model),
            flags={
                **program_flags(self._model.config),
                "grad": self._grad,
                "checkpointing": self._checkpointing,
            },
        )

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._model.vocab_size

    def trace(self, requests: Sequence[Request], sampling: Sampling) -> list[Trace]:
        """Run the requests; one trace each, in their order. Raises InvalidRequest."""
        check_requests(requests, vocab_size=self.vocab_size, positions=self._model.positions)
        if self._cached:
            return [self._stepped(request, sampling) for request in requests]
        traces: dict[int, Trace] = {}
        forced = [i for i, request in enumerate(requests) if request.output_ids is not None]
        for batch in _batches(forced, [r.most_tokens - 1 for r in requests]):
            traces.update(zip(batch, self._forced([requests[i] for i in batch]), strict=True))
        for i, request in enumerate(requests):
            if request.output_ids is None:
                traces[i] = self._stepped(request, sampling)
        return [traces[i] for i in range(len(requests))]

    @torch.inference_mode()
    def logits(self, states: Tensor) -> Tensor:
        """Raw logits [n, >= V] of hidden states [n, d]."""
        return self._model.head(states)

    def close(self) -> None:
        """Release the weights."""
        del self._model

    def _states(self, ids: Tensor, cache: DynamicCache | None = None) -> Tensor:
        # Under autograd the graph is recorded, and freed again with the states it made.
        with torch.enable_grad() if self._grad else torch.inference_mode():
            states: Tensor = self._model.body(
                input_ids=ids, past_key_values=cache, use_cache=cache is not None
            ).last_hidden_state
        return states.detach()

    def _forced(self, requests: list[Request]) -> list[Trace]:
        tokens = [[*r.prompt_ids, *(r.output_ids or ())] for r in requests]
        started = time.perf_counter()
        # Padding stands to the right, where causal attention never looks from a real token,
        # so the batch needs no mask. The last token decides nothing and is not run.
        ids = torch.zeros(len(tokens), max(map(len, tokens)) - 1, dtype=torch.long)
        for row, sequence in zip(ids, tokens, strict=True):
            row[: len(sequence) - 1] = torch.tensor(sequence[:-1])
        empty = torch.empty(len(ids), 0, self._model.config.hidden_size)
        states = self._states(ids) if ids.shape[1] else empty
        elapsed = time.perf_counter() - started
        return [
            Trace(
                request=request.id,
                token_ids=sequence,
                prompt_tokens=len(request.prompt_ids),
                phases=phases(len(request.prompt_ids), len(sequence)),
                states=states[i, : len(sequence) - 1],
                latency_s=elapsed,
                ttft_s=elapsed,
            )
            for i, (request, sequence) in enumerate(zip(requests, tokens, strict=True))
        ]

    def _stepped(self, request: Request, sampling: Sampling) -> Trace:
        """Token by token: sampled, or as given."""
        source, started = generator(request.seed), time.perf_counter()
        prompt, given = len(request.prompt_ids), request.output_ids
        tokens, ttft = list(request.prompt_ids), 0.0
        cache = DynamicCache(config=self._model.config) if self._cached else None
        states: list[Tensor] = []
        logprobs: list[float] = []
        for step in range(request.max_new_tokens if given is None else len(given)):
            fresh = tokens if cache is None or not states else tokens[-1:]
            found = self._states(torch.tensor([fresh]), cache)[0]
            states.append(found if not states else found[-1:])
            if given is None:
                logits = self.logits(found[-1:])[0, : self.vocab_size]
                token, logprob = sample(logits, sampling, source)
                logprobs.append(logprob)
            else:
                token = given[step]
            tokens.append(token)
            ttft = ttft or time.perf_counter() - started
            if given is None and token in self._model.eos:
                break
        if not states:  # nothing to generate: the last token of the prompt decides nothing
            states.append(self._states(torch.tensor([tokens]), cache)[0, :-1])
        elapsed = time.perf_counter() - started
        return Trace(
            request=request.id,
            token_ids=tokens,
            prompt_tokens=prompt,
            phases=phases(prompt, len(tokens)),
            states=torch.cat(states),
            latency_s=elapsed,
            ttft_s=ttft or elapsed,
            logprobs=logprobs if given is None else None,
            stopped=len(tokens) > prompt and tokens[-1] in self._model.eos,
        )


def _prepare_training(body: Any, *, checkpointing: bool) -> None:
    """As a trainer has it: parameters want gradients, and nothing is dropped at random."""
    body.requires_grad_(True)
    if checkpointing:
        body.gradient_checkpointing_enable({"use_reentrant": False})
        body.train()  # checkpoints are only made in training
        for module in body.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            if isinstance(getattr(module, "attention_dropout", None), float):
                module.attention_dropout = 0.0


def _batches(indices: Sequence[int], lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices grouped by similar length, within the limits on tokens and on padding."""
    batch: list[int] = []
    for i in sorted(indices, key=lambda i: -lengths[i]):
        width = lengths[batch[0]] if batch else lengths[i]
        real = sum(lengths[j] for j in batch) + lengths[i]
        area = width * (len(batch) + 1)
        if batch and (area > _TOKENS or area - real > _PADDING * area):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
