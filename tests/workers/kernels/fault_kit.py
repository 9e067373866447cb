"""Tiny models that faults can break, and contracts judged on them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from contracts.builds import parse_build
from contracts.document import read
from contracts.judge import judge
from contracts.model import Sampling, Stage
from contracts.slices import Attributes
from contracts.verdicts import Verdict
from tests.workers.conftest import write_tokenizer
from tests.workers.documents import DIGEST, provenance
from workers.draws import Draw
from workers.evaluation import evaluate
from workers.kernels.loading import load
from workers.kernels.protocol import Kernel, Request
from workers.paired import PairedPrompt, paired

VOCAB = 320
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048,
    "initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
    "tie_word_embeddings": True,
}  # fmt: skip
TRAIN = "torch:dtype=float32"
SERVING = "torch-serving:dtype=float32,chunk=64,batch=4"


def write_model(directory: Path, kind: str) -> Path:
    """A random model: `llama`; `gemma2` with a low attention soft-cap; `mixtral` with routed experts."""
    import transformers

    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0}}
    config: Any
    if kind == "llama":
        config = transformers.LlamaConfig(**SIZES, **rope)
    elif kind == "gemma2":
        config = transformers.Gemma2Config(
            **SIZES, head_dim=8, query_pre_attn_scalar=1, attn_logit_softcapping=2.0
        )
    else:
        config = transformers.MixtralConfig(**SIZES, **rope, num_local_experts=8, num_experts_per_tok=2)
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    write_tokenizer(directory)
    return directory


def requests(lengths: Sequence[int], *, new: int = 6, given: bool = False, seed: int = 0) -> list[Request]:
    """Random prompts of these lengths; outputs sampled, or `given` at random."""
    source = random.Random(seed)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(source.randrange(3, 259) for _ in range(count))

    return [Request(f"r{i}", ids(n), ids(new) if given else None, new, i) for i, n in enumerate(lengths)]


def broken(checkpoint: Path, fault: str, build: str = SERVING) -> Kernel:
    """The build with the fault in it."""
    return load(parse_build(f"{build},fault={fault}"), checkpoint)


def clean(checkpoint: Path, build: str = SERVING) -> Kernel:
    """The build as it is."""
    return load(parse_build(build), checkpoint)


def drifts(
    one: Kernel, other: Kernel, wanted: Sequence[Request], temperature: float = 1.0
) -> list[PairedPrompt]:
    """Every prompt paired; `other` decides the tokens."""
    return list(paired(one, other, wanted, Sampling(temperature=temperature)))


def values(prompts: Sequence[PairedPrompt], metric: str, phase: str | None = None) -> list[float]:
    """A metric at every decision, of one phase or all."""
    return [
        float(value)
        for prompt in prompts
        for name, found in prompt.phases.items()
        if phase in (None, name.value)
        for value in found.values[metric]
    ]


def verdicts(
    clauses: str,
    train: Kernel,
    inference: Kernel,
    wanted: Sequence[Request],
    *,
    temperature: float = 1.0,
    stage: Stage = Stage.OFFLINE_CI,
    census: bool = True,
) -> dict[tuple[str, str, str], Verdict]:
    """What the clauses make of the pair, by (clause, slice, phase)."""
    text = f"""\
apiVersion: kernel-contracts/v1
kind: KernelContract
metadata: {{name: tiny, version: 1.0.0}}
pair: {{train: {{}}, inference: {{}}}}
sampling: {{temperature: {temperature}}}
slices:
  all: {{}}
  long: {{where: {{prompt_tokens: {{gt: 512}}}}}}
  short: {{where: {{prompt_tokens: {{lte: 512}}}}}}
  chunked: {{where: {{prompt_tokens: {{gt: 64}}}}}}
  one_chunk: {{where: {{prompt_tokens: {{lte: 64}}}}}}
clauses:
{clauses}
fallback: {{build: steady}}
stages:
  offline_ci: {{min_prompts: 1, census: {json.dumps(census)}}}
  shadow: {{min_prompts: 1}}
"""
    contract = read(text.encode()).contract
    draws = [Draw(r, Attributes(len(r.prompt_ids), None, frozenset())) for r in wanted]
    kernels = iter((inference, train))

    @contextmanager
    def opened(*_: object) -> Iterator[Kernel]:
        yield next(kernels)

    build = parse_build("torch")
    evidence = evaluate(
        contract, provenance(stage), Path(), build, build, draws, shard="s", opened=opened
    )  # fmt: skip
    judged = judge(contract, evidence, contract_digest=DIGEST).verdicts
    return {(v.clause, v.slice, str(v.phase or "")): v for v in judged}


def outcomes(found: dict[tuple[str, str, str], Verdict]) -> dict[tuple[str, str, str], str]:
    """The verdicts as words."""
    return {key: verdict.verdict.value for key, verdict in found.items()}
