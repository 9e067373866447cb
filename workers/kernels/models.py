"""Checkpoint directories as Hugging Face models: a body that gives hidden states, and a head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from contracts.model import Scalar
from workers.kernels.protocol import UnusableCheckpoint

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(slots=True)
class Model:
    """A causal language model taken apart.

    Attributes:
        body: token ids to final hidden states (after the final norm).
        head: hidden states [n, d] to raw logits [n, rows], rows >= V.
        config: the model's configuration as loaded.
        vocab_size: V, without padding rows.
        positions: the longest sequence.
        eos: ids that end a sequence.
    """

    body: nn.Module
    head: Callable[[Tensor], Tensor]
    config: PreTrainedConfig
    vocab_size: int
    positions: int
    eos: frozenset[int]


def read_model(directory: Path, *, dtype: str, attn: str, rope_theta: float | None = None) -> Model:
    """Load a checkpoint directory: local safetensors only, no code of the checkpoint's own.

    Args:
        dtype: float32, bfloat16 or float16, of weights and activations.
        attn: attention implementation, sdpa or eager.
        rope_theta: overrides the configuration's RoPE base.

    Raises UnusableCheckpoint: a file or weight is missing, or the logits of this architecture
    are not a function of its final hidden states that is known here.
    """
    config = _config(directory, rope_theta)
    try:
        transformers.utils.logging.disable_progress_bar()
        model: Any
        info: dict[str, Any]
        model, info = AutoModelForCausalLM.from_pretrained(
            directory,
            config=config,
            dtype=_DTYPES[dtype],
            attn_implementation=attn,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UnusableCheckpoint(f"{directory}: {error}") from error
    if absent := sorted(map(str, (*info["missing_keys"], *info["mismatched_keys"]))):
        raise UnusableCheckpoint(
            f"{directory}: {len(absent)} weights are missing or of another shape, the first {absent[0]}"
        )
    model.eval().requires_grad_(False)
    head = _head(model)
    _check_head(directory, model, head)
    return Model(
        body=model.model,
        head=head,
        config=config,
        vocab_size=_vocab_size(directory, config),
        positions=int(getattr(config, "max_position_embeddings", None) or 2**31),
        eos=_eos(model),
    )


def _config(directory: Path, rope_theta: float | None) -> PreTrainedConfig:
    if not (directory / "config.json").is_file():
        raise UnusableCheckpoint(f"{directory}: no config.json; give a Hugging Face checkpoint directory")
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise UnusableCheckpoint(f"{directory}/config.json: {error}") from error
    if rope_theta is not None:
        rope: dict[str, Any] | None = getattr(config, "rope_parameters", None)
        if not rope or "rope_theta" not in rope:
            raise UnusableCheckpoint(
                f"{directory}/config.json: rope_theta given, but this model has no one RoPE base"
            )
        rope["rope_theta"] = rope_theta
    return config


def _head(model: Any) -> Callable[[Tensor], Tensor]:
    linear: Callable[[Tensor], Tensor] = model.get_output_embeddings()
    cap = getattr(model.config, "final_logit_softcapping", None)
    if cap is None:
        return linear
    return lambda states: torch.tanh(linear(states) / cap) * cap


@torch.inference_mode()
def _check_head(directory: Path, model: Any, head: Callable[[Tensor], Tensor]) -> None:
    # Some architectures scale or cap logits on the way out: a head that forgets it would
    # measure a drift no user sees, so the model's own logits decide once, at load.
    name = type(model).__name__
    if not hasattr(model, "model") or model.get_output_embeddings() is None:
        raise UnusableCheckpoint(f"{directory}: {name} has no body and output matrix to tell apart")
    ids = torch.arange(3)[None] % model.config.vocab_size
    whole = model(input_ids=ids, use_cache=False).logits[0].float()
    parts = head(model.model(input_ids=ids, use_cache=False).last_hidden_state[0]).float()
    if not torch.allclose(whole, parts, rtol=1e-2, atol=1e-2, equal_nan=True):
        raise UnusableCheckpoint(
            f"{directory}: the logits of {name} are more than its output matrix; not supported"
        )


def _vocab_size(directory: Path, config: PreTrainedConfig) -> int:
    file = directory / "tokenizer.json"
    if not file.is_file():
        return int(config.vocab_size)
    from tokenizers import Tokenizer

    known = Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True)
    return min(int(config.vocab_size), max(known.values()) + 1)


def _eos(model: Any) -> frozenset[int]:
    found = model.generation_config.eos_token_id
    found = model.config.eos_token_id if found is None else found
    return frozenset() if found is None else frozenset([found] if isinstance(found, int) else found)


def program_flags(config: PreTrainedConfig) -> dict[str, Scalar]:
    """What else makes the program what it is, for a fingerprint's flags."""
    rope = getattr(config, "rope_parameters", None) or {}
    flags: dict[str, Scalar] = {
        "architecture": (config.architectures or ["unknown"])[0],
        "transformers": transformers.__version__,
    }
    if "rope_theta" in rope:
        flags["rope_theta"] = float(rope["rope_theta"])
    return flags


def running_dtype(model: Model) -> str:
    """Of the parameters as they are, the one most of them have: norms may differ."""
    counts = Counter(str(p.dtype) for p in model.body.parameters() if p.is_floating_point())
    return counts.most_common(1)[0][0].removeprefix("torch.")


def running_attention(model: Model) -> str:
    """The attention implementation the loaded model calls."""
    return str(model.body.config._attn_implementation)  # type: ignore[union-attr]


def running_device(model: Model) -> str:
    """Where the weights are; of a CPU also the vector instructions torch uses there."""
    device = next(model.body.parameters()).device
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"cpu {torch.backends.cpu.get_cpu_capability()}" if device.type == "cpu" else str(device)
