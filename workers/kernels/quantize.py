"""Weight-only quantisation of a loaded model's body, and what of it goes into the fingerprint.

int8 (a scale for each output channel) and int4 (a scale for each group of 32) are torchao's;
`int8-per-tensor` is the naive one a contract should catch.
"""

from __future__ import annotations

import hashlib
import warnings

import torch
from torch import nn

from workers.kernels.models import Model
from workers.kernels.protocol import KernelError

GROUP = 32  # weights that share a scale in int4


class CannotQuantize(KernelError):
    """The library is missing, or the model has a matrix the scheme does not fit."""


def quantize(model: Model, scheme: str | None) -> str | None:
    """Quantise every linear weight of the body; the digest of their scales, None without any.

    Args:
        scheme: int8, int4, int8-per-tensor, or None for nothing.

    Raises CannotQuantize.
    """
    if scheme is None:
        return None
    if scheme == "int8-per-tensor":
        quantise_per_tensor(model.body)
        return None  # its scales are gone with the rounding
    linears = [m for m in model.body.modules() if isinstance(m, nn.Linear)]
    if scheme == "int4" and (odd := [m.in_features for m in linears if m.in_features % GROUP]):
        raise CannotQuantize(f"int4 shares a scale among {GROUP} weights, and a matrix has {odd[0]} inputs")
    _apply(model.body, scheme)
    return _digest(linears)


def _apply(body: nn.Module, scheme: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, quantize_
            from torchao.quantization.granularity import PerGroup
        except ImportError as error:
            raise CannotQuantize(
                f"weights={scheme} needs torchao: pip install --no-deps torchao ({error})"
            ) from error
        if scheme == "int8":
            quantize_(body, Int8WeightOnlyConfig())
        else:
            # The packed int4 kernels are for GPUs only; this one unpacks, with the same numbers.
            quantize_(body, IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(GROUP)))


def _digest(linears: list[nn.Linear]) -> str:
    digest = hashlib.sha256()
    for linear in linears:
        scale = linear.weight.scale.detach().contiguous()  # type: ignore[union-attr]
        digest.update(f"{tuple(scale.shape)} {scale.dtype}\n".encode())
        digest.update(scale.reshape(-1).view(torch.uint8).numpy().tobytes())
    return "sha256:" + digest.hexdigest()


@torch.no_grad()
def quantise_per_tensor(body: nn.Module) -> None:
    """Round every linear weight to 255 levels of one scale a matrix, naively."""
    # One outlier sets the scale of the whole matrix: the mistake the option is there to show.
    for module in body.modules():
        if isinstance(module, nn.Linear):
            weight = module.weight.float()
            scale = weight.abs().max().clamp_min(torch.finfo(torch.float32).tiny) / 127
            module.weight.copy_((weight / scale).round().clamp(-127, 127) * scale)
