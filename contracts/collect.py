"""Per-decision values in, `Evidence` out.

One `Collector` a shard. It knows which clauses the stage asks for, on which slices and in
which phases, and keeps only what their cells need: nothing grows with tokens but the work.

Reductions: float64 throughout; means within a prompt with math.fsum, sums over prompts exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from contracts.accumulators import Gauge
from contracts.calibration import Calibrated
from contracts.evidence import Evidence, Provenance, RecordsRef
from contracts.generations import Graded, Rewarded, paired_reward, weighted_reward, whole
from contracts.metrics import METRICS, Shape
from contracts.model import Clause, Clip, Contract, Phase, Reward
from contracts.pending import Pending
from contracts.reductions import Measured, Prompt, measure, metric_key, phases_of
from contracts.slices import Attributes, matches
from contracts.two_sided import raised, undecided
from contracts.values import ROUNDING, BadValues

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Role = Literal["baseline", "candidate", "mirror"]


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
        self._cells: dict[tuple[str, str, Phase | None], Pending] = {}
        self._seen: set[tuple[str, Phase]] = set()
        self._draws: set[str] = set()
        self._generated: set[tuple[str, str]] = set()
        self._form: str | None = None
        self._keys: frozenset[str] | None = None
        self._ends: frozenset[str] | None = None

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
    def phases(self) -> frozenset[Phase]:
        """The phases in which a clause is judged."""
        return frozenset(phase for clause in self._clauses for phase in phases_of(clause) if phase)

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
        upper: Mapping[str, Sequence[float] | Floats] | None = None,
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
            upper: upper ends of those metrics of which `values` holds lower ends [C1], float64 [n] by
                the same keys, the same ones at every call; infinite where there is none.

        Raises BadValues, with nothing added, for a draw given twice, lengths or keys that differ,
        a value outside its metric's range, or an upper end below its lower one.
        No decisions is no draw and changes nothing.
        """
        prompt = self._checked(draw, phase, values, calibration, nll, offset)
        highest = self._highest(prompt, upper or {})
        if not prompt.broken.size:
            return
        found = [
            (clause, measure(clause, prompt, self._clip), self._most(clause, highest))
            for clause in self._clauses
            if phase in phases_of(clause)
        ]
        self._seen.add((draw, phase))
        self._draws.add(draw)
        self._keys, self._ends = frozenset(values), frozenset(upper or ())
        for clause, measured, most in found:
            if measured is not None:
                for name in self._slices_of(clause, attributes):
                    self._cell(clause, name, phase).add(measured, most)

    def straddles(
        self,
        draw: str,
        attributes: Attributes,
        phase: Phase,
        values: Mapping[str, Sequence[float] | Floats],
        upper: Mapping[str, Sequence[float] | Floats],
    ) -> bool:
        """Whether narrower ends could change what these decisions say of a clause; adds nothing.

        Arguments and errors as :meth:`add_prompt`. An end at infinity is taken to stay there.
        """
        prompt = self._checked(draw, phase, values, None, None, 0)
        highest = self._highest(prompt, upper)
        return any(
            undecided(clause, low, most)
            for clause in self._clauses
            if phase in phases_of(clause) and self._slices_of(clause, attributes)
            for low, most in [(measure(clause, prompt, self._clip), self._most(clause, highest))]
        )

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

    @property
    def _clip(self) -> Clip | None:
        return self._contract.rl.clip if self._contract.rl else None

    def _highest(self, prompt: Prompt, upper: Mapping[str, Sequence[float] | Floats]) -> Prompt | None:
        if self._ends is not None and self._ends != frozenset(upper):
            some = sorted(self._ends ^ set(upper))
            raise BadValues(f"draw {prompt.draw!r}: upper ends of {some} come with some draws only")
        return raised(prompt, upper)

    def _most(self, clause: Clause, highest: Prompt | None) -> Measured | None:
        if highest is None or metric_key(clause) not in highest.values:
            return None
        return measure(clause, highest, self._clip)

    def _slices_of(self, clause: Clause, attributes: Attributes) -> list[str]:
        return [name for name in clause.slices if matches(self._slices[name], attributes)]

    def _cell(self, clause: Clause, name: str, phase: Phase | None) -> Pending:
        return self._cells.setdefault((clause.id, name, phase), Pending())

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
