"""Engine `llamacpp`: GGUF models in llama.cpp, through the low-level calls of llama-cpp-python.

llama.cpp has no output matrix that could be applied to hidden states from outside with the very
code the engine runs, so what a trace keeps here are the engine's own logits, and `trace_tokens`
says how many of them a caller should have kept at once.

Prompts are run in batches of `n_batch` into the KV cache with an output at every position; then one
token at a time is decoded, sampled or given. Runs in an interpreter without torch.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np

from contracts.builds import Fingerprint
from contracts.model import Sampling, Scalar
from workers.kernels import llamacpp_log
from workers.kernels.numpy_sampling import generator, sample
from workers.kernels.protocol import KernelError, Request, Trace, UnusableCheckpoint, check_requests, phases

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Logits = NDArray[np.float32]
else:
    Logits = Any

_CACHE_TYPES = {
    "f32": llama_cpp.GGML_TYPE_F32,
    "f16": llama_cpp.GGML_TYPE_F16,
    "q8_0": llama_cpp.GGML_TYPE_Q8_0,
    "q4_0": llama_cpp.GGML_TYPE_Q4_0,
}
_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}  # by GGUF name; the rest are quantised
_HELD_BYTES = 256 * 2**20  # of logits, in the traces of one call


class LlamaCpp:
    """The kernel of engine `llamacpp`; see `workers.kernels.protocol.Kernel`.

    Args:
        checkpoint: directory.
        file: name of the GGUF in it; None means the only one there.
        n_ctx: positions of the KV cache; no more than the model was made for are used.
        n_batch, n_ubatch: positions of one call, and of one pass through the graph.
        type_k, type_v: f32, f16, q8_0 or q4_0, what the cache holds keys and values in.
        flash_attn: on or off; a quantised `type_v` needs it on.
        threads: None means what OMP_NUM_THREADS says, or every processor this process may use.
    """

    states_are_logits = True  # so nobody need ask for them block by block

    def __init__(
        self,
        checkpoint: Path,
        file: str | None = None,
        n_ctx: int = 4096,
        n_batch: int = 512,
        n_ubatch: int = 512,
        type_k: str = "f16",
        type_v: str = "f16",
        flash_attn: str = "on",
        threads: int | None = None,
    ) -> None:
        self._path = _find(checkpoint, file)
        if flash_attn == "off" and type_v.startswith("q"):
            raise UnusableCheckpoint(f"llamacpp: type_v={type_v} needs flash_attn=on")
        llama_cpp.llama_backend_init()
        with llamacpp_log.captured() as self._log:
            self._model = llama_cpp.llama_model_load_from_file(
                str(self._path).encode(), llama_cpp.llama_model_default_params()
            )
            if not self._model:
                raise UnusableCheckpoint(f"{self._path}: {llamacpp_log.reason(self._log)}")
            self._vocab: Any = llama_cpp.llama_model_get_vocab(self._model)
            self._rows = int(llama_cpp.llama_vocab_n_tokens(self._vocab))
            params = llama_cpp.llama_context_default_params()
            params.n_ctx = min(n_ctx, int(llama_cpp.llama_model_n_ctx_train(self._model)))
            params.n_batch, params.n_ubatch = n_batch, min(n_ubatch, n_batch)
            params.n_threads = params.n_threads_batch = threads or _processors()
            params.type_k, params.type_v = _CACHE_TYPES[type_k], _CACHE_TYPES[type_v]
            params.flash_attn_type = (
                llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
                if flash_attn == "on"
                else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
            )
            self._context = llama_cpp.llama_init_from_model(self._model, params)
            if not self._context:
                llama_cpp.llama_model_free(self._model)
                raise UnusableCheckpoint(f"{self._path}: {llamacpp_log.reason(self._log)}")
        self._digest = _digest(self._path)
        self._batch = _Batch(int(llama_cpp.llama_n_batch(self._context)))
        self._vocab_size = _known(self._vocab, self._rows)

    def fingerprint(self) -> Fingerprint:
        """What is running: the model's metadata, and what llama.cpp says of its context."""
        name = (llama_cpp.llama_ftype_name(llama_cpp.llama_model_ftype(self._model)) or b"unknown").decode()
        weights = name.lower().replace(" - ", "_").replace(" ", "_")
        plain = next((dtype for word, dtype in _DTYPES.items() if weights.endswith(word)), None)
        context = self._context
        flags: dict[str, Scalar] = {
            "file": self._path.name,
            "file_digest": self._digest,
            "architecture": self._metadata("general.architecture") or "unknown",
            "llama_cpp_python": llama_cpp.__version__,
            "n_ctx": int(llama_cpp.llama_n_ctx(context)),
            "n_batch": int(llama_cpp.llama_n_batch(context)),
            "n_ubatch": int(llama_cpp.llama_n_ubatch(context)),
            "threads": int(llama_cpp.llama_n_threads(context)),
            "cpu_features": llamacpp_log.features(llama_cpp.llama_print_system_info().decode()),
        }
        keys, values = llamacpp_log.cache_types(self._log)
        if keys and values:
            flags |= {"type_k": keys, "type_v": values}
        attention = llamacpp_log.attention(self._log)
        if attention:
            flags["flash_attn"] = "on" if attention == "flash" else "off"
        return Fingerprint(
            engine="llamacpp",
            version=llama_cpp.llama_version().decode(),
            dtype=plain or "float32",
            quantization="none" if plain else weights,
            attention_backend=attention,
            kv_cache_dtype=_cache_dtype(keys, values),
            parallelism="tp1",
            device=llamacpp_log.devices(self._log),
            compile_mode="eager",
            scales=None if plain else self._digest,  # they lie between the weights
            flags=flags,
        )

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._vocab_size

    @property
    def trace_tokens(self) -> int:
        """How many tokens one call of `trace` should be given: its traces hold 4 V bytes each."""
        return max(1, _HELD_BYTES // (4 * self._rows))

    def trace(self, requests: Sequence[Request], sampling: Sampling) -> list[Trace]:
        """Run the requests one after the other; one trace each. Raises InvalidRequest.

        The states of a trace are float32 raw logits [T - 1, >= V].
        """
        made_for = int(llama_cpp.llama_model_n_ctx_train(self._model))
        positions = min(made_for, int(llama_cpp.llama_n_ctx(self._context)))
        check_requests(requests, vocab_size=self.vocab_size, positions=positions)
        return [self._run(request, sampling) for request in requests]

    def logits(self, states: Logits) -> Logits:
        """Raw logits [n, >= V]: the states themselves."""
        return states

    def close(self) -> None:
        """Release the weights."""
        self._batch.close()
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def _run(self, request: Request, sampling: Sampling) -> Trace:
        forced, prompt = request.output_ids, len(request.prompt_ids)
        source, output, logprobs = generator(request.seed), list[int](), list[float]()
        most = request.most_tokens - 1  # the last token decides nothing and is not run
        rows = np.empty((most, self._rows), dtype=np.float32)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        started = time.perf_counter()
        run = min(prompt, most)
        self._evaluate(request.prompt_ids[:run], 0, rows)
        latency = ttft = time.perf_counter() - started
        while self._wants_more(request, output):
            if output:
                self._evaluate(output[-1:], run, rows)
                run += 1
            if forced is None:
                token, logprob = sample(rows[run - 1, : self.vocab_size], sampling, source)
                logprobs.append(logprob)
            else:
                token = forced[len(output)]
            output.append(token)
            latency = time.perf_counter() - started
            ttft = latency if len(output) == 1 else ttft
        tokens = [*request.prompt_ids, *output]
        return Trace(
            request=request.id,
            token_ids=tokens,
            prompt_tokens=prompt,
            phases=phases(prompt, len(tokens)),
            states=rows[: len(tokens) - 1],
            latency_s=latency,
            ttft_s=ttft,
            logprobs=logprobs if forced is None else None,
            stopped=bool(output) and self._ends(output[-1]),
        )

    def _wants_more(self, request: Request, output: Sequence[int]) -> bool:
        if request.output_ids is not None:
            return len(output) < len(request.output_ids)
        return not (output and self._ends(output[-1])) and len(output) < request.max_new_tokens

    def _ends(self, token: int) -> bool:
        return bool(llama_cpp.llama_vocab_is_eog(self._vocab, token))

    def _evaluate(self, tokens: Sequence[int], position: int, rows: Logits) -> None:
        """Run tokens at `position` onwards, and put their logits in the same rows."""
        most = self._batch.size
        for start in range(0, len(tokens), most):
            part = tokens[start : start + most]
            status = llama_cpp.llama_decode(self._context, self._batch.filled(part, position + start))
            if status != 0:
                what = "no room left in the KV cache" if status == 1 else f"llama_decode gave {status}"
                raise KernelError(f"{self._path.name}, position {position + start}: {what}")
            found = llama_cpp.llama_get_logits(self._context)
            rows[position + start :][: len(part)] = np.ctypeslib.as_array(found, (len(part), self._rows))

    def _metadata(self, key: str) -> str | None:
        room = ctypes.create_string_buffer(256)
        length = llama_cpp.llama_model_meta_val_str(self._model, key.encode(), room, len(room))  # type: ignore[arg-type]
        return room.value.decode() if length >= 0 else None


class _Batch:
    """A batch of one sequence in which every position has an output."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._batch = llama_cpp.llama_batch_init(size, 0, 1)
        self._tokens = np.ctypeslib.as_array(self._batch.token, (size,))
        self._positions = np.ctypeslib.as_array(self._batch.pos, (size,))
        np.ctypeslib.as_array(self._batch.n_seq_id, (size,))[:] = 1
        np.ctypeslib.as_array(self._batch.logits, (size,))[:] = 1
        for i in range(size):
            self._batch.seq_id[i][0] = 0

    def filled(self, tokens: Sequence[int], position: int) -> llama_cpp.llama_batch:
        self._tokens[: len(tokens)] = tokens
        self._positions[: len(tokens)] = np.arange(position, position + len(tokens))
        self._batch.n_tokens = len(tokens)
        return self._batch

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)


def _find(checkpoint: Path, file: str | None) -> Path:
    if file is not None:
        if not (checkpoint / file).is_file():
            raise UnusableCheckpoint(
                f"{checkpoint / file}: no such file; convert the checkpoint to GGUF first"
            )
        return checkpoint / file
    found = sorted(checkpoint.glob("*.gguf"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise UnusableCheckpoint(f"{checkpoint}: name one GGUF with file=NAME; found {names}")
    return found[0]


def _processors() -> int:
    said = os.environ.get("OMP_NUM_THREADS", "")
    return int(said) if said.isdecimal() and int(said) > 0 else len(os.sched_getaffinity(0))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def _known(vocab: Any, rows: int) -> int:
    """V: the converters fill the matrix up with tokens marked unused, at the end."""
    if llama_cpp.llama_vocab_type(vocab) == llama_cpp.LLAMA_VOCAB_TYPE_NONE:
        return rows
    while rows > 1 and llama_cpp.llama_vocab_get_attr(vocab, rows - 1) & llama_cpp.LLAMA_TOKEN_ATTR_UNUSED:
        rows -= 1
    return rows


def _cache_dtype(keys: str | None, values: str | None) -> str | None:
    if keys is None or values is None:
        return None
    names = dict.fromkeys(_DTYPES.get(word, word) for word in (keys, values))
    return ",".join(names)
