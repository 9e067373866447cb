"""Per-decision drift over the full vocabulary (theory.md section 2, Q1-Q10).

Notation: `z_tr`, `z_inf` are raw logits, `d = z_tr - z_inf`, `p = softmax(z_tr / T)`,
`q = softmax(z_inf / T)`, `delta_v = log p_v - log q_v`.

Every elementwise step and every reduction over V is float64: logits arrive in the kernel's
dtype, and their differences are often smaller than float32 resolves at the logits' own size.

* KL(p||q) = sum p (delta + expm1(-delta)) = sum p delta^2 phi(-delta), with
  phi(x) = (e^x - 1 - x) / x^2, and KL(q||p) = sum q delta^2 phi(delta): every term is >= 0,
  so a divergence of 1e-12 is as exact as one of 1. phi is a polynomial where |delta| < 1/4;
  beyond it `p delta + q - p` loses at most two digits of sixteen and cannot overflow.
* TV = 1/2 sum p |expm1(-delta)| by the same polynomial.
* Centred quantities take the mean first and square afterwards.
* Logits the two kernels share stay exact under any common or separate offset, because
  exponentials are taken after subtracting each side's own maximum.

The reductions are fused by `torch.compile` where that pays and a C++ compiler exists, and
eager otherwise, with the same results to float64 rounding.
"""

from __future__ import annotations

import functools
import logging
import shutil
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

log = logging.getLogger(__name__)

METRICS = (
    "logit_l2", "logit_l2_centered", "logit_linf", "logit_osc", "logit_weighted",
    "log_ratio", "abs_log_ratio", "kl", "kl_reverse", "tv", "top1_flip", "unmeasurable",
)  # fmt: skip
SIDES = (
    "confidence_train", "hit_train", "nll_train",
    "confidence_inference", "hit_inference", "nll_inference",
)  # fmt: skip

_COMPILE_FROM = 4096  # a smaller vocabulary never earns back the seconds of compiling
_FUSE_FROM = 12_000  # nor do fewer decisions: compiling takes 15 s and more, and saves over 1 ms each
# Elements taken at once: larger float64 temporaries leave the cache, and in eager are mapped anew each time.
_EAGER_ELEMENTS, _FUSED_ELEMENTS = 1 << 17, 1 << 20
_CHUNK = 128  # width of the chunks top-k is searched in
_NEAR = 0.25
# 1/(k+2)!: the even and the odd coefficients of phi, enough for 1e-16 where |x| < 1/4.
_EVEN = (1 / 2, 1 / 24, 1 / 720, 1 / 40320, 1 / 3628800, 1 / 479001600)
_ODD = (1 / 6, 1 / 120, 1 / 5040, 1 / 362880, 1 / 39916800)

Reductions = Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, ...]]


class DriftInputError(ValueError):
    """Logits, tokens or parameters that do not describe the same decisions."""


def topk_key(k: int) -> str:
    """The name of `topk_agreement` at `k`, which is a different number at each k."""
    return f"topk_agreement@{k}"


def metric_names(ks: Sequence[int]) -> tuple[str, ...]:
    """Every metric `drift` gives for these `ks`, in the order it gives them."""
    return (*METRICS, *(topk_key(k) for k in ks))


def _horner(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    value = x * coefficients[-1] + coefficients[-2]
    for c in reversed(coefficients[:-2]):
        value = value * x + c
    return value


def _extents(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    a, b = a.double(), b.double()
    d = a - b
    return a.amax(-1), b.amax(-1), d.amax(-1), d.amin(-1), d.sum(-1)


def _masses(
    a: Tensor, b: Tensor, max_a: Tensor, max_b: Tensor, mean: Tensor, inverse_temperature: float
) -> tuple[Tensor, ...]:
    a, b = a.double(), b.double()
    d = a - b
    dc = d - mean
    exp_a = torch.exp((a - max_a) * inverse_temperature)
    exp_b = torch.exp((b - max_b) * inverse_temperature)
    return exp_a.sum(-1), exp_b.sum(-1), (d * d).sum(-1), (dc * dc).sum(-1), (exp_b * dc).sum(-1)


def _divergences(
    a: Tensor, b: Tensor, max_a: Tensor, max_b: Tensor, part_a: Tensor, part_b: Tensor,
    middle: Tensor, shift: Tensor, inverse_temperature: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    a, b = a.double(), b.double()
    d = a - b
    p = torch.exp((a - max_a) * inverse_temperature) * part_a
    q = torch.exp((b - max_b) * inverse_temperature) * part_b
    spread = d - middle
    delta = d * inverse_temperature - shift
    near = delta.abs() < _NEAR
    x = delta.clamp(-_NEAR, _NEAR)
    xx = x * x
    even, odd = xx * _horner(xx, _EVEN), x * xx * _horner(xx, _ODD)
    return (
        (q * spread * spread).sum(-1),
        torch.where(near, p * (even - odd), p * delta + (q - p)).sum(-1),
        torch.where(near, q * (even + odd), (p - q) - q * delta).sum(-1),
        torch.where(near, p * (even - odd - x).abs(), (p - q).abs()).sum(-1),
    )


# Three passes, each of which a compiler makes one loop that stores nothing: taken as one graph,
# what later sums share is stored for every token, and costs more than the exponentials taken twice.
_PASSES = (_extents, _masses, _divergences)


def _reduce(
    z_tr: Tensor,
    z_inf: Tensor,
    tokens: Tensor,
    inverse_temperature: float,
    passes: tuple[Callable[..., tuple[Tensor, ...]], ...] = _PASSES,
) -> tuple[Tensor, ...]:
    extents, masses, divergences = passes
    max_a, max_b, high, low, total = extents(z_tr, z_inf)
    tops, mean = (max_a[:, None], max_b[:, None]), (total / z_tr.shape[-1])[:, None]
    sum_a, sum_b, square, square_centered, tilt = masses(z_tr, z_inf, *tops, mean, inverse_temperature)
    shift = (max_a - max_b) * inverse_temperature + (sum_a.log() - sum_b.log())
    middle = mean + (tilt / sum_b)[:, None]
    part_a, part_b = 1.0 / sum_a, 1.0 / sum_b  # a division a row, not one a token
    variance, kl, kl_reverse, absolute = divergences(
        z_tr, z_inf, *tops, part_a[:, None], part_b[:, None], middle, shift[:, None], inverse_temperature
    )
    a_y = z_tr.gather(-1, tokens[:, None])[:, 0].double()
    b_y = z_inf.gather(-1, tokens[:, None])[:, 0].double()
    log_ratio = (a_y - b_y) * inverse_temperature - shift
    nll_a = sum_a.log() - (a_y - max_a) * inverse_temperature
    nll_b = sum_b.log() - (b_y - max_b) * inverse_temperature
    return (
        square.sqrt(), square_centered.sqrt(), torch.maximum(high.abs(), low.abs()), high - low,
        variance.sqrt(), log_ratio, kl, kl_reverse, 0.5 * absolute,
        part_a, nll_a, part_b, nll_b,
    )  # fmt: skip


def _blocked(reduce: Reductions, elements: int) -> Reductions:
    def reductions(
        z_tr: Tensor, z_inf: Tensor, tokens: Tensor, inverse_temperature: float
    ) -> tuple[Tensor, ...]:
        rows = max(1, elements // z_tr.shape[-1])
        blocks = [
            reduce(z_tr[i : i + rows], z_inf[i : i + rows], tokens[i : i + rows], inverse_temperature)
            for i in range(0, len(tokens), rows)
        ]
        return tuple(torch.cat(column) for column in zip(*blocks, strict=True))

    return reductions


_eager = _blocked(_reduce, _EAGER_ELEMENTS)


@functools.cache
def compiled() -> Reductions:
    """The fused reductions; eager, and saying so in the log, where they cannot be compiled."""
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        log.warning("no C++ compiler: drift reductions run eagerly, about twice as slow")
        return _eager
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # raised by the compiler's own imports
        passes = tuple(torch.compile(one, dynamic=True, options={"compile_threads": 1}) for one in _PASSES)
    failed = False

    def reduce(z_tr: Tensor, z_inf: Tensor, tokens: Tensor, inverse_temperature: float) -> tuple[Tensor, ...]:
        nonlocal failed
        if not failed and len(tokens) > 1:  # a single row would compile a second variant
            try:
                return _reduce(z_tr, z_inf, tokens, inverse_temperature, passes)
            except (RuntimeError, OSError) as error:  # of the compiler, its toolchain or its cache
                log.warning("drift reductions did not compile and run eagerly: %s", str(error).split("\n")[0])
                failed = True
        return _eager(z_tr, z_inf, tokens, inverse_temperature)

    return _blocked(reduce, _FUSED_ELEMENTS)


def worth_fusing(decisions: int) -> bool:
    """Whether so many decisions earn back the compiling, or a process has compiled already."""
    return decisions >= _FUSE_FROM or compiled.cache_info().currsize > 0


def _order_keys(values: Tensor, ids: Tensor) -> Tensor:
    # One int64 that sorts by value, then by smaller id: float32 bits are monotone once
    # negative ones are mirrored, and adding 0.0 makes -0.0 the same as 0.0.
    bits = (values.float() + 0.0).view(torch.int32)
    monotone = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (monotone.long() << 32) | (0x7FFFFFFF - ids)


def top_ids(logits: Tensor, k: int) -> Tensor:
    """Ids of the `k` largest logits of each row, best first; ties go to the smaller id.

    Args:
        logits: [n, V], any float dtype up to float32, no NaN.

    Returns:
        int64 [n, k].
    """
    n, vocabulary = logits.shape
    whole = vocabulary // _CHUNK
    ids = torch.arange(vocabulary, device=logits.device)
    if whole <= 2 * k:
        keys = _order_keys(logits, ids)
    else:
        # A token among the k best lies in one of the k chunks with the best maxima.
        chunks = logits[:, : whole * _CHUNK].unflatten(-1, (whole, _CHUNK))
        best = _order_keys(chunks.amax(-1), ids[:whole]).topk(k).values
        chosen = 0x7FFFFFFF - (best & 0x7FFFFFFF)
        spots = (chosen[:, :, None] * _CHUNK + ids[:_CHUNK]).flatten(1)
        spots = torch.cat((spots, ids[whole * _CHUNK :].expand(n, -1)), -1)
        keys = _order_keys(logits.gather(-1, spots), spots)
    return 0x7FFFFFFF - (keys.topk(k).values & 0x7FFFFFFF)


def _measure(
    z_tr: Tensor, z_inf: Tensor, tokens: Tensor, temperature: float, ks: Sequence[int], reductions: Reductions
) -> dict[str, Tensor]:
    names = (
        "logit_l2", "logit_l2_centered", "logit_linf", "logit_osc", "logit_weighted", "log_ratio",
        "kl", "kl_reverse", "tv", "confidence_train", "nll_train", "confidence_inference", "nll_inference",
    )  # fmt: skip
    out = dict(zip(names, reductions(z_tr, z_inf, tokens, 1.0 / temperature), strict=True))
    out["abs_log_ratio"] = out["log_ratio"].abs()
    widest = min(max((1, *ks)), z_tr.shape[-1])
    top_tr, top_inf = top_ids(z_tr, widest), top_ids(z_inf, widest)
    out["top1_flip"] = (top_tr[:, 0] != top_inf[:, 0]).double()
    out["hit_train"] = (top_tr[:, 0] == tokens).double()
    out["hit_inference"] = (top_inf[:, 0] == tokens).double()
    for k in ks:
        shared = (top_tr[:, :k, None] == top_inf[:, None, :k]).any(-1).sum(-1)
        out[topk_key(k)] = shared.double() / min(k, widest)
    # A sum of squares is finite exactly when every logit of both sides is.
    out["unmeasurable"] = (~torch.isfinite(out["logit_l2"] + out["log_ratio"])).double()
    return out


def _on_support(
    z_tr: Tensor, z_inf: Tensor, token: Tensor, temperature: float, ks: Sequence[int]
) -> dict[str, Tensor] | None:
    """One row with logits that are not finite, as if ids masked on both sides did not exist."""
    masked = (z_tr == -torch.inf) & (z_inf == -torch.inf)
    kept = (~masked).nonzero()[:, 0]
    broken = ~(torch.isfinite(z_tr[kept]) & torch.isfinite(z_inf[kept])).all()
    if broken or len(kept) == 0 or masked[token]:
        return None
    where = (kept == token).nonzero()[:, 0]
    return _measure(z_tr[kept][None], z_inf[kept][None], where, temperature, ks, _eager)


def _check(z_tr: Tensor, z_inf: Tensor, tokens: Tensor, temperature: float, vocab_size: int) -> None:
    if z_tr.dim() != 2 or z_tr.shape[0] != z_inf.shape[0] or tokens.shape != z_tr.shape[:1]:
        raise DriftInputError(
            f"logits {tuple(z_tr.shape)} and {tuple(z_inf.shape)} and tokens {tuple(tokens.shape)} "
            "are not one row a decision"
        )
    if not 0 < vocab_size <= min(z_tr.shape[1], z_inf.shape[1]):
        raise DriftInputError(
            f"vocabulary of {vocab_size} but logits over {z_tr.shape[1]} and {z_inf.shape[1]} ids"
        )
    if not temperature > 0:
        raise DriftInputError(f"temperature must be above 0, not {temperature}")
    outside = ((tokens < 0) | (tokens >= vocab_size)).nonzero()
    if len(outside):
        at = int(outside[0])
        raise DriftInputError(f"row {at}: token {int(tokens[at])} is outside the vocabulary of {vocab_size}")


def _widened(logits: Tensor) -> Tensor:
    # Exact, and the loops over both sides then convert eight numbers at a time.
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits


@torch.inference_mode()
def drift(
    z_tr: Tensor,
    z_inf: Tensor,
    tokens: Tensor,
    *,
    temperature: float,
    vocab_size: int,
    ks: Sequence[int] = (),
    fuse: bool = True,
) -> dict[str, Tensor]:
    """Every drift quantity of a block of decisions, from both kernels' logits [Q1-Q10].

    Args:
        z_tr, z_inf: raw logits [n, >= vocab_size] of the training and the inference kernel, in
            the kernel's dtype; ids from `vocab_size` on are padding and are cut.
        tokens: int64 [n], the realised token of each decision.
        temperature: T > 0, the one really sampled at. `logit_*` are of raw logits; p, q and all
            that is made of them, the weights of `logit_weighted` [Q5, B9] included, are at T.
            Under truncated sampling both sides still are full softmaxes, so ratios carry no
            hidden factor of kept mass [S8].
        ks: the k of each `topk_agreement@k`; k above V means V.
        fuse: whether `torch.compile` may be used.

    Returns:
        float64 [n] for each of `metric_names(ks)` in `contracts.metrics` units, and for `SIDES`:
        confidence (largest probability), hit (argmax is the realised token) and nll (nats) of
        each side. Where a logit is NaN or +inf on either side, -inf on one side only (a
        support violation), or the realised token is masked, `unmeasurable` is 1 and all else
        is NaN. Ids at -inf on both sides are left out, as if the vocabulary lacked them.

    Raises:
        DriftInputError: shapes, tokens or temperature do not fit.
    """
    _check(z_tr, z_inf, tokens, temperature, vocab_size)
    z_tr, z_inf = _widened(z_tr[:, :vocab_size]), _widened(z_inf[:, :vocab_size])
    names = (*metric_names(ks), *SIDES)
    if len(tokens) == 0:
        return {name: torch.zeros(0, dtype=torch.float64) for name in names}
    reductions = compiled() if fuse and vocab_size >= _COMPILE_FROM else _eager
    out = _measure(z_tr, z_inf, tokens, temperature, ks, reductions)
    for row in out["unmeasurable"].nonzero()[:, 0].tolist():
        found = _on_support(z_tr[row], z_inf[row], tokens[row], temperature, ks)
        for name in names:
            missing = float("nan") if name != "unmeasurable" else 1.0
            out[name][row] = found[name][0] if found else missing
    return {name: out[name] for name in names}
