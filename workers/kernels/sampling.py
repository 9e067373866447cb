"""Drawing the next token, in float32, with one generator a request."""

from __future__ import annotations

import torch
from torch import Tensor

from contracts.model import Sampling


def generator(seed: int) -> torch.Generator:
    """A request's own source of randomness, so that its batch does not change its tokens."""
    return torch.Generator().manual_seed(seed % 2**63)


def kept(scores: Tensor, sampling: Sampling) -> Tensor:
    """Which tokens truncation keeps: top-k, then top-p of what is left, then min-p.

    Args:
        scores: float32 [V], logits divided by the temperature.

    Returns:
        bool [V]; always holds the most likely token. Ties at the k-th place are all kept.
    """
    keep = torch.ones_like(scores, dtype=torch.bool)
    if 0 < sampling.top_k < len(scores):
        keep &= scores >= scores.topk(sampling.top_k).values[-1]
    if sampling.top_p < 1.0:
        p, order = scores.masked_fill(~keep, -torch.inf).softmax(-1).sort(descending=True, stable=True)
        before = p.cumsum(-1) - p  # the first token whose sum reaches top_p is kept
        keep[order[before >= sampling.top_p]] = False
    if sampling.min_p > 0.0:
        keep &= scores >= scores.max() + torch.tensor(sampling.min_p).log()
    return keep


def sample(logits: Tensor, sampling: Sampling, source: torch.Generator) -> tuple[int, float]:
    """The next token, and its log-probability at the temperature over the full vocabulary.

    Args:
        logits: raw, [V], padding cut.

    Returns:
        token id and float32 log-probability in nats. Logits that are no distribution (NaN, +inf,
        nothing finite) give the largest finite one's token and NaN: a server goes on too, and
        whoever compares kernels finds the decision unmeasurable at its position.
    """
    scores = logits.float() / sampling.temperature
    if bool(torch.isnan(scores).any()) or not bool(torch.isfinite(scores.max())):
        finite = torch.where(torch.isfinite(scores), scores, -torch.inf)
        return int(finite.argmax()), float("nan")
    keep = kept(scores, sampling) if sampling.truncated else None
    probabilities = (scores if keep is None else scores.masked_fill(~keep, -torch.inf)).softmax(-1)
    token = int(torch.multinomial(probabilities, 1, generator=source))
    return token, float(scores[token] - scores.logsumexp(-1))
