"""The bare engine, for `benchmarks.vllm_pair`: runs in the environment `vllm`, says seconds by both clocks.

    python -m benchmarks._vllm_bare CHECKPOINT REQUESTS.json

Each line read from stdin is `bare N` or `public N`: the first N prompts are prefilled, either with the
logits of every position by the engine's own `compute_logits` and nothing done with them, or through the
public API with `prompt_logprobs=-1`. Answers with one JSON object a line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_USE_V2_MODEL_RUNNER="0", VLLM_NO_USAGE_STATS="1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

from vllm import LLM, SamplingParams

from workers.kernels.vllm_extension import MARK

BLOCK = 128


def bare(llm: LLM, prompts: list[Any]) -> None:
    parameters = [
        SamplingParams(max_tokens=1, detokenize=False, extra_args={MARK: i}) for i in range(len(prompts))
    ]
    llm.generate(prompts, parameters, use_tqdm=False)
    kept, _ = llm.collective_rpc("drift_take")[0]
    for parts in kept.values():
        for _, states in parts:
            for start in range(0, len(states), BLOCK):
                llm.collective_rpc("drift_logits", args=(states[start : start + BLOCK],))


def public(llm: LLM, prompts: list[Any]) -> None:
    llm.generate(prompts, SamplingParams(max_tokens=1, prompt_logprobs=-1, detokenize=False), use_tqdm=False)


def main() -> None:
    checkpoint, file = sys.argv[1:]
    prompts = [{"prompt_token_ids": ids} for ids in json.loads(Path(file).read_text())]
    llm = LLM(
        checkpoint, dtype="bfloat16", enable_prefix_caching=False, skip_tokenizer_init=True, max_logprobs=-1,
        kv_cache_memory_bytes=2**30, worker_extension_cls="workers.kernels.vllm_extension.Capture",
    )  # fmt: skip
    llm.collective_rpc("drift_watch")
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        what, count = line.split()
        wall, cpu = time.perf_counter(), time.process_time()
        {"bare": bare, "public": public}[what](llm, prompts[: int(count)])
        took = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        print(json.dumps(took), flush=True)


if __name__ == "__main__":
    main()
