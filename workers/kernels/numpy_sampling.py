"""Drawing the next token as `workers.kernels.sampling` does, for engines whose interpreter has no torch.

The same truncation and the same log-probabilities; another random generator, so a seed gives other
tokens here than there, and always the same ones here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from contracts.model import Sampling

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.floating[Any]]
    Mask = NDArray[np.bool_]
else:
    Floats = Mask = Any


def generator(seed: int) -> np.random.Generator:
    """A request's own source of randomness, so that its batch does not change its tokens."""
    return np.random.Generator(np.random.PCG64(seed % 2**63))


def kept(scores: Floats, sampling: Sampling) -> Mask:
    """Which tokens truncation keeps: top-k, then top-p of what is left, then min-p.

    Args:
        scores: float64 [V], logits divided by the temperature.

    Returns:
        bool [V]; always holds the most likely token. Ties at the k-th place are all kept.
    """
    keep = np.ones(len(scores), dtype=bool)
    if 0 < sampling.top_k < len(scores):
        keep &= scores >= np.partition(scores, -sampling.top_k)[-sampling.top_k]
    if sampling.top_p < 1.0:
        p = _softmax(np.where(keep, scores, -np.inf))
        order = np.argsort(-p, kind="stable")
        before = np.cumsum(p[order]) - p[order]  # the first token whose sum reaches top_p is kept
        keep[order[before >= sampling.top_p]] = False
    if sampling.min_p > 0.0:
        keep &= scores >= scores.max() + math.log(sampling.min_p)
    return keep


def sample(logits: Floats, sampling: Sampling, source: np.random.Generator) -> tuple[int, float]:
    """The next token, and its log-probability at the temperature over the full vocabulary.

    Args:
        logits: raw, [V], padding cut.

    Returns:
        token id and log-probability in nats, reduced in float64. Logits that are no distribution
        (NaN, +inf, nothing finite) give the largest finite one's token and NaN, as a server would
        go on too.
    """
    scores = logits.astype(np.float64) / sampling.temperature
    if np.isnan(scores).any() or not np.isfinite(scores.max()):
        return int(np.where(np.isfinite(scores), scores, -np.inf).argmax()), float("nan")
    keep = kept(scores, sampling) if sampling.truncated else None
    p = _softmax(scores if keep is None else np.where(keep, scores, -np.inf))
    sums = np.cumsum(p)
    # A draw in [0, total) never lands on a token of probability 0, the last ones included.
    token = int(np.searchsorted(sums, source.random() * sums[-1], side="right"))
    high = scores.max()
    return token, float(scores[token] - high - np.log(np.exp(scores - high).sum()))


def _softmax(scores: Floats) -> Floats:
    p = np.exp(scores - scores.max())
    return p / p.sum()
