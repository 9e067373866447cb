"""What runs inside vLLM's workers: keeps the hidden states of every position, and gives logits of them.

`Capture` is mixed into the engine's worker (`worker_extension_cls`), `Chosen` is one of its logits
processors. Rows of a step are attributed by the model runner's own batch: which requests are in it, how
many positions each has there, and where each one's first position is.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

MARK, FORCED, VOCABULARY = "drift_index", "drift_forced", "drift_vocabulary"  # in SamplingParams.extra_args
Told = dict[str, Any]


class Chosen(AdapterLogitsProcessor):
    """What the sampler may choose from.

    Given tokens only, so that given outputs are run by the decode path; or no padding row of the
    output matrix, which is no token to anybody else.
    """

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        """Any parameters will do."""

    def is_argmax_invariant(self) -> bool:
        """It is not: it decides the token."""
        return False

    def new_req_logits_processor(
        self, params: SamplingParams
    ) -> Callable[[list[int], Tensor], Tensor] | None:
        """Of one request; None where the engine is free."""
        extra = params.extra_args or {}
        forced: list[int] | None = extra.get(FORCED)
        known: int | None = extra.get(VOCABULARY)

        def cut(_output: list[int], logits: Tensor) -> Tensor:
            logits[known:] = float("-inf")
            return logits

        if not forced:
            return cut if known else None

        def force(output: list[int], logits: Tensor) -> Tensor:
            logits.fill_(float("-inf"))
            logits[forced[len(output)]] = 0.0
            return logits

        return force


class Capture:
    """Methods of the worker, called by `collective_rpc`; all their names begin with `drift_`."""

    model_runner: Any
    _drift_kept: dict[int, list[tuple[int, Tensor]]]

    def drift_watch(self) -> None:
        """Begin to keep states: wraps the model runner's two steps, the forward pass and sampling."""
        runner = self.model_runner
        execute, sample = runner.execute_model, runner.sample_tokens
        self._drift_kept, self._drift_times = {}, dict[int, list[float]]()
        self._drift_step: list[tuple[int, int]] = []  # index and first position of those in flight

        def execute_model(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            result = execute(*args, **kwargs)
            if runner.execute_model_state is not None:
                self._drift_keep(runner, runner.execute_model_state, started)
            return result

        def sample_tokens(*args: Any, **kwargs: Any) -> Any:
            with _unfinished_prompts_draw_nothing(runner):
                result = sample(*args, **kwargs)
            now = time.perf_counter()
            for index, end in self._drift_step:
                self._drift_times[index] += [end, now]
            self._drift_step = []
            return result

        runner.execute_model, runner.sample_tokens = execute_model, sample_tokens

    def _drift_keep(self, runner: Any, state: Any, started: float) -> None:
        scheduled = state.scheduler_output.num_scheduled_tokens
        batch, row = runner.input_batch, 0
        for i, name in enumerate(batch.req_ids):
            count = scheduled[name]
            index = (runner.requests[name].sampling_params.extra_args or {}).get(MARK)
            if index is not None:
                first = int(batch.num_computed_tokens_cpu[i])
                # Copied: the rows are buffers the next step, or a captured graph, writes again.
                rows = state.hidden_states[row : row + count].to("cpu", copy=True)
                self._drift_kept.setdefault(index, []).append((first, rows))
                self._drift_times.setdefault(index, [started])
                self._drift_step.append((index, first + count))
            row += count

    def drift_take(self) -> tuple[dict[int, list[tuple[int, Tensor]]], dict[int, list[float]]]:
        """What was kept since the last time, by request: states by first position, and times.

        Times are [start of its first step, then for each step how many positions it then had and
        when its token was sampled], of one clock.
        """
        found = self._drift_kept, self._drift_times
        self._drift_kept, self._drift_times, self._drift_step = {}, {}, []
        return found

    @torch.inference_mode()
    def drift_logits(self, states: Tensor) -> Tensor | None:
        """The engine's own logits of hidden states [n, d]; None on ranks that do not hold them."""
        runner = self.model_runner
        logits: Tensor | None = runner.model.compute_logits(states.to(runner.device))
        return logits

    def drift_facts(self) -> Told:
        """What the worker runs, read from its objects."""
        runner = self.model_runner
        backends = {group.backend.get_name() for groups in runner.attn_groups for group in groups}
        caches = {str(_first(cache).dtype).removeprefix("torch.") for cache in runner.kv_caches}
        return {
            "attention_backend": ",".join(sorted(backends)) or "none",
            "kv_cache_dtype": ",".join(sorted(caches)) or "none",
            "block_size": sorted(
                {group.kv_cache_spec.block_size for group in runner.kv_cache_config.kv_cache_groups}
            ),
            "scales": _scales(runner.get_model()),
            "model": type(runner.get_model()).__name__,
            "hidden_size": runner.model_config.get_hidden_size(),
        }


@contextlib.contextmanager
def _unfinished_prompts_draw_nothing(runner: Any) -> Iterator[None]:
    """Keep CPU generators of requests whose prompt goes on out of the step.

    Their token is discarded and their generator rewound, which a CPU generator cannot be: without
    this, a seeded request with a chunked prompt ends the engine (vllm 0.32).
    """
    generators = runner.input_batch.generators
    held = {
        i: generators.pop(i)
        for i in runner.discard_request_mask.np[: runner.input_batch.num_reqs].nonzero()[0].tolist()
        if i in generators and generators[i].device.type == "cpu"
    }
    try:
        yield
    finally:
        generators.update(held)


def _first(cache: Any) -> Tensor:
    found: Tensor = cache[0] if isinstance(cache, list | tuple) else cache
    return found


def _scales(model: torch.nn.Module) -> str | None:
    """Digest of the quantisation's scales and zero points; None where there are none."""
    digest, some = hashlib.sha256(), False
    for name, value in sorted((*model.named_parameters(), *model.named_buffers())):
        last = name.rpartition(".")[2]
        if "scale" in last or "zero" in last:
            some = True
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
            digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return "sha256:" + digest.hexdigest() if some else None
