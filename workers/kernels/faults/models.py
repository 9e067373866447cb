"""Faults of what a kernel has loaded: its weights, its norms, its routers, its output matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from workers.kernels.faults.attention import implementation
from workers.kernels.models import Model
from workers.kernels.protocol import KernelError
from workers.kernels.quantize import quantise_per_tensor

_STALE = 0.05  # of a matrix's own deviation: what some steps of training may have moved it


class FaultNotApplicable(KernelError):
    """The kernel has nothing this fault could break."""


@torch.no_grad()
def stale_block(model: Model) -> None:
    """F5: one block keeps the weights of the checkpoint before."""
    layers = list(_layers(model))
    for name, weight in sorted(layers[len(layers) // 2].named_parameters()):
        weight.copy_(_before(weight, name))


@torch.no_grad()
def stale_head(model: Model) -> None:
    """F12: the embedding has the new weights, the output matrix tied to it the old ones."""
    embedding = model.body.get_input_embeddings()  # type: ignore[operator]
    old, new = _before(embedding.weight, "head"), embedding.weight
    head = model.head

    def logits(states: Tensor) -> Tensor:
        # The head as it is, a soft-cap included, on the old matrix.
        kept = new.data
        new.data = old
        try:
            return head(states)
        finally:
            new.data = kept

    probe = torch.zeros(1, new.shape[-1], dtype=new.dtype)
    probe[0, 0] = 1.0
    if torch.equal(logits(probe), head(probe)):
        raise FaultNotApplicable("F12 needs an output matrix tied to the embedding")
    model.head = logits


def _before(weight: Tensor, name: str) -> Tensor:
    source = torch.Generator().manual_seed(sum(name.encode()))
    noise = torch.randn(weight.shape, generator=source, dtype=torch.float32)
    spread = weight.float().std() if weight.numel() > 1 else weight.float().abs().sum()
    return (weight.float() + _STALE * spread * noise).to(weight.dtype)


def norm_before_cast(model: Model) -> None:
    """F6: RMSNorm multiplies by its weight in float32 and rounds once, as a fused kernel does."""
    found = [m for m in model.body.modules() if type(m).__name__.endswith("RMSNorm")]
    if not found:
        raise FaultNotApplicable("F6 needs RMSNorm")
    for norm in found:
        norm.forward = _fused_norm(norm)


def _fused_norm(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    eps = float(getattr(norm, "variance_epsilon", None) or norm.eps)  # type: ignore[arg-type]
    weight: Tensor = norm.weight  # type: ignore[assignment]
    # Some architectures keep the weight less one; asking is surer than knowing them all.
    one = torch.ones(1, weight.shape[0], dtype=weight.dtype)
    scale = norm(one).float() * math.sqrt(1.0 + eps)

    def forward(states: Tensor) -> Tensor:
        wide = states.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return (wide * scale[0]).to(states.dtype)

    return forward


def reduce_by_batch(model: Model) -> None:
    """F7: the down projections add up in another order when more than one request is in the batch."""
    found = [
        m for name, m in model.body.named_modules() if name.endswith("down_proj") and hasattr(m, "weight")
    ]
    if not found:
        raise FaultNotApplicable("F7 needs projections called down_proj")
    for linear in found:
        linear.forward = _split(linear, parts=4)


def _split(linear: nn.Module, parts: int) -> Callable[[Tensor], Tensor]:
    whole = linear.forward

    def forward(states: Tensor) -> Tensor:
        if states.shape[0] == 1:
            found: Tensor = whole(states)
            return found
        weight: Tensor = linear.weight  # type: ignore[assignment]
        pieces = zip(states.chunk(parts, -1), weight.chunk(parts, -1), strict=True)
        # Partial sums are kept in bfloat16 between thread blocks.
        sums = [nn.functional.linear(x, w).bfloat16() for x, w in pieces]
        return torch.stack([s.to(states.dtype) for s in sums]).sum(0)

    return forward


@torch.no_grad()
def router_in_bfloat16(model: Model) -> None:
    """F16: routers see and weigh hidden states in bfloat16, so that near ties go to other experts."""
    found = [m for m in model.body.modules() if type(m).__name__.endswith(("Router", "Gate"))]
    if not found:
        raise FaultNotApplicable("F16 needs routed experts")
    for router in found:
        router.register_forward_pre_hook(_rounded)
        for weight in router.parameters(recurse=False):
            weight.copy_(weight.bfloat16().to(weight.dtype))


def _rounded(_module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        a.bfloat16().to(a.dtype) if isinstance(a, Tensor) and a.is_floating_point() else a for a in arguments
    )


def per_tensor_int8(model: Model) -> None:
    """F14: every linear weight of the body rounded to 255 levels of one scale a matrix."""
    quantise_per_tensor(model.body)


@torch.no_grad()
def rope_base(model: Model) -> None:
    """F18: the base of the rotary embedding is a tenth of the checkpoint's."""
    rope = getattr(model.config, "rope_parameters", None) or {}
    base = rope.get("rope_theta")
    rotary = getattr(model.body, "rotary_emb", None)
    if not base or rotary is None or rope.get("rope_type", "default") != "default":
        raise FaultNotApplicable("F18 needs a rotary embedding of one plain base")
    # Frequencies are base^(-2i/d): another base is another exponent.
    rotary.inv_freq.copy_(rotary.inv_freq.double() ** (math.log(base / 10) / math.log(base)))


def drop_softcap(model: Model) -> None:
    """F10: attention scores are not capped, where the model caps them."""
    found = [m for m in model.body.modules() if getattr(m, "attn_logit_softcapping", None)]
    if not found or implementation(model) != "eager":
        raise FaultNotApplicable("F10 needs a model that caps attention scores, under attn=eager")
    for attention in found:
        attention.attn_logit_softcapping = None  # type: ignore[assignment]


def _layers(model: Model) -> Iterator[nn.Module]:
    layers = getattr(model.body, "layers", None)
    if not layers:
        raise FaultNotApplicable("F5 needs a model made of layers")
    yield from layers
