"""How many draws certify a clause, and how many can violate it: the numbers of [S2], [S3], [S5]."""

from __future__ import annotations

import math
from dataclasses import dataclass

from contracts.finding import Setting
from contracts.judge import find
from contracts.metrics import METRICS, Shape
from contracts.model import Clause, ClauseKind, Comparator, Contract, Stage
from contracts.reductions import limits_mean, phases_of
from contracts.service_findings import WINDOW_COUNTS

MOST_EXCEEDING = 3  # 0, 1, 2, 3 draws beyond the limit: the columns of every table


@dataclass(frozen=True)
class Need:
    """Draws a clause needs at one stage.

    Attributes:
        stage: where it is judged.
        noun: what a draw is: prompt, request, task or reading.
        counts: fewest draws that certify it with 0, 1, 2 ... of them beyond the limit; None where
            ten million are not enough. A single entry where one beyond already violates.
        minimum: the stage's `min_prompts`.
        exact: each draw is 0 or 1; else the counts are of draws wholly beyond, and a prompt of
            which a part of the decisions is beyond counts as that part.
    """

    stage: Stage
    noun: str
    counts: tuple[int | None, ...]
    minimum: int
    exact: bool


def share_limit(clause: Clause, contract: Contract) -> float | None:
    """The share of draws beyond its limit that a clause tolerates; None where it bounds no share.

    A soft clause's exceedance, the exceedance a hard clause on each decision is certified against
    over a sample, the limit of a share of requests or tasks, or of a mean in [0, 1].
    """
    metric, limit = METRICS[clause.metric], clause.limit.value
    if clause.metric in WINDOW_COUNTS:
        return None
    if metric.shape is Shape.COUNT or clause.metric == "flip_rate":
        return limit if limit > 0.0 else contract.certainty.hard_exceedance
    if metric.shape is not Shape.DECISION:
        return None
    if clause.kind is ClauseKind.SOFT:
        return clause.exceedance
    if clause.statistic is None:
        return contract.certainty.hard_exceedance
    if clause.limit.comparator is Comparator.GTE:
        return None  # certified by the side of the e-process without a mass at the end
    return limit if metric.bounded and metric.low == 0.0 and metric.high == 1.0 else None


def one_violates(clause: Clause) -> bool:
    """Whether a single draw beyond the limit violates the clause outright."""
    shape = METRICS[clause.metric].shape
    if shape is Shape.DECISION:
        return clause.kind is ClauseKind.HARD and clause.statistic is None
    none_allowed = clause.limit.comparator is not Comparator.GTE and clause.limit.value <= 0.0
    return shape is Shape.GAUGE or (shape is Shape.COUNT and none_allowed)


def is_exact(clause: Clause) -> bool:
    """Whether every draw is 0 or 1, so that a fixed sample is binomial [S2]."""
    if METRICS[clause.metric].shape is Shape.DECISION:
        return clause.per == "prompt" and not limits_mean(clause)
    return METRICS[clause.metric].shape is Shape.COUNT or clause.metric == "flip_rate"


def draws_needed(clause: Clause, contract: Contract, stage: Stage, exceeding: int = 0) -> int | None:
    """Fewest draws that certify the clause at `stage` with `exceeding` of them beyond its limit.

    For a share by the closed forms, for anything else by asking the judge of synthetic evidence.
    None where ten million draws are not enough.
    """
    from contracts import intervals, sequential

    alpha, rho = contract.certainty.alpha, share_limit(clause, contract)
    if is_census(clause, contract, stage) or rho is None or not 0.0 < rho < 1.0:
        return None if exceeding else _by_judging(clause, contract, stage)
    if one_violates(clause):
        return None if exceeding else intervals.hard_sample_size(rho, alpha)
    if is_exact(clause) and stage is Stage.OFFLINE_CI:
        return intervals.prompts_needed(rho, alpha, exceeding)
    return sequential.prompts_needed(rho, alpha, exceeding)


def is_census(clause: Clause, contract: Contract, stage: Stage) -> bool:
    """Whether the clause is counted in full at `stage`, so that nothing is left to certify [S1]."""
    census = stage is Stage.OFFLINE_CI and contract.stages.offline_ci.census
    shape = METRICS[clause.metric].shape
    return (census and shape is not Shape.RUNTIME) or shape is Shape.GAUGE or clause.metric in WINDOW_COUNTS


def needs(clause: Clause, contract: Contract) -> tuple[Need, ...]:
    """What the clause needs at each of its stages."""
    return tuple(_need(clause, contract, stage) for stage in clause.stages)


def _need(clause: Clause, contract: Contract, stage: Stage) -> Need:
    rho = share_limit(clause, contract)
    graded = rho is not None and 0.0 < rho < 1.0
    many = graded and not one_violates(clause) and not is_census(clause, contract, stage)
    counts = [draws_needed(clause, contract, stage, k) for k in range(MOST_EXCEEDING + 1 if many else 1)]
    return Need(stage, noun(clause), tuple(counts), contract.stages.min_prompts(stage), is_exact(clause))


def noun(clause: Clause) -> str:
    """What one draw of the clause is called."""
    if clause.metric == "flip_rate":
        return "task"
    shapes = {Shape.RUNTIME: "request", Shape.COUNT: "request", Shape.GAUGE: "reading"}
    return shapes.get(METRICS[clause.metric].shape, "prompt")


def _by_judging(clause: Clause, contract: Contract, stage: Stage) -> int | None:
    from contracts import sequential, synthetic

    setting, phase = Setting.of(contract, stage), phases_of(clause)[0]

    def holds(n: int) -> bool:
        made = synthetic.cell(clause, contract, n, 0, clause.slices[0], phase)
        return find(clause, made, setting, contract.reward).holds

    return sequential.smallest(holds, 1)


def can_alarm(clause: Clause, contract: Contract, stage: Stage) -> bool:
    """Whether `min_prompts` draws that are all beyond the limit would violate a clause on a share.

    Before alarms are corrected for their number; true for clauses on no share.
    """
    from contracts import intervals, sequential

    rho, n = share_limit(clause, contract), contract.stages.min_prompts(stage)
    if rho is None or one_violates(clause) or is_census(clause, contract, stage):
        return True
    if not 0.0 < rho < 1.0:
        return rho < 1.0
    if is_exact(clause) and stage is Stage.OFFLINE_CI:
        return intervals.binomial_p_value(n, n, rho) < contract.certainty.alpha
    log_e = sequential.Betting(sequential.binary(n, n)).log_e_above(rho)
    return log_e > -math.log(contract.certainty.alpha)
