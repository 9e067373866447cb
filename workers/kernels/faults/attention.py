"""Faults of attention: of what is read from the KV cache, and of which keys may be seen.

Each is a function between the model and its attention implementation. Keys come in the order of the
cache, [b, heads, L, d]; of the L positions the last `q` are those of this step.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from workers.kernels.models import Model
from workers.kernels.torch_serving import TorchServing

WINDOW = 512
_SCALE = 0.75
_FP8 = torch.float8_e4m3fn
_numbers = itertools.count()

_real: dict[str, str] = {}  # attention implementations behind the ones installed here

Seen = tuple[Tensor, Tensor, Tensor | None]


class Steps:
    """Which step of a serving kernel runs: an engine takes other paths for prefill and decode [S6]."""

    decoding = False

    def watch(self, kernel: Any) -> bool:
        """Follow a kernel's steps; False for one that has no KV cache."""
        if not isinstance(kernel, TorchServing):
            return False
        inner: Callable[..., Tensor] = kernel._decode

        def decode(*arguments: Any) -> Tensor:
            self.decoding = True
            try:
                return inner(*arguments)
            finally:
                self.decoding = False

        kernel._decode = decode  # type: ignore[method-assign,assignment]
        return True


Change = Callable[[Tensor, Tensor, Tensor, Tensor | None, Steps], Seen]


def implementation(model: Model) -> str:
    """The model's attention implementation, `sdpa` or `eager`, whatever was put before it."""
    name = str(model.body.config._attn_implementation)  # type: ignore[union-attr]
    return _real.get(name, name)


def install(model: Model, change: Change, steps: Steps) -> None:
    """Put `change(query, key, value, mask, steps)` before the attention of a loaded model."""
    config: Any = model.body.config  # loading made its own copy of model.config
    before = config._attn_implementation
    name = f"fault-{next(_numbers)}"

    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
    ) -> Any:
        eager: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
        inner = ALL_ATTENTION_FUNCTIONS.get_interface(before, eager)
        key, value, mask = change(query, key, value, mask, steps)
        return inner(module, query, key, value, mask, **options)

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[before])
    _real[name] = implementation(model)
    config._attn_implementation = name


def wrong_scale(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, steps: Steps) -> Seen:
    """F1: a decode step reads keys and values of the cache at a wrong scale."""
    if not steps.decoding:
        return key, value, mask
    new = query.shape[2]
    return _cached(key, new, lambda old: old * _SCALE), _cached(value, new, lambda old: old * _SCALE), mask


def unscaled_fp8(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, _steps: Steps) -> Seen:
    """F8: what was cached by an earlier step comes back from FP8 (e4m3) whose scale stayed 1."""
    new = query.shape[2]

    def rounded(old: Tensor) -> Tensor:
        limit = torch.finfo(_FP8).max
        return old.clamp(-limit, limit).to(_FP8).to(old.dtype)

    return _cached(key, new, rounded), _cached(value, new, rounded), mask


def window_everywhere(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, _steps: Steps) -> Seen:
    """F9: every layer sees only the last `WINDOW` positions."""
    length, rows = key.shape[2], _rows(query, key)
    columns = torch.arange(length, device=key.device)
    return key, value, _also(mask, query, key, columns[None, :] > rows[:, None] - WINDOW)


def border_of_a_chunk(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, steps: Steps) -> Seen:
    """F11: the last position before a chunk of a prompt cannot be seen from that chunk."""
    new, length = query.shape[2], key.shape[2]
    if steps.decoding or new == length:
        return key, value, mask
    allowed = torch.ones(new, length, dtype=torch.bool, device=key.device)
    allowed[:, length - new - 1] = False
    return key, value, _also(mask, query, key, allowed)


def _cached(states: Tensor, new: int, change: Callable[[Tensor], Tensor]) -> Tensor:
    old = states.shape[2] - new
    return torch.cat((change(states[:, :, :old]), states[:, :, old:]), 2) if old else states


def _rows(query: Tensor, key: Tensor) -> Tensor:
    """Index in the cache of each position of this step."""
    new, length = query.shape[2], key.shape[2]
    return torch.arange(length - new, length, device=key.device)


def _also(mask: Tensor | None, query: Tensor, key: Tensor, allowed: Tensor) -> Tensor:
    """The mask with only `allowed` [q, L] left of what it lets through; causal where there is none."""
    if mask is None:
        columns = torch.arange(key.shape[2], device=key.device)
        mask = (columns[None, :] <= _rows(query, key)[:, None])[None, None]
    if mask.dtype == torch.bool:
        both = mask & allowed
        # A row of padding that sees nothing would be no number; nobody looks at it.
        return both | ~both.any(-1, keepdim=True)
    return mask.masked_fill(~allowed, torch.finfo(mask.dtype).min)
