"""What the top-K log-probabilities of a server say of its drift from full logits: the certificate [C1].

Notation: p = softmax(z_tr) over the whole vocabulary, q the server's probabilities on the ids S it gave,
the rest of its mass q(S^c) = 1 − q(S) on ids unknown.

* tv_K ≤ TV ≤ tv_K + min(p(S^c), q(S^c)), tv_K = ½ Σ_S |p − q| + ½ |p(S^c) − q(S^c)|.
* KL(p‖q) and KL(q‖p) are at least those of the two distributions with S^c taken as one token (data
  processing), and have no upper end.
* The realised token is always in S, so its log ratio and both sides' likelihoods are exact, and so is the
  most likely token; `topk_agreement@k` is exact up to the K known and between two ends beyond.

Servers compute log-probs in float32: each is taken to be within `REPORTED` nats of the kernel's own, and
every end is moved outwards by all that this can change. Ratios are as reported. p(S^c) is summed over
S^c, not taken from 1; every step and reduction is float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from workers.drift import SIDES, DriftInputError, top_ids, topk_key
from workers.kernels.openai_answers import REPORTED, Row

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
else:
    Floats = Any

EXACT = ("log_ratio", "abs_log_ratio", "top1_flip", "unmeasurable")
ENDS = ("kl", "kl_reverse", "tv")  # known between two ends
_ROWS = 32  # whose float64 copies exist at once
_SHARE = math.expm1(REPORTED)  # what REPORTED nats are of a probability


def ends_names(ks: Sequence[int]) -> tuple[str, ...]:
    """The metrics known between two ends."""
    return (*ENDS, *(topk_key(k) for k in ks))


@dataclass(frozen=True, slots=True)
class Certified:
    """Every decision of a block.

    Attributes:
        values: float64 [n] of `EXACT` and `ends_names(ks)`, the lower ends of the latter.
        upper: float64 [n] of `ends_names(ks)`.
        sides: float64 [n] by name (`workers.drift.SIDES`).
    """

    values: dict[str, Floats]
    upper: dict[str, Floats]
    sides: dict[str, Floats]


@torch.inference_mode()
def certify(
    z_tr: Tensor, rows: Sequence[Row], tokens: Sequence[int], *, vocab_size: int, ks: Sequence[int] = ()
) -> Certified:
    """What is known of each decision [C1].

    Args:
        z_tr: raw logits [n, ≥ vocab_size] of the training kernel; ids from `vocab_size` on are padding.
        rows: what the server says of the same decisions, at temperature 1.
        tokens: the realised token of each, in [0, vocab_size).
        ks: the k of each `topk_agreement@k`; k above V means V.

    Where a training logit is not finite, the server's row is empty or sums to more than 1 + REPORTED, or
    the realised token is not in it, `unmeasurable` is 1 and all else is NaN. A −inf of the server's among
    ids it does not show cannot be seen: it is a probability of 0, which the ends cover.

    Raises DriftInputError: lengths differ, or an id is outside the vocabulary.
    """
    if not len(z_tr) == len(rows) == len(tokens):
        raise DriftInputError(f"{len(z_tr)} rows of logits, {len(rows)} of a server's, {len(tokens)} tokens")
    if not 0 < vocab_size <= z_tr.shape[1]:
        raise DriftInputError(f"vocabulary of {vocab_size} but logits over {z_tr.shape[1]} ids")
    for at, (row, token) in enumerate(zip(rows, tokens, strict=True)):
        outside = [one for one in (token, *row.logprobs) if not 0 <= one < vocab_size]
        if outside:
            raise DriftInputError(f"row {at}: token {outside[0]} is outside the vocabulary of {vocab_size}")
    names, ends = (*EXACT, *ends_names(ks)), ends_names(ks)
    blocks = [
        _block(
            z_tr[i : i + _ROWS, :vocab_size].double(), rows[i : i + _ROWS], tokens[i : i + _ROWS], tuple(ks)
        )
        for i in range(0, len(rows), _ROWS)
    ]

    def column(name: str) -> Floats:
        parts = [block[name] for block in blocks] or [torch.zeros(0, dtype=torch.float64)]
        return torch.cat(parts).numpy()

    return Certified(
        values={name: column(name) for name in names},
        upper={name: column(f"{name}^") for name in ends},
        sides={name: column(name) for name in SIDES},
    )


def _block(z: Tensor, rows: Sequence[Row], tokens: Sequence[int], ks: tuple[int, ...]) -> dict[str, Tensor]:
    usable = torch.isfinite(z).all(-1)
    ordered = [_ordered(row) for row in rows]
    for at, (row, token) in enumerate(zip(rows, tokens, strict=True)):
        mass = math.fsum(math.exp(value) for value in row.logprobs.values())
        usable[at] &= row.top >= 1 and token in row.logprobs and mass <= 1.0 + _SHARE
        if not usable[at]:  # computed all the same, of values that break nothing
            ordered[at] = [(token, -math.log(2.0))]
    z = torch.where(usable[:, None], z, 0.0)
    width = max(len(row) for row in ordered)
    # Padding repeats an id of the same row; its mass is masked out.
    ids = torch.tensor([[one for one, _ in row] + [row[0][0]] * (width - len(row)) for row in ordered])
    log_q = torch.tensor(
        [[v for _, v in row] + [-math.inf] * (width - len(row)) for row in ordered], dtype=torch.float64
    )
    y = torch.tensor([[one for one, _ in row].index(t) for row, t in zip(ordered, tokens, strict=True)])
    tops = [row.top if good else 1 for row, good in zip(rows, usable.tolist(), strict=True)]
    out = _reduce(z, ids, log_q, y[:, None])
    out |= _ranks(z, ordered, tops, torch.tensor(tokens), ks)
    out["unmeasurable"] = (~usable).double()
    return {
        name: value if name == "unmeasurable" else torch.where(usable, value, math.nan)
        for name, value in out.items()
    }


def _ordered(row: Row) -> list[tuple[int, float]]:
    return sorted(row.logprobs.items(), key=lambda pair: (-pair[1], pair[0]))


def _reduce(z: Tensor, ids: Tensor, log_q: Tensor, y: Tensor) -> dict[str, Tensor]:
    log_p_all = z - z.amax(-1, keepdim=True)
    log_p_all -= log_p_all.exp().sum(-1, keepdim=True).log()
    kept = log_q > -math.inf
    log_p = log_p_all.gather(-1, ids)
    p, q = torch.where(kept, log_p.exp(), 0.0), log_q.exp()
    tail_p = log_p_all.exp().scatter(-1, ids, 0.0).sum(-1)
    tail_q = (1.0 - q.sum(-1)).clamp(min=0.0)
    tv = 0.5 * ((p - q).abs().sum(-1) + (tail_p - tail_q).abs())
    delta = torch.where(kept, log_p - log_q, 0.0)
    kl = (p * delta).sum(-1) - REPORTED + torch.xlogy(tail_p, tail_p / (tail_q + _SHARE))
    # x·log(x/p) is least at x = p/e, within what q(S^c) can be.
    least = torch.clamp(tail_p / math.e, min=(tail_q - _SHARE).clamp(min=0.0), max=tail_q + _SHARE)
    slack = _SHARE * (q * (1.0 + _SHARE + delta.abs())).sum(-1)
    tiny = torch.finfo(torch.float64).tiny
    kl_reverse = -(q * delta).sum(-1) - slack + torch.xlogy(least, least / tail_p.clamp(min=tiny))
    endless = torch.full_like(tv, math.inf)
    log_p_y, log_q_y = log_p.gather(-1, y)[:, 0], log_q.gather(-1, y)[:, 0]
    return {
        "tv": (tv - _SHARE).clamp(0.0, 1.0),
        "tv^": (tv + torch.minimum(tail_p, tail_q) + _SHARE).clamp(0.0, 1.0),
        "kl": kl.clamp(min=0.0),
        "kl^": endless,
        "kl_reverse": kl_reverse.clamp(min=0.0),
        "kl_reverse^": endless,
        "log_ratio": log_p_y - log_q_y,
        "abs_log_ratio": (log_p_y - log_q_y).abs(),
        "confidence_train": log_p_all.amax(-1).exp(),
        "nll_train": -log_p_y,
        "confidence_inference": log_q[:, 0].exp(),
        "nll_inference": -log_q_y,
    }


def _ranks(
    z: Tensor, ordered: Sequence[Sequence[tuple[int, float]]], tops: Sequence[int], tokens: Tensor,
    ks: Sequence[int],
) -> dict[str, Tensor]:  # fmt: skip
    vocabulary = z.shape[-1]
    best = top_ids(z.float(), min(max((1, *ks)), vocabulary))
    first = torch.tensor([row[0][0] for row in ordered])
    out = {
        "top1_flip": (best[:, 0] != first).double(),
        "hit_train": (best[:, 0] == tokens).double(),
        "hit_inference": (first == tokens).double(),
    }
    for k in ks:
        within = min(k, vocabulary)
        low, high = [], []
        for mine, row, top in zip(best[:, :within].tolist(), ordered, tops, strict=True):
            known = {one for one, _ in row[: min(top, within)]}
            shared = len(known & set(mine))
            low.append(shared / within)
            # What is not known of the server's k may be any of those it has not placed.
            high.append(min(within, shared + within - len(known)) / within)
        out[topk_key(k)] = torch.tensor(low, dtype=torch.float64)
        out[f"{topk_key(k)}^"] = torch.tensor(high, dtype=torch.float64)
    return out
