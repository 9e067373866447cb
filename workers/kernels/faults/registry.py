"""The table of faults: what each is, what must catch it, and what does not see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from contracts.builds import InvalidBuild
from contracts.metrics import nearest
from workers.kernels.faults import attention, models
from workers.kernels.models import Model


class Expectation(StrEnum):
    """What a sane contract makes of a fault."""

    CAUGHT = "caught"  # a clause is violated
    REFUSED = "refused"  # nothing is measured: provenance says that the two sides differ
    STREAM = "stream"  # a clause is violated in a stream, not in one test at its start
    CALIBRATED = "calibrated"  # `kc calibrate` shows it; a contract need not
    PASSES = "passes"  # it must stay under a contract's limits


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of the zoo.

    Attributes:
        id: F1 to F18.
        name: in a few words.
        story: in a sentence what goes wrong.
        reports: public reports of it, `repository#number`.
        family, metric, slice, phase: of the clause that must catch it.
        blind: what does not see it.
        expected: what a sane contract makes of it.
        cached: whether it needs an engine with a KV cache.
        weights: breaks what is loaded.
        attend: changes what attention sees.
    """

    id: str
    name: str
    story: str
    reports: str
    family: str
    metric: str
    slice: str
    phase: str
    blind: str
    expected: Expectation = Expectation.CAUGHT
    cached: bool = False
    weights: Callable[[Model], None] | None = None
    attend: attention.Change | None = None


_N, _S = "numerical", "statistical"
_ANY = "prefill, decode"

FAULTS: dict[str, Fault] = {
    fault.id: fault
    for fault in (
        Fault(
            "F1", "decode path differs from prefill",
            "Decode steps read keys and values of the KV cache at a wrong scale; prefill is right.",
            "NeMo-RL#2141", _N, "abs_log_ratio", "all", "decode",
            "anything measured on prefill: exactly 0", cached=True, attend=attention.wrong_scale,
        ),
        Fault(
            "F2", "a sixth of the sequences is far off",
            "One sequence in six, always the same ones, has a decision that is far off.",
            "NeMo-RL#2100", _S, "kl, the largest of each prompt", "all", _ANY,
            "the mean KL over all tokens",
        ),
        Fault(
            "F3", "log-probs before temperature",
            "Log-probabilities are reported at temperature 1 while tokens are sampled at another.",
            "trl#4159, NeMo-RL#902, prime-rl#697", _N, "log_ratio", "where T is not 1", _ANY,
            "suites at T = 1: exactly 0",
        ),
        Fault(
            "F4", "log-probs renormalised over the top-p set",
            "Log-probs of sampled tokens are normalised over the top-p set: every ratio is the kept mass.",
            "trl#6789, trl#7269", _N, "log_ratio", "sampled tokens", _ANY,
            "greedy text: the most likely token stays the same one",
        ),
        Fault(
            "F5", "stale weights after a sync",
            "One block keeps the weights of the checkpoint before.",
            "trl#5312", _N, "abs_log_ratio", "all", _ANY,
            "a fingerprint of the program: it is the same", weights=models.stale_block,
        ),
        Fault(
            "F6", "RMSNorm rounds once instead of twice",
            "A compiled RMSNorm multiplies by its weight before the cast, which eager does after.",
            "vllm#52104", _N, "logit_osc", "all", _ANY,
            "a sane contract, which it must stay under; the fingerprint says how norms are compiled",
            Expectation.PASSES, weights=models.norm_before_cast,
        ),
        Fault(
            "F7", "log-probs depend on the batch",
            "Sums are taken in another order when a request is not alone in its batch.",
            "vllm#11778, transformers#26869", _N, "abs_log_ratio", "all", _ANY,
            "a fixed batch", Expectation.CALIBRATED, weights=models.reduce_by_batch,
        ),
        Fault(
            "F8", "FP8 KV cache with its scales ignored",
            "Keys and values are cached in FP8 with the scale left at 1.",
            "vllm#11688, ROCm/vllm#317", _S, "kl, ppl_ratio", "long", _ANY,
            "prefill of prompts that fit in one chunk: exactly 0", cached=True, attend=attention.unscaled_fp8,
        ),
        Fault(
            "F9", "sliding window on layers of full attention",
            "Every layer sees only the last 512 positions.",
            "vllm#49795", _S, "kl", "prompt_tokens > 512", _ANY,
            "prompts of up to 512 tokens: exactly 0", attend=attention.window_everywhere,
        ),
        Fault(
            "F10", "attention soft-cap dropped",
            "Attention scores are not capped in a model that was trained with a cap.",
            "sglang#33915, vllm-metal#665", _N, "logit_osc", "all", _ANY,
            "models without a soft-cap", weights=models.drop_softcap,
        ),
        Fault(
            "F11", "chunked prefill wrong past the chunk",
            "From every later chunk of a prompt the last position before it cannot be seen.",
            "vllm#26042, vllm#5952", _S, "kl", "prompts longer than a chunk", "prefill",
            "prompts of one chunk: exactly 0", cached=True, attend=attention.border_of_a_chunk,
        ),
        Fault(
            "F12", "tied output matrix not updated",
            "After a sync the embedding has the new weights and the output matrix tied to it the old ones.",
            "vllm#51665, torchtitan#2402", _N, "logit_l2", "all", _ANY,
            "comparing hidden states: exactly 0", weights=models.stale_head,
        ),
        Fault(
            "F13", "NaN logits",
            "All logits of one position of one prompt are NaN.",
            "vllm#10234, sglang#5984", _N, "unmeasurable", "all", _ANY,
            "averages that drop what is no number",
        ),
        Fault(
            "F14", "per-tensor int8 weights",
            "Weights have 255 levels of one scale a matrix: answers change, perplexity hardly does.",
            "llama.cpp#13287, vllm#50435", _S, "kl, flip_rate, reward_drift", "all", _ANY,
            "perplexity", weights=models.per_tensor_int8,
        ),
        Fault(
            "F15", "state leaks between batches",
            "Drift creeps up with every batch while the weights stay the same.",
            "open-instruct#1473", _S, "kl", "all", _ANY,
            "one test at the start", Expectation.STREAM,
        ),
        Fault(
            "F16", "routed experts disagree",
            "Routers work in bfloat16, so that near ties go to other experts.",
            "Megatron-LM#4168, miles#2722", _S, "top1_flip, the tail of kl", "all", _ANY,
            "the mean logit drift", weights=models.router_in_bfloat16,
        ),
        Fault(
            "F17", "BOS dropped on one side",
            "One side begins its sequences with BOS and the other does not.",
            "chat templates that differ", _N, "provenance: the ids differ", "all", _ANY,
            "text, which looks the same", Expectation.REFUSED,
        ),
        Fault(
            "F18", "RoPE base a tenth of the checkpoint's",
            "The converted configuration has the wrong base of the rotary embedding.",
            "converted configurations", _S, "every one, growing with position", "all", _ANY,
            "the first token: exactly 0", weights=models.rope_base,
        ),
    )
}  # fmt: skip


def parse_faults(text: str) -> tuple[str, ...]:
    """The ids in `F9+F13`, once each and in their order. Raises InvalidBuild naming the nearest known one."""
    asked = {part.strip().upper() for part in text.split("+")}
    for name in sorted(asked - FAULTS.keys()):
        raise InvalidBuild(f"no fault {name!r}: F1 to F18 exist", name, nearest(name, [*FAULTS]))
    return tuple(name for name in FAULTS if name in asked)
