"""Mutation test of a contract: would each clause ever fail, and how surely, on pairs known to be faulty.

Every clause is judged on synthetic evidence (:mod:`contracts.synthetic`) of two identical kernels,
which it must be able to certify, and of kernels with more and more draws beyond its limit, of which
some number must violate it. Between those lies its power: the probability that n draws of a pair with
a known fault violate it, exact over the binomial number of draws beyond, after the alarm correction
over all cells of the stage as the contract states it. In a stream the power at n is that of one look
at n draws; looking at every draw only adds to it.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from contracts import sequential, synthetic
from contracts.correction import bonferroni, e_bh, holm
from contracts.finding import Finding, Setting
from contracts.intervals import binomial_p_value
from contracts.judge import find
from contracts.metrics import METRICS, Shape
from contracts.model import Certainty, Clause, Comparator, Contract, Stage
from contracts.reductions import phases_of
from contracts.sample_sizes import draws_needed, noun, share_limit
from contracts.service_findings import QUANTILES

MOST_DRAWS = 1 << 17  # draws beyond which a clause that nothing violated counts as one that never fails
FAULTS = (2.0, 5.0)  # how many times what is tolerated a fault is


class Power(BaseModel):
    """One fault and how surely it is found.

    Attributes:
        times: the fault as a multiple of what the clause tolerates.
        share: the probability of a draw beyond the limit that makes it, in [0, 1].
        power: probability that the clause is VIOLATED, in [0, 1].
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    times: float
    share: float
    power: float


class Probe(BaseModel):
    """One clause at one stage.

    Attributes:
        n: draws of each slice and phase the power is for; `noun` says what they are.
        conforming: whether n draws of two identical kernels certify it.
        needed: draws of two identical kernels that do; None where ten million do not.
        failing: fewest draws that violate it when all are beyond; None where `MOST_DRAWS` do not.
        beyond: the fewest of n draws beyond the limit that violate it; None where not even all do.
        powers: for a fault of each size in `FAULTS`.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    clause: str
    stage: Stage
    n: int
    noun: str
    conforming: bool
    needed: int | None
    failing: int | None
    beyond: int | None
    powers: tuple[Power, ...]

    @property
    def can_hold(self) -> bool:
        """Whether some number of draws of identical kernels certifies the clause."""
        return self.needed is not None

    @property
    def can_fail(self) -> bool:
        """Whether any evidence at all violates the clause."""
        return self.failing is not None


class Report(BaseModel):
    """The whole test.

    Attributes:
        tested: one entry a clause and stage, in document order.
        never_hold, never_fail: ids of clauses that no evidence certifies, or violates, at some stage.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    tested: tuple[Probe, ...]
    never_hold: tuple[str, ...]
    never_fail: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether every clause can hold and can fail at each of its stages."""
        return not (self.never_hold or self.never_fail)


def examine(contract: Contract, prompts: int | None = None) -> Report:
    """Test every clause at each of its stages on `prompts` draws, or on the stage's `min_prompts`.

    Raises ValueError for fewer than one prompt.
    """
    if prompts is not None and prompts < 1:
        raise ValueError(f"at least one prompt, not {prompts}")
    known: dict[tuple[object, ...], Probe] = {}
    tested = []
    for clause in contract.clauses:
        for stage in clause.stages:
            n = prompts or contract.stages.min_prompts(stage)
            cells = cells_at(contract, stage)
            key = (clause.id, Setting.of(contract, stage), n, cells)  # shadow, canary and full are often one
            if key not in known:
                known[key] = _tested(clause, contract, stage, n, cells)
            tested.append(known[key].model_copy(update={"stage": stage}))
    return Report(
        tested=tuple(tested),
        never_hold=tuple(dict.fromkeys(one.clause for one in tested if not one.can_hold)),
        never_fail=tuple(dict.fromkeys(one.clause for one in tested if not one.can_fail)),
    )


def cells_at(contract: Contract, stage: Stage) -> int:
    """Cells judged at `stage`: clauses × slices × phases, the number alarms are corrected for [S4]."""
    return sum(len(clause.slices) * len(phases_of(clause)) for clause in contract.clauses_at(stage))


def lines(report: Report) -> list[str]:
    """The report as lines of text, stages that agree in one line."""
    text = []
    groups: dict[Probe, list[Stage]] = {}
    for one in report.tested:
        groups.setdefault(one.model_copy(update={"stage": Stage.OFFLINE_CI}), []).append(one.stage)
    for one, stages in groups.items():
        text.append(f"{one.clause}  {', '.join(stages)}, n = {one.n:,}: {_in_words(one)}")
    for ids, what in ((report.never_hold, "hold"), (report.never_fail, "fail")):
        text += [f"{one} can never {what}: it admits {_ADMITS[what]}" for one in ids]
    return text


_ADMITS = {"hold": "no conforming pair", "fail": "no violating pair"}


def _in_words(one: Probe) -> str:
    if one.conforming:
        held = "identical kernels hold"
    elif one.needed is None:
        held = "identical kernels never hold"
    else:
        held = f"identical kernels hold from {one.needed:,} {one.noun}s on"
    if one.failing is None:
        return f"{held}; nothing ever violates it"
    if one.beyond is None:
        return f"{held}; too few to violate it, from {one.failing:,} {one.noun}s on something does"
    powers = [f"{p.power:.3f} at {p.times:g} times ({100.0 * p.share:.3g}% beyond)" for p in one.powers]
    count = f"{one.beyond:,} {one.noun}{'' if one.beyond == 1 else 's'}"
    return f"{held}; violated from {count} beyond; power {', '.join(powers)}"


# One clause


def _tested(clause: Clause, contract: Contract, stage: Stage, n: int, cells: int) -> Probe:
    setting, phase = Setting.of(contract, stage), phases_of(clause)[0]

    def judged(draws: int, beyond: int) -> Finding:
        made = synthetic.cell(clause, contract, draws, beyond, clause.slices[0], phase)
        return find(clause, made, setting, contract.reward)

    def violates(draws: int, beyond: int) -> bool:
        return alarmed(judged(draws, beyond), cells, contract.certainty)

    def all_violate(draws: int) -> bool:
        return draws > MOST_DRAWS or violates(draws, draws)

    failing = sequential.smallest(all_violate, 1)
    failing = failing if failing is not None and failing <= MOST_DRAWS else None
    beyond = None
    if failing is not None and violates(n, n):
        beyond = sequential.smallest(lambda k: k >= n or violates(n, k), 1)
    powers = [
        Power(times=times, share=share, power=_power(beyond, n, share))
        for times in FAULTS
        for share in [min(1.0, tolerated(clause, contract) * times)]
    ]
    return Probe(
        clause=clause.id,
        stage=stage,
        n=n,
        noun=noun(clause),
        conforming=judged(n, 0).holds,
        needed=draws_needed(clause, contract, stage),
        failing=failing,
        beyond=beyond,
        powers=tuple(powers),
    )


def alarmed(finding: Finding, cells: int, certainty: Certainty) -> bool:
    """Whether a finding is VIOLATED among `cells` cells of which all others are as they should be."""
    if finding.certain:
        return True
    others = max(cells - 1, 0)
    if certainty.alarm_correction == "e-bh":
        return e_bh([finding.log_e, *[0.0] * others], certainty.alpha)[0]
    p_values = [finding.p_value, *[1.0] * others]
    if certainty.alarm_correction == "none":
        return finding.p_value < certainty.alpha
    corrected = holm if certainty.alarm_correction == "holm" else bonferroni
    return corrected(p_values, certainty.alpha)[0]


def tolerated(clause: Clause, contract: Contract) -> float:
    """The share of draws beyond (as far as synthetic ones are) at which a pair just keeps the clause.

    A soft clause's exceedance, the limit of a share; of a mean without an end 1/`FAR`, since a draw
    beyond is `FAR` times the limit; of a quantile the share allowed above it.
    """
    metric, limit = METRICS[clause.metric], clause.limit.value
    rho = share_limit(clause, contract)
    if rho is not None:
        return rho
    if metric.shape is Shape.GAUGE:
        return 0.5  # any reading beyond violates
    if clause.statistic in QUANTILES:
        q = QUANTILES[clause.statistic]
        return 1.0 - q if clause.limit.comparator is not Comparator.GTE else q
    if clause.metric == "reward_drift" and contract.reward is not None:
        return min(1.0, abs(limit) / (contract.reward.range[1] - contract.reward.range[0]))
    if metric.bounded or clause.metric == "ess":
        return 1.0 - limit if clause.limit.comparator is Comparator.GTE else limit
    return 1.0 / synthetic.FAR


def _power(beyond: int | None, n: int, share: float) -> float:
    """P(Bin(n, share) >= beyond), exact."""
    return 0.0 if beyond is None else binomial_p_value(beyond, n, share)
