"""Engine `torch`: the plain Hugging Face graph, no cache, teacher-forced.

The program gradients are taken through. Asked to sample, it runs the whole graph again for
every token: slow, and honest about which program decided.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from contracts.builds import Fingerprint
from contracts.model import Sampling
from workers.kernels.models import program_flags, read_model
from workers.kernels.protocol import Request, Trace, check_requests, phases
from workers.kernels.sampling import generator, sample

_TOKENS = 1024  # of one forward pass, padding included
_PADDING = 1 / 8  # the largest share of it that may be padding


class TorchGraph:
    """The kernel of engine `torch`; see `workers.kernels.protocol.Kernel`.

    Args:
        checkpoint: directory.
        dtype: float32, bfloat16 or float16.
        attn: sdpa or eager.
    """

    def __init__(self, checkpoint: Path, dtype: str = "float32", attn: str = "sdpa") -> None:
        self._model = read_model(checkpoint, dtype=dtype, attn=attn)
        self._dtype, self._attn = dtype, attn

    def fingerprint(self) -> Fingerprint:
        """What is running."""
        return Fingerprint(
            engine="torch",
            version=torch.__version__,
            dtype=self._dtype,
            quantization="none",
            attention_backend=self._attn,
            kv_cache_dtype="none",
            parallelism="tp1",
            device="cpu",
            flags=program_flags(self._model.config),
        )

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._model.vocab_size

    @torch.inference_mode()
    def trace(self, requests: Sequence[Request], sampling: Sampling) -> list[Trace]:
        """Run the requests; one trace each, in their order. Raises InvalidRequest."""
        check_requests(requests, vocab_size=self.vocab_size, positions=self._model.positions)
        traces: dict[int, Trace] = {}
        forced = [i for i, request in enumerate(requests) if request.output_ids is not None]
        for batch in _batches(forced, [r.most_tokens - 1 for r in requests]):
            traces.update(zip(batch, self._forced([requests[i] for i in batch]), strict=True))
        for i, request in enumerate(requests):
            if request.output_ids is None:
                traces[i] = self._sampled(request, sampling)
        return [traces[i] for i in range(len(requests))]

    @torch.inference_mode()
    def logits(self, states: Tensor) -> Tensor:
        """Raw logits [n, >= V] of hidden states [n, d]."""
        return self._model.head(states)

    def close(self) -> None:
        """Release the weights."""
        del self._model

    def _states(self, ids: Tensor) -> Tensor:
        states: Tensor = self._model.body(input_ids=ids, use_cache=False).last_hidden_state
        return states

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

    def _sampled(self, request: Request, sampling: Sampling) -> Trace:
        source, started = generator(request.seed), time.perf_counter()
        tokens, ttft = list(request.prompt_ids), 0.0
        states: list[Tensor] = []
        logprobs: list[float] = []
        for _ in range(request.max_new_tokens):
            found = self._states(torch.tensor([tokens]))[0]
            states.append(found if not states else found[-1:])
            token, logprob = sample(self.logits(found[-1:])[0, : self.vocab_size], sampling, source)
            tokens.append(token)
            logprobs.append(logprob)
            ttft = ttft or time.perf_counter() - started
            if token in self._model.eos:
                break
        return Trace(
            request=request.id,
            token_ids=tokens,
            prompt_tokens=len(request.prompt_ids),
            phases=phases(len(request.prompt_ids), len(tokens)),
            states=torch.cat(states),
            latency_s=time.perf_counter() - started,
            ttft_s=ttft,
            logprobs=logprobs,
            stopped=tokens[-1] in self._model.eos,
        )


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
