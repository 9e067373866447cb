"""Per-decision values in, `Evidence` out.

One `Collector` a shard. It knows which clauses the stage asks for, on which slices and in
which phases, and keeps only what their cells need: nothing grows with tokens but the work.

Reductions: float64 throughout; means within a prompt with math.fsum, sums over prompts exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

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
from contracts.calibration import Calibrated, CalibrationSums
from contracts.evidence import Cell, Evidence, Provenance, RecordsRef
from contracts.generations import (
    Graded,
    Rewarded,
    frozen_rewards,
    gap_draws,
    paired_reward,
    weighted_reward,
    whole,
)
from contracts.metrics import METRICS, Shape
from contracts.model import Clause, Contract, Phase, Reward
from contracts.paired_accumulators import Outcomes, Weights
from contracts.reductions import Measured, Prompt, limits_mean, measure, metric_key, phases_of
from contracts.slices import Attributes, matches

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

ROUNDING = 1e-9  # how far a bounded metric may stray out of its range and still be rounding
Role = Literal["baseline", "candidate", "mirror"]


class BadValues(ValueError):
    """Values that cannot be evidence: the message says which draw, phase and metric."""


@dataclass
class _Pending:
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

    def add(self, measured: Measured) -> None:
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
        if not limits_mean(clause):
            draws: Draws | None = Draws.of(self.shares)
        else:
            draws = Draws.of_means(self.means) if metric.bounded else None
        return cell(draws=draws, moments=Moments.of(self.means), extreme=self.extreme)


class Collector:
    """Collects one shard of one attempt of one stage.

    Args:
        contract: what is asked; only clauses of `provenance.stage` are collected.
        provenance: digests of everything that produces the values.
        shard: name of this disjoint part of the prompts.
    """

    def __init__(self, contract: Contract, provenance: Provenance, shard: str) -> None:
        self._contract = contract
        self._provenance = provenance
        self._shard = shard
        self._clauses = contract.clauses_at(provenance.stage)
        self._slices = contract.slices_used()
        self._cells: dict[tuple[str, str, Phase | None], _Pending] = {}
        self._seen: set[tuple[str, Phase]] = set()
        self._draws: set[str] = set()
        self._generated: set[tuple[str, str]] = set()
        self._form: str | None = None
        self._keys: frozenset[str] | None = None

    @property
    def needs(self) -> frozenset[str]:
        """Keys of the per-decision values the clauses need, such as `kl` or `topk_agreement@10`."""
        keys = {metric_key(c) for c in self._clauses if METRICS[c.metric].shape is Shape.DECISION}
        if "clip_fraction_at_zero" in keys:
            keys = keys - {"clip_fraction_at_zero"} | {"log_ratio"}
        if any(c.metric == "ess" for c in self._clauses):
            keys |= {"log_ratio"}
        return frozenset(keys)

    @property
    def needs_calibration(self) -> bool:
        """Whether a clause needs confidences and hits."""
        return any(c.metric == "ece_gap" for c in self._clauses)

    @property
    def needs_nll(self) -> bool:
        """Whether a clause needs negative log-likelihoods."""
        return any(c.metric == "ppl_ratio" for c in self._clauses)

    @property
    def needs_rewards(self) -> bool:
        """Whether a clause needs rewards of generations."""
        return any(c.metric == "reward_drift" for c in self._clauses)

    @property
    def needs_outcomes(self) -> bool:
        """Whether a clause needs graded outcomes of generations."""
        return any(c.metric == "flip_rate" for c in self._clauses)

    def add_prompt(
        self,
        draw: str,
        attributes: Attributes,
        phase: Phase,
        values: Mapping[str, Sequence[float] | Floats],
        *,
        calibration: Calibrated | None = None,
        nll: tuple[Sequence[float] | Floats, Sequence[float] | Floats] | None = None,
        offset: int = 0,
    ) -> None:
        """Add every decision of one prompt in one phase.

        Args:
            draw: identity of the prompt; once a phase.
            values: by metric key, float64 [n], the same keys at every call; NaN exactly where a
                decision is unmeasurable. A decision NaN in one metric counts so for all. The key
                `unmeasurable` (0 or 1) may be given, and is worked out otherwise.
            calibration: confidence and hit [n] of both kernels, for `ece_gap`.
            nll: negative log-likelihood of the realised token, nats, [n] train and inference.
            offset: index in the trace of the first decision.

        Raises BadValues, with nothing added, for a draw given twice, lengths or keys that differ,
        or a value outside its metric's range. No decisions is no draw and changes nothing.
        """
        prompt = self._checked(draw, phase, values, calibration, nll, offset)
        if not prompt.broken.size:
            return
        clip = self._contract.rl.clip if self._contract.rl else None
        found = [(c, measure(c, prompt, clip)) for c in self._clauses if phase in phases_of(c)]
        self._seen.add((draw, phase))
        self._draws.add(draw)
        self._keys = frozenset(values)
        for clause, measured in found:
            if measured is not None:
                for name in self._slices_of(clause, attributes):
                    self._cell(clause, name, phase).add(measured)

    def add_rewards(self, draw: str, attributes: Attributes, train: Graded, inference: Graded) -> None:
        """Add the rewards of what both kernels generated for one prompt, for `reward_drift`.

        Each side is one reward or those of several generations, of which the mean counts; NaN is
        unmeasurable. Raises BadValues, with nothing added, for a draw given twice, a reward outside
        the contract's range, or importance-weighted rewards in the same shard.
        """
        self._add_reward(draw, attributes, "paired", lambda reward: paired_reward(reward, train, inference))

    def add_weighted_reward(
        self, draw: str, attributes: Attributes, reward: float, log_weight: float
    ) -> None:
        """Add the reward of one generation by inference, with log π_train(y|x) − log π_inf(y|x), nats.

        For `reward_drift` where only the serving kernel generates. A weight that is no number, or
        beyond ±300 nats, is unmeasurable. Raises as :meth:`add_rewards`.
        """
        self._add_reward(draw, attributes, "weighted", lambda r: weighted_reward(r, reward, log_weight))

    def add_outcome(
        self, draw: str, attributes: Attributes, train: bool | None, inference: bool | None
    ) -> None:
        """Add whether both kernels passed one task, for `flip_rate`; None is ungraded, so unmeasurable.

        Raises BadValues for a draw given twice.
        """
        pair = None if train is None or inference is None else (bool(train), bool(inference))
        self._add_generation("flip_rate", draw, attributes, Measured(outcome=pair))

    def _add_reward(
        self, draw: str, attributes: Attributes, form: str, of: Callable[[Reward], Rewarded | None]
    ) -> None:
        if self._contract.reward is None:
            raise BadValues(f"draw {draw!r}: the contract has no reward section")
        if self._form not in {None, form}:
            raise BadValues(f"draw {draw!r}: {form} rewards beside {self._form} ones; a shard has one kind")
        try:
            found = of(self._contract.reward)
        except ValueError as error:
            raise BadValues(f"draw {draw!r}: {error}") from None
        self._add_generation("reward_drift", draw, attributes, Measured(reward=found))
        self._form = form

    def _add_generation(self, metric: str, draw: str, attributes: Attributes, measured: Measured) -> None:
        if (draw, metric) in self._generated:
            raise BadValues(f"draw {draw!r}, {metric}: given twice; a draw counts once")
        self._generated.add((draw, metric))
        self._draws.add(draw)
        if measured.reward is None and measured.outcome is None:
            measured = Measured(missed=[whole(draw)])
        for clause in self._clauses:
            for name in self._slices_of(clause, attributes) if clause.metric == metric else ():
                self._cell(clause, name, None).add(measured)

    def add_request(
        self,
        attributes: Attributes,
        *,
        role: Role,
        ok: bool,
        latency_s: float | None = None,
        ttft_s: float | None = None,
        itl_s: float | None = None,
        throughput: float | None = None,
        dual: bool = False,
        logprobs: bool | None = None,
    ) -> None:
        """Add one served request: runtime of both roles, counts of the candidate's.

        Times are seconds, throughput tokens a second. A failed request counts as a failure and
        gives no time. A mirrored request is the candidate's. `logprobs` says whether log-probs
        were captured, None that nobody looked. Raises BadValues for a time that is no finite
        number >= 0.
        """
        runtime = {"latency": latency_s, "ttft": ttft_s, "itl": itl_s, "throughput": throughput}
        for metric, value in runtime.items():
            if value is not None and not 0.0 <= value < math.inf:
                raise BadValues(f"{metric} of a request is {value}, not a finite number >= 0")
        counts = {"failure_rate": not ok, "dual_evaluation_coverage": dual, "logprob_capture_rate": logprobs}
        for clause in self._clauses:
            if clause.metric not in runtime and clause.metric not in counts:
                continue
            event, value = counts.get(clause.metric), runtime.get(clause.metric)
            for name in self._slices_of(clause, attributes):
                if value is not None and ok:
                    cell = self._cell(clause, name, None)
                    (cell.baseline if role == "baseline" else cell.candidate).append(value)
                elif event is not None and role != "baseline":
                    cell = self._cell(clause, name, None)
                    cell.events, cell.trials = cell.events + event, cell.trials + 1

    def gauge(self, metric: str, value: float) -> None:
        """Add one reading of a gauge metric, on every slice its clauses name; NaN is unmeasurable.

        Raises BadValues when `metric` is no gauge.
        """
        if metric not in METRICS or METRICS[metric].shape is not Shape.GAUGE:
            raise BadValues(f"{metric} is not a gauge metric")
        for clause in self._clauses:
            for name in clause.slices if clause.metric == metric else ():
                cell = self._cell(clause, name, None)
                if math.isnan(value):
                    cell.missed += 1
                else:
                    reading = Gauge(low=value, high=value)
                    cell.gauge = reading if cell.gauge is None else cell.gauge.merge(reading)

    def evidence(self, records: Iterable[RecordsRef] = ()) -> Evidence:
        """Everything added so far, as this shard's evidence."""
        clauses = {clause.id: clause for clause in self._clauses}
        cells = [
            pending.frozen(clauses[clause], name, phase, self._contract.reward)
            for (clause, name, phase), pending in self._cells.items()
        ]
        return Evidence(
            provenance=self._provenance,
            shards=(self._shard,),
            prompts=len(self._draws),
            cells=tuple(sorted(cells, key=lambda cell: cell.key)),
            records=tuple(sorted(records, key=lambda r: r.uri)),
        )

    def _slices_of(self, clause: Clause, attributes: Attributes) -> list[str]:
        return [name for name in clause.slices if matches(self._slices[name], attributes)]

    def _cell(self, clause: Clause, name: str, phase: Phase | None) -> _Pending:
        return self._cells.setdefault((clause.id, name, phase), _Pending())

    def _checked(
        self,
        draw: str,
        phase: Phase,
        values: Mapping[str, Sequence[float] | Floats],
        calibration: Calibrated | None,
        nll: tuple[Sequence[float] | Floats, Sequence[float] | Floats] | None,
        offset: int,
    ) -> Prompt:
        import numpy as np

        where = f"draw {draw!r}, {phase.value}"
        if (draw, phase) in self._seen:
            raise BadValues(f"{where}: given twice; a draw counts once")
        if self._keys is not None and self._keys != frozenset(values):
            raise BadValues(f"{where}: metrics {sorted(self._keys ^ set(values))} come with some draws only")
        arrays = {key: np.asarray(v, dtype=np.float64) for key, v in values.items()}
        pair = nll and (np.asarray(nll[0], dtype=np.float64), np.asarray(nll[1], dtype=np.float64))
        rows = [*arrays.values(), *(calibration.arrays() if calibration else ()), *(pair or ())]
        if not rows:
            raise BadValues(f"{where}: no values")
        if len({row.shape for row in rows}) > 1 or rows[0].ndim != 1:
            raise BadValues(f"{where}: metrics of different lengths: {[row.shape for row in rows]}")
        for key, row in arrays.items():
            metric = METRICS.get(key.partition("@")[0])
            if metric is None:
                raise BadValues(f"{where}: {key} is not a registered metric")
            outside = (row < metric.low - ROUNDING) | (row > metric.high + ROUNDING)
            if outside.any():
                index = int(outside.argmax())
                raise BadValues(
                    f"{where}: {key} is {row[index]} at decision {offset + index}, "
                    f"outside [{metric.low}, {metric.high}]"
                )
            arrays[key] = np.clip(row, metric.low, metric.high)
        broken = np.logical_or.reduce([np.isnan(row) for row in rows])
        if "unmeasurable" in arrays:
            broken |= ~(arrays["unmeasurable"] == 0.0)
        return Prompt(draw, phase, offset, arrays, broken, calibration, pair)
