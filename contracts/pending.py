"""One cell of evidence while it is being collected.

Sums over prompts are exact; nothing is rounded before it is frozen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from contracts.accumulators import (
    MAX_NAMED,
    Count,
    Draws,
    Extreme,
    Gauge,
    Moments,
    Position,
    Sketch,
    Unmeasurable,
)
from contracts.calibration import CalibrationSums
from contracts.evidence import Cell, Ends
from contracts.generations import Rewarded, frozen_rewards, gap_draws
from contracts.metrics import METRICS, Shape
from contracts.model import Clause, Phase, Reward
from contracts.paired_accumulators import Outcomes, Weights
from contracts.reductions import Measured, limits_mean


@dataclass
class Pending:
    """One cell under construction."""

    shares: list[tuple[int, int]] = field(default_factory=list)
    means: list[float] = field(default_factory=list)
    extreme: Extreme | None = None
    missed: int = 0
    first: list[Position] = field(default_factory=list)
    calibration: CalibrationSums | None = None
    nll: list[tuple[float, float]] = field(default_factory=list)
    candidate: list[float] = field(default_factory=list)
    baseline: list[float] = field(default_factory=list)
    events: int = 0
    trials: int = 0
    gauge: Gauge | None = None
    weights: list[tuple[int, float, float]] = field(default_factory=list)
    rewards: list[Rewarded] = field(default_factory=list)
    outcomes: list[tuple[bool, bool]] = field(default_factory=list)
    upper: Pending | None = None

    def add(self, measured: Measured, most: Measured | None = None) -> None:
        """Add one prompt; `most` is what it is at the upper ends of its values, where they have any."""
        if most is not None:
            self.upper = self.upper or Pending()
            self.upper.add(most)
        self.missed += len(measured.missed)
        self.first.extend(measured.missed[:MAX_NAMED])
        if measured.share is not None:
            self.shares.append(measured.share)
        if measured.mean is not None:
            self.means.append(measured.mean)
        if measured.extreme is not None:
            self.extreme = measured.extreme if self.extreme is None else self.extreme.merge(measured.extreme)
        if measured.calibration is not None:
            self.calibration = measured.calibration.plus(self.calibration)
        if measured.nll is not None:
            self.nll.append(measured.nll)
        if measured.weights is not None:
            self.weights.append(measured.weights)
        if measured.reward is not None:
            self.rewards.append(measured.reward)
            self.weights.extend([measured.reward.weights] if measured.reward.weights else [])
        if measured.outcome is not None:
            self.outcomes.append(measured.outcome)

    def frozen(self, clause: Clause, name: str, phase: Phase | None, reward: Reward | None) -> Cell:
        """As evidence, with the accumulators of docs/architecture.md's table."""
        metric = METRICS[clause.metric]
        cell = partial(
            Cell,
            clause=clause.id,
            slice=name,
            phase=phase,
            unmeasurable=Unmeasurable(count=self.missed).merge(Unmeasurable(first=tuple(self.first))),
        )
        if metric.shape is Shape.RUNTIME:
            baseline = Sketch.of(self.baseline) if clause.relative_to else None
            return cell(candidate=Sketch.of(self.candidate), baseline=baseline)
        if metric.shape is Shape.COUNT:
            return cell(count=Count(events=self.events, trials=self.trials))
        if metric.shape is Shape.GAUGE:
            return cell(gauge=self.gauge)
        if metric.shape is Shape.PAIRED:
            train, inference = [a for a, _ in self.nll], [b for _, b in self.nll]
            return cell(
                calibration=self.calibration and self.calibration.frozen(),
                nll_train=Moments.of(train) if train else None,
                nll_inference=Moments.of(inference) if train else None,
                nll_gap=Moments.of(b - a for a, b in self.nll) if train else None,
                extreme=self.extreme,
                weights=Weights.of(self.weights) if self.weights else None,
                outcomes=Outcomes.of(self.outcomes) if self.outcomes else None,
                rewards=frozen_rewards(self.rewards),
                draws=gap_draws(self.rewards, reward) if reward else None,
            )
        mine = self._ends(clause)
        upper = self.upper._ends(clause) if self.upper else None
        return cell(draws=mine.draws, moments=mine.moments, extreme=mine.extreme, upper=upper)

    def _ends(self, clause: Clause) -> Ends:
        if not limits_mean(clause):
            draws: Draws | None = Draws.of(self.shares)
        else:
            draws = Draws.of_means(self.means) if METRICS[clause.metric].bounded else None
        return Ends(draws=draws, moments=Moments.of(self.means), extreme=self.extreme)
