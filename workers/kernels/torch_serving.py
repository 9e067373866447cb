"""Engine `torch-serving`: what a server runs, a different program from the training graph.

Requests are batched with padding to the left, their prompts prefilled in chunks into a KV cache,
their outputs decoded one token at a time from it; a request that has finished leaves the batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig

from contracts.builds import Fingerprint
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


class TorchServing:
    """The kernel of engine `torch-serving`; see `workers.kernels.protocol.Kernel`.

    Args:
        checkpoint: directory.
        dtype: float32, bfloat16 or float16, of weights, activations and cache.
        attn: sdpa or eager.
        chunk: positions of one prefill step.
        batch: the most requests in flight.
        rope_theta: overrides the checkpoint's RoPE base.
        weights: int8, int4 or int8-per-tensor, of the body's linear layers; None leaves them.
    """

    def __init__(
        self,
        checkpoint: Path,
        dtype: str = "bfloat16",
        attn: str = "sdpa",
        chunk: int = 256,
        batch: int = 8,
        rope_theta: float | None = None,
        weights: str | None = None,
    ) -> None:
        self._model = read_model(checkpoint, dtype=dtype, attn=attn, rope_theta=rope_theta)
        self._dtype, self._attn, self._chunk, self._batch = dtype, attn, chunk, batch
        self._weights = weights
        self._scales = quantize(self._model, weights)

    def fingerprint(self) -> Fingerprint:
        """What is running."""
        return Fingerprint(
            engine="torch-serving",
            version=torch.__version__,
            dtype=running_dtype(self._model),
            quantization=self._weights or "none",
            attention_backend=running_attention(self._model),
            kv_cache_dtype=self._dtype,
            scales=self._scales,
            parallelism="tp1",
            device=running_device(self._model),
            flags={
                **program_flags(self._model.config),
                "chunk": self._chunk,
                "batch": self._batch,
            },
        )

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._model.vocab_size

    @torch.inference_mode()
    def trace(self, requests: Sequence[Request], sampling: Sampling) -> list[Trace]:
        """Run the requests; one trace each, in their order. Raises InvalidRequest."""
        check_requests(requests, vocab_size=self.vocab_size, positions=self._model.positions)
        order = sorted(
            range(len(requests)), key=lambda i: (len(requests[i].prompt_ids), requests[i].most_tokens)
        )
        traces: dict[int, Trace] = {}
        for chosen in _batches(order, [len(r.prompt_ids) for r in requests], self._batch):
            served = self._serve([requests[i] for i in chosen], sampling)
            traces.update(zip(chosen, served, strict=True))
        return [traces[i] for i in range(len(requests))]

    @torch.inference_mode()
    def logits(self, states: Tensor) -> Tensor:
        """Raw logits [n, >= V] of hidden states [n, d]."""
        return self._model.head(states)

    def close(self) -> None:
        """Release the weights."""
        del self._model

    def _serve(self, requests: list[Request], sampling: Sampling) -> list[Trace]:
        started = time.perf_counter()
        running = [_Running(request) for request in requests]
        batch = _Batch(requests, self._model.config)
        last = self._prefill(batch, running)
        active = [i for i, one in enumerate(running) if one.wants_more(self._model.eos)]
        now = time.perf_counter() - started
        for one in running:
            one.ttft_s = one.latency_s = now
        last = last[active]
        batch.keep(active)
        while active:
            self._choose([running[i] for i in active], last, sampling)
            now = time.perf_counter() - started
            for i in active:
                running[i].finished(now)
            going = [j for j, i in enumerate(active) if running[i].wants_more(self._model.eos)]
            active = [active[j] for j in going]
            batch.keep(going)
            if active:
                last = self._decode(batch, [running[i] for i in active])
        return [one.trace(self._model.eos) for one in running]

    def _prefill(self, batch: _Batch, running: list[_Running]) -> Tensor:
        """Run the prompts through in chunks; the last hidden state [b, d] of each."""
        width = batch.ids.shape[1]
        states = torch.empty(0)
        for start in range(0, width, self._chunk):
            end = min(start + self._chunk, width)
            states = self._step(batch, batch.ids[:, start:end], batch.positions[:, start:end], end)
            for i, one in enumerate(running):
                pad = width - len(one.request.prompt_ids)
                if end > pad:
                    one.states.append(states[i, max(pad - start, 0) :].clone())
        return states[:, -1]

    def _decode(self, batch: _Batch, running: list[_Running]) -> Tensor:
        """Feed each request's newest token; its hidden state [b, d]."""
        batch.mask = torch.cat((batch.mask, batch.mask.new_ones(len(running), 1)), -1)
        newest = torch.tensor([[one.output[-1]] for one in running])
        positions = torch.tensor([[len(one.request.prompt_ids) + len(one.output) - 1] for one in running])
        states = self._step(batch, newest, positions, batch.mask.shape[1])[:, 0]
        for one, state in zip(running, states, strict=True):
            one.states.append(state[None])
        return states

    def _step(self, batch: _Batch, ids: Tensor, positions: Tensor, seen: int) -> Tensor:
        states: Tensor = self._model.body(
            input_ids=ids,
            attention_mask=batch.mask[:, :seen],
            position_ids=positions,
            past_key_values=batch.cache,
            use_cache=True,
        ).last_hidden_state
        return states

    def _choose(self, running: list[_Running], last: Tensor, sampling: Sampling) -> None:
        sampled = [i for i, one in enumerate(running) if one.request.output_ids is None]
        logits = iter(self.logits(last[sampled])[:, : self.vocab_size] if sampled else ())
        for one in running:
            forced = one.request.output_ids
            if forced is not None:
                one.output.append(forced[len(one.output)])
            else:
                token, logprob = sample(next(logits), sampling, one.source)
                one.output.append(token)
                one.logprobs.append(logprob)


def _batches(order: Sequence[int], lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Parts of `order`, which is by length, in which no more than half of what is run is padding."""
    batch: list[int] = []
    for i in order:
        real = sum(lengths[j] for j in batch) + lengths[i]
        if batch and (len(batch) == most or lengths[i] * (len(batch) + 1) > 2 * real):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


class _Batch:
    """Left-padded prompts, what of them may be attended to, and the cache they fill."""

    def __init__(self, requests: list[Request], config: PreTrainedConfig) -> None:
        width = max(len(r.prompt_ids) for r in requests)
        self.ids = torch.zeros(len(requests), width, dtype=torch.long)
        self.mask = torch.zeros(len(requests), width, dtype=torch.long)
        for i, request in enumerate(requests):
            pad = width - len(request.prompt_ids)
            self.ids[i, pad:] = torch.tensor(request.prompt_ids)
            self.mask[i, pad:] = 1
        self.positions = (self.mask.cumsum(-1) - 1).clamp_min(0)
        self.cache = DynamicCache(config=config)

    def keep(self, rows: list[int]) -> None:
        """Drop the rows of requests that have finished."""
        if rows and len(rows) < len(self.mask):
            self.mask = self.mask[rows]
            self.cache.batch_select_indices(torch.tensor(rows))


@dataclass(slots=True)
class _Running:
    """One request in flight."""

    request: Request
    output: list[int] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    latency_s: float = 0.0
    ttft_s: float = 0.0
    source: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.source = generator(self.request.seed)

    def wants_more(self, eos: frozenset[int]) -> bool:
        """Whether another token is to come."""
        if self.request.output_ids is not None:
            return len(self.output) < len(self.request.output_ids)
        ended = bool(self.output) and self.output[-1] in eos
        return not ended and len(self.output) < self.request.max_new_tokens

    def finished(self, now: float) -> None:
        """Note that its newest token came `now` seconds after its batch began."""
        self.ttft_s = now if len(self.output) == 1 else self.ttft_s
        self.latency_s = now

    def trace(self, eos: frozenset[int]) -> Trace:
        """What has been run; the last token decides nothing."""
        tokens = [*self.request.prompt_ids, *self.output]
        prompt = len(self.request.prompt_ids)
        return Trace(
            request=self.request.id,
            token_ids=tokens,
            prompt_tokens=prompt,
            phases=phases(prompt, len(tokens)),
            states=torch.cat(self.states)[: len(tokens) - 1],
            latency_s=self.latency_s,
            ttft_s=self.ttft_s,
            logprobs=self.logprobs if self.request.output_ids is None else None,
            stopped=bool(self.output) and self.output[-1] in eos,
        )
