"""What one prompt's generations become: rewards, graded outcomes, importance weights.

Float64. What is no number is unmeasurable: it is reported by position and is in no mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from contracts.accumulators import GRID, Draws, Moments, Position
from contracts.model import Reward
from contracts.paired_accumulators import Rewards

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_LOG_WEIGHT = 300.0  # nats; beyond it sums of squared weights leave float64
Form = Literal["paired", "weighted"]
Graded = float | Sequence[float]


@dataclass(frozen=True)
class Rewarded:
    """One prompt's reward under both kernels; `weights` is (1, w, w²) where it is weighted."""

    form: Form
    train: float
    inference: float
    weights: tuple[int, float, float] | None = None


def paired_reward(reward: Reward, train: Graded, inference: Graded) -> Rewarded | None:
    """Mean rewards of a prompt's generations by each kernel; None where one is NaN.

    Raises ValueError for a reward outside the contract's range, or none at all.
    """
    on_train, on_inference = _mean(reward, train), _mean(reward, inference)
    if math.isnan(on_train + on_inference):
        return None
    return Rewarded("paired", on_train, on_inference)


def weighted_reward(reward: Reward, value: float, log_weight: float) -> Rewarded | None:
    """The reward of one generation by inference, weighted by w = π_train(y|x)/π_inf(y|x).

    `log_weight` is log w of the whole generation, in nats. With c the middle of the range,
    c + w(r − c) has mean E_train r over rollouts, since E w = 1. None where reward or weight is
    no number, or |log w| is above `MOST_LOG_WEIGHT`. Raises ValueError for a reward outside the
    range.
    """
    value = _mean(reward, value)
    if math.isnan(value) or not abs(log_weight) <= MOST_LOG_WEIGHT:
        return None
    weight, centre = math.exp(log_weight), sum(reward.range) / 2.0
    return Rewarded("weighted", centre + weight * (value - centre), value, (1, weight, weight * weight))


def token_weights(log_ratios: NDArray[np.float64]) -> tuple[int, float, float]:
    """(n, Σ w, Σ w²) of a prompt's measurable log ratios, nats [n]."""
    import numpy as np

    weights = np.exp(log_ratios)
    return log_ratios.size, math.fsum(weights), math.fsum(weights * weights)


def frozen_rewards(rewarded: Sequence[Rewarded]) -> Rewards | None:
    """As evidence; None without any."""
    if not rewarded:
        return None
    return Rewards(
        form=rewarded[0].form,
        train=Moments.of(r.train for r in rewarded),
        inference=Moments.of(r.inference for r in rewarded),
        gap=Moments.of(r.train - r.inference for r in rewarded),
    )


def gap_draws(rewarded: Sequence[Rewarded], reward: Reward) -> Draws | None:
    """Paired differences as draws (gap + R)/2R in [0, 1], R the width of the range; else None.

    Rounded to `GRID` parts.
    """
    if not rewarded or rewarded[0].form != "paired":
        return None
    width = reward.range[1] - reward.range[0]
    return Draws.of((round((r.train - r.inference + width) / (2.0 * width) * GRID), GRID) for r in rewarded)


def whole(draw: str) -> Position:
    """The position of a generation as a whole."""
    return Position(draw=draw, index=0)


def _mean(reward: Reward, given: Graded) -> float:
    values = [given] if isinstance(given, int | float) else list(given)
    if not values:
        raise ValueError("no reward")
    low, high = reward.range
    for value in values:
        if not (math.isnan(value) or low <= value <= high):
            raise ValueError(f"reward {value} is outside the contract's range [{low}, {high}]")
    return math.fsum(values) / len(values)
