"""Engine `vllm`: the serving engine itself, in process, its hidden states kept as it runs.

Nothing is asked of its public API but to generate: `workers.kernels.vllm_extension` keeps the final
hidden states of every position inside the worker, and the engine's own `compute_logits` gives the
logits of a block of them. Prompts go through its scheduler in chunks (prefill); outputs, sampled
by its own sampler or given, are decoded one token a step. What was kept is checked against what the
engine answered: the count of positions, and its raw logit of every token it chose.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# Before vllm is imported: the engine in this very process, and nothing told to anybody.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.update(VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
# The worker extension reads the state of this runner; which one ran is in the fingerprint.
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
# Threads are bound to cores only where whoever runs this says so: the cores are the training side's too.
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

import torch
import vllm
from torch import Tensor
from vllm import LLM, SamplingParams
from vllm.platforms import current_platform

from contracts.builds import Fingerprint, InvalidBuild
from contracts.model import Sampling, Scalar
from workers.kernels.protocol import KernelError, Request, Trace, UnusableCheckpoint, check_requests, phases
from workers.kernels.vllm_extension import FORCED, MARK, VOCABULARY

_BLOCK = 128  # positions whose logits exist at once
_GIB = 2**30
_EXTENSION = "workers.kernels.vllm_extension"
# Rounding of the logits' own dtype, which the shape of a batch may change, and a wide margin.
_ULPS, _FLOOR = 8, 1e-3


class StatesDiffer(KernelError):
    """The states that were kept are not those the engine decided from: nothing may be measured."""


class VllmEngine:
    """The kernel of engine `vllm`; see `workers.kernels.protocol.Kernel`.

    None leaves a choice to the engine.

    Args:
        checkpoint: directory.
        dtype: float32, bfloat16 or float16, of weights and activations.
        attn: attention backend by the engine's name for it.
        block_size: positions of one block of the KV cache.
        max_model_len: the longest sequence.
        chunk: the most tokens of one step.
        batch: the most requests in flight.
        enforce_eager: on or off; on compiles nothing and captures no graphs.
        quantization: scheme by the engine's name for it.
        kv_cache_dtype: by the engine's name for it.
        kv_cache_gib: size of the KV cache; on a CPU 1 when left out.
        prefix_caching: on or off; on, positions found in the cache are not computed and not measured,
            so that only requests without a common prefix can be run.
        tp: tensor parallelism.
        rope_theta: overrides the checkpoint's RoPE base.
    """

    def __init__(
        self,
        checkpoint: Path,
        dtype: str = "bfloat16",
        attn: str | None = None,
        block_size: int | None = None,
        max_model_len: int | None = None,
        chunk: int | None = None,
        batch: int | None = None,
        enforce_eager: str = "off",
        quantization: str | None = None,
        kv_cache_dtype: str | None = None,
        kv_cache_gib: int | None = None,
        prefix_caching: str = "off",
        tp: int = 1,
        rope_theta: float | None = None,
    ) -> None:
        if not (checkpoint / "config.json").is_file():
            raise UnusableCheckpoint(
                f"{checkpoint}: no config.json; give a Hugging Face checkpoint directory"
            )
        asked: dict[str, Any] = {
            "attention_backend": attn,
            "block_size": block_size,
            "max_model_len": max_model_len,
            "max_num_batched_tokens": chunk,
            "max_num_seqs": batch,
            "quantization": quantization,
            "kv_cache_dtype": kv_cache_dtype,
            "hf_overrides": _rope(rope_theta),
            **_memory(kv_cache_gib),
        }
        try:
            self._llm = LLM(
                str(checkpoint),
                dtype=dtype,
                enforce_eager=enforce_eager == "on",
                enable_prefix_caching=prefix_caching == "on",
                tensor_parallel_size=tp,
                skip_tokenizer_init=True,
                trust_remote_code=False,
                async_scheduling=False,
                generation_config="auto",
                logprobs_mode="raw_logits",
                logits_processors=[f"{_EXTENSION}:Chosen"],
                worker_extension_cls=f"{_EXTENSION}.Capture",
                **{name: value for name, value in asked.items() if value is not None},
            )
        except ValueError as error:  # how the engine refuses a configuration
            raise InvalidBuild(f"vllm: {error}", "vllm") from error
        self._config = self._llm.llm_engine.vllm_config
        self._facts: dict[str, Any] = self._llm.collective_rpc("drift_facts")[0]
        self._llm.collective_rpc("drift_watch")
        model = self._config.model_config
        self._rows = int(model.get_vocab_size())
        self._vocab_size = _vocab_size(checkpoint, self._rows)
        self._blocks = int(self._config.cache_config.num_gpu_blocks or 2**31)
        self._block_size = min(self._facts["block_size"])
        self._positions = int(model.max_model_len)
        self._eos = _eos(model)

    def fingerprint(self) -> Fingerprint:
        """What is running, from the engine's resolved configuration and its worker's objects."""
        config, facts = self._config, self._facts
        parallel, scheduler, compilation = (
            config.parallel_config, config.scheduler_config, config.compilation_config,
        )  # fmt: skip
        flags: dict[str, Scalar] = {
            "architecture": facts["model"],
            "chunk": int(scheduler.max_num_batched_tokens),
            "batch": int(scheduler.max_num_seqs),
            "max_model_len": int(config.model_config.max_model_len),
            "chunked_prefill": bool(scheduler.enable_chunked_prefill),
            "prefix_caching": bool(config.cache_config.enable_prefix_caching),
            "cudagraph_mode": str(getattr(compilation.cudagraph_mode, "name", "NONE")).lower(),
            "model_runner": "v1",
            "torch": torch.__version__,
        }
        rope = getattr(config.model_config.hf_config, "rope_parameters", None) or {}
        if "rope_theta" in rope:
            flags["rope_theta"] = float(rope["rope_theta"])
        mode = compilation.mode.name.lower()
        sizes = ",".join(map(str, facts["block_size"]))
        return Fingerprint(
            engine="vllm",
            version=vllm.__version__,
            dtype=str(config.model_config.dtype).removeprefix("torch."),
            quantization=config.model_config.quantization or "none",
            attention_backend=facts["attention_backend"],
            kv_cache_dtype=facts["kv_cache_dtype"],
            parallelism=f"tp{parallel.tensor_parallel_size}"
            + (f"pp{parallel.pipeline_parallel_size}" if parallel.pipeline_parallel_size > 1 else ""),
            device=current_platform.get_device_name(),
            driver=_driver(),
            block_size=int(sizes) if sizes.isdigit() else None,
            compile_mode="eager" if mode == "none" else f"{mode}:{compilation.backend}",
            batch_invariance="on" if vllm.envs.VLLM_BATCH_INVARIANT else "off",
            scales=facts["scales"],
            image=os.environ.get("KC_IMAGE_DIGEST"),
            flags=flags,
        )

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._vocab_size

    def trace(self, requests: Sequence[Request], sampling: Sampling) -> list[Trace]:
        """Run the requests; one trace each, in their order.

        Raises InvalidRequest, StatesDiffer, and KernelError when the KV cache is too small.
        """
        check_requests(requests, vocab_size=self.vocab_size, positions=self._positions)
        traces = [self._empty(request) for request in requests]
        for part in self._fitting(requests):
            answers = self._llm.generate(
                [{"prompt_token_ids": self._fed(requests[i])} for i in part],
                [self._parameters(i, requests[i], sampling) for i in part],
                use_tqdm=False,
            )
            kept, times = self._llm.collective_rpc("drift_take")[0]
            for i, answer in zip(part, answers, strict=True):
                traces[i] = self._trace(
                    requests[i], answer.outputs[0], kept.get(i, []), times.get(i, [0.0]), sampling
                )
        return traces

    def logits(self, states: Tensor) -> Tensor:
        """Raw logits [n, >= V] of hidden states [n, d], by the engine's own `compute_logits`."""
        found = self._llm.collective_rpc("drift_logits", args=(states,))
        logits: Tensor = next(one for one in found if one is not None)
        return logits

    def close(self) -> None:
        """Release the weights."""
        del self._llm

    def _fitting(self, requests: Sequence[Request]) -> Iterator[list[int]]:
        """Indices of requests whose sequences fit into the KV cache together, so that none is preempted."""
        block, room = self._block_size, self._blocks - 1
        part: list[int] = []
        used = 0
        for i, request in enumerate(requests):
            if request.most_tokens < 2:
                continue  # a single token decides nothing
            needed = -(-request.most_tokens // block)
            if part and used + needed > room:
                yield part
                part, used = [], 0
            part.append(i)
            used += needed
        if part:
            yield part

    def _fed(self, request: Request) -> list[int]:
        """What the engine is given as prompt: without an output, the last token decides nothing."""
        return list(request.prompt_ids if request.output_ids != () else request.prompt_ids[:-1])

    def _parameters(self, index: int, request: Request, sampling: Sampling) -> SamplingParams:
        forced = request.output_ids
        extra: dict[str, Any] = {MARK: index}
        if forced:
            extra[FORCED] = list(forced)
        elif self._vocab_size < self._rows:
            extra[VOCABULARY] = self._vocab_size
        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=request.seed % 2**63 if forced is None else None,
            max_tokens=request.max_new_tokens if forced is None else max(1, len(forced)),
            ignore_eos=True,  # the ids that end a sequence are the checkpoint's, given here
            stop_token_ids=sorted(self._eos) if forced is None else [],
            logprobs=None if forced == () else 0,
            detokenize=False,
            skip_special_tokens=False,
            extra_args=extra,
        )

    def _empty(self, request: Request) -> Trace:
        """Of a single token, which decides nothing."""
        states = torch.empty(0, self._facts["hidden_size"], dtype=self._config.model_config.dtype)
        return Trace(request.id, list(request.prompt_ids), len(request.prompt_ids), [], states, 0.0, 0.0)

    def _trace(
        self,
        request: Request,
        answer: Any,
        kept: list[tuple[int, Tensor]],
        times: list[float],
        sampling: Sampling,
    ) -> Trace:
        output = [] if request.output_ids == () else list(answer.token_ids)
        if request.output_ids and tuple(output) != request.output_ids:
            raise KernelError(f"request {request.id!r}: the engine did not run the output it was given")
        tokens, prompt = [*request.prompt_ids, *output], len(request.prompt_ids)
        states = _joined(request.id, kept, len(tokens) - 1)
        first = next(
            (at for end, at in zip(times[1::2], times[2::2], strict=True) if end >= prompt), times[-1]
        )
        logprobs = None
        if output:
            raw = [float(step[token].logprob) for step, token in zip(answer.logprobs, output, strict=True)]
            logprobs = self._checked(request.id, states[prompt - 1 :], output, raw, sampling.temperature)
        return Trace(
            request=request.id,
            token_ids=tokens,
            prompt_tokens=prompt,
            phases=phases(prompt, len(tokens)),
            states=states,
            latency_s=times[-1] - times[0],
            ttft_s=first - times[0],
            logprobs=logprobs if request.output_ids is None else None,
            stopped=bool(output) and output[-1] in self._eos,
        )

    @torch.inference_mode()
    def _checked(
        self, name: str, states: Tensor, output: list[int], raw: list[float], temperature: float
    ) -> list[float]:
        """Log-probabilities of the output at the temperature, float32, after a look at its raw logits.

        Raises StatesDiffer when the engine's logit of a token it chose is not the one its state gives.
        """
        found: list[float] = []
        for start in range(0, len(output), _BLOCK):
            logits = self.logits(states[start : start + _BLOCK])[:, : self.vocab_size]
            epsilon = torch.finfo(logits.dtype).eps
            logits = logits.float()
            chosen = torch.tensor(output[start : start + _BLOCK], device=logits.device)
            mine = logits.gather(-1, chosen[:, None])[:, 0]
            theirs = torch.tensor(raw[start : start + _BLOCK], device=logits.device)
            finite = torch.isfinite(mine) & torch.isfinite(theirs)
            largest = torch.where(torch.isfinite(logits), logits.abs(), 0.0).amax(-1)
            off = ((mine - theirs).abs() > _FLOOR + _ULPS * epsilon * largest) & finite
            if bool(off.any()):
                at = int(off.nonzero()[0])
                raise StatesDiffer(
                    f"request {name!r}, output token {start + at}: its state gives a logit of "
                    f"{float(mine[at]):.4f}, and the engine had {float(theirs[at]):.4f}"
                )
            scores = logits / temperature
            found += (scores.gather(-1, chosen[:, None])[:, 0] - scores.logsumexp(-1)).tolist()
        return found


def _joined(name: str, kept: list[tuple[int, Tensor]], count: int) -> Tensor:
    """States [count, d] in order of position. Raises KernelError where one is missing or there twice."""
    at = 0
    for first, rows in kept:
        if first != at:
            why = (
                "its states were computed twice: it was preempted; give more kv_cache_gib or a smaller batch"
                if first < at
                else "it came from a cache; run with prefix_caching=off"
            )
            raise KernelError(f"request {name!r}, position {min(first, at)}: {why}")
        at += len(rows)
    if at != count:
        raise StatesDiffer(f"request {name!r}: {at} positions were run, and {count} decisions made")
    return torch.cat([rows for _, rows in kept])


def _rope(theta: float | None) -> dict[str, Any] | None:
    return None if theta is None else {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}


def _memory(gib: int | None) -> dict[str, int]:
    # The one thing a CPU is treated otherwise for: left alone, the engine takes most of the machine.
    if gib is None and current_platform.is_cpu():
        gib = int(os.environ.get("VLLM_CPU_KVCACHE_SPACE") or 1)
    return {} if gib is None else {"kv_cache_memory_bytes": gib * _GIB}


def _driver() -> str | None:
    """Version of the device's driver; None where there is none or it cannot be asked."""
    if not current_platform.is_cuda():
        return None
    try:
        from vllm.third_party import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # noqa: BLE001 - not knowing it is said as not knowing it
        return None


def _vocab_size(checkpoint: Path, rows: int) -> int:
    file = checkpoint / "tokenizer.json"
    if not file.is_file():
        return rows
    from tokenizers import Tokenizer

    known = Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True)
    return min(rows, max(known.values()) + 1)


def _eos(model: Any) -> frozenset[int]:
    found = model.try_get_generation_config().get("eos_token_id")
    found = model.hf_config.eos_token_id if found is None else found
    return frozenset() if found is None else frozenset([found] if isinstance(found, int) else found)
