"""Synthetic evidence of pairs whose conformance is known: the judge's own test pieces.

A pair is described by how many of its draws (prompts, requests, tasks, readings) are *beyond*:
as far on the wrong side of the clause as the metric allows, or ten times the limit where it has
no end. All other draws are as two identical kernels give them. No randomness: a cell is a
function of its counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from contracts.accumulators import Count, Draws, Extreme, Gauge, Moments, Position, Sketch
from contracts.calibration import Calibrated, CalibrationSums
from contracts.evidence import Cell, Evidence, Provenance
from contracts.metrics import METRICS, Shape
from contracts.model import Clause, Comparator, Contract, Phase, Reward, Stage
from contracts.paired_accumulators import Outcomes, Rewards, Weights
from contracts.reductions import calibration_sums, limits_mean, phases_of
from contracts.semantics import possible

FAR = 10.0  # how many times the limit a value without an end goes beyond it
BASELINE = 1.0  # seconds, tokens a second ... of the baseline every ratio is taken to
_AT = Position(draw="synthetic", index=0)


def cell(clause: Clause, contract: Contract, n: int, beyond: int, slice: str, phase: Phase | None) -> Cell:
    """One cell of `n` draws of which `beyond` break the clause, 0 <= beyond <= n, n >= 1."""
    metric = METRICS[clause.metric]
    good, bad = ideal(clause), worst(clause, contract.reward)
    made: dict[str, Any]
    if metric.shape is Shape.RUNTIME:
        made = {"candidate": _sketch({good: n - beyond, bad: beyond})}
        if clause.relative_to is not None:
            made["baseline"] = _sketch({BASELINE: n})
    elif metric.shape is Shape.COUNT:
        made = {"count": Count(events=beyond if bad > good else n - beyond, trials=n)}
    elif metric.shape is Shape.GAUGE:
        low, high = sorted((good, bad if beyond else good))
        made = {"gauge": Gauge(low=low, high=high, readings=n)}
    elif metric.shape is Shape.PAIRED:
        made = _paired(clause, contract, n, beyond, bad)
    else:
        made = _decisions(clause, n, beyond, good, bad)
    return Cell(clause=clause.id, slice=slice, phase=phase, **made)


def evidence(
    contract: Contract, stage: Stage, n: int, beyond: Mapping[str, int], *, contract_digest: str
) -> Evidence:
    """Evidence of one stage: every cell has `n` draws, of which `beyond[clause id]` break the clause."""
    cells = [
        cell(clause, contract, n, beyond.get(clause.id, 0), name, phase)
        for clause in contract.clauses_at(stage)
        for name in clause.slices
        for phase in phases_of(clause)
    ]
    made = "synthetic"
    provenance = Provenance(
        contract=contract_digest,
        checkpoint=made,
        train_build=made,
        inference_build=made,
        suite=made,
        stage=stage,
    )
    ordered = tuple(sorted(cells, key=lambda one: one.key))
    return Evidence(provenance=provenance, shards=(made,), prompts=n, cells=ordered)


def ideal(clause: Clause) -> float:
    """A value two identical kernels give; for runtime, where that says nothing, one well within the limit."""
    metric, limit = METRICS[clause.metric], clause.limit
    if metric.ideal is not None:
        return metric.ideal
    scale = limit.value if clause.relative_to is None else max(limit.value, BASELINE)
    return scale * FAR if limit.comparator is Comparator.GTE else limit.value / 2.0


def worst(clause: Clause, reward: Reward | None = None) -> float:
    """A value beyond the limit: the end of the metric's range, or `FAR` times the limit."""
    metric, limit = METRICS[clause.metric], clause.limit
    low, high = possible(metric, reward)
    if limit.comparator is Comparator.GTE:
        return low if math.isfinite(low) else limit.value - FAR * max(abs(limit.value), 1.0)
    return high if math.isfinite(high) else FAR * limit.value if limit.value > 0.0 else 1.0


def _decisions(clause: Clause, n: int, beyond: int, good: float, bad: float) -> dict[str, Any]:
    metric = METRICS[clause.metric]
    if not clause.limit.exceeded_by(bad):
        beyond = 0  # nothing is beyond a limit the metric cannot exceed
    low, high = sorted((good, bad if beyond else good))
    extreme = Extreme(low=low, low_at=_AT, high=high, high_at=_AT)
    counts = {good: n - beyond, bad: beyond}
    if not limits_mean(clause):
        shares = tuple(s for s in ((0, 1, n - beyond), (1, 1, beyond)) if s[2])
        return {"draws": Draws(shares=shares), "moments": _moments(counts), "extreme": extreme}
    means = tuple((round(value), 1, count) for value, count in counts.items() if count)
    return {
        "draws": Draws(shares=means) if metric.bounded else None,
        "moments": _moments(counts),
        "extreme": extreme,
    }


def _paired(clause: Clause, contract: Contract, n: int, beyond: int, bad: float) -> dict[str, Any]:
    match clause.metric:
        case "ppl_ratio":
            same = Moments.of([0.0]).times(Fraction(n))
            gaps = {0.0: n - beyond, _log_far(clause): beyond}
            return {"nll_train": same, "nll_inference": same, "nll_gap": _moments(gaps)}
        case "flip_rate":
            return {"outcomes": Outcomes(both=n - beyond, train_only=beyond)}
        case "reward_drift":
            return _rewards(contract.reward or Reward(range=(0, 1), grader="none"), n, beyond, bad)
        case (
            "ess"
        ):  # a weight of 0 is a decision that counts for nothing: the size is the share of the others
            kept = Fraction(max(n - beyond, 1))
            cross = (Fraction(n), kept, kept, kept, kept, kept)
            return {"weights": Weights(prompts=n, sums=(Fraction(n), kept, kept), cross=cross)}
        case _:
            sure = calibration_sums(clause, Calibrated([1.0], [1.0], [1.0], [1.0]))
            fooled = calibration_sums(clause, Calibrated([1.0], [1.0], [1.0], [0.0]))
            sums = _repeated(sure, n - beyond, _repeated(fooled, beyond, None))
            return {"calibration": sums.frozen() if sums else None}


def _log_far(clause: Clause) -> float:
    """A log perplexity ratio `FAR` times the limit's, on its wrong side."""
    size = FAR * max(abs(math.log(max(clause.limit.value, 1e-12))), 1e-3)
    return -size if clause.limit.comparator is Comparator.GTE else size


def _rewards(reward: Reward, n: int, beyond: int, bad: float) -> dict[str, Any]:
    low, high = reward.range
    train, inference = (high, low) if bad > 0 else (low, high)
    draws = ((1, 2, n - beyond), (1 if bad > 0 else 0, 1, beyond))  # (difference + width)/2width
    rewards = Rewards(
        form="paired",
        train=_moments({high: n - beyond}).merge(_moments({train: beyond})),
        inference=_moments({high: n - beyond}).merge(_moments({inference: beyond})),
        gap=_moments({0.0: n - beyond, bad: beyond}),
    )
    return {"rewards": rewards, "draws": Draws(shares=tuple(d for d in draws if d[2]))}


def _moments(counts: Mapping[float, int]) -> Moments:
    total = Moments()
    for value, count in counts.items():
        total = total.merge(Moments.of([value]).times(Fraction(count))) if count else total
    return total


def _sketch(counts: Mapping[float, int]) -> Sketch:
    total = Sketch()
    for value, count in counts.items():
        ((bucket, _),) = Sketch.of([value]).buckets
        total = total.merge(Sketch(buckets=((bucket, count),))) if count else total
    return total


def _repeated(sums: CalibrationSums, times: int, rest: CalibrationSums | None) -> CalibrationSums | None:
    """`rest` and `times` copies of `sums`, by doubling."""
    while times:
        if times % 2:
            rest = sums.plus(rest)
        sums, times = sums.plus(sums), times // 2
    return rest
