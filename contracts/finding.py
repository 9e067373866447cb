"""A finding: what one cell says about its clause, before alarms are corrected.

`offline_ci` is a fixed sample, or a census when the contract declares it; every other stage
is a stream, where all bounds hold at any time [S1]-[S3]. A census makes drift and failure
counts exact; runtime stays a sample, since the same request takes another time next time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from contracts import intervals, phrases, sequential
from contracts.accumulators import Draws, Moments
from contracts.correction import log_e_from_p
from contracts.metrics import METRICS, Shape
from contracts.model import Clause, ClauseKind, Comparator, Contract, Limit, Stage

Bound = Callable[[float], tuple[float, float]]


@dataclass(frozen=True)
class Setting:
    """How the evidence of a stage is judged.

    Attributes:
        stream: whether bounds must hold at any time.
        census: whether D_eval was evaluated in full.
        alpha: error rate of each end of each interval.
        hard_exceedance: exceedance a hard clause is certified against over a sample.
        at: number of draws asymptotic confidence sequences are tightest at.
    """

    stream: bool
    census: bool
    alpha: float
    hard_exceedance: float
    at: int

    @classmethod
    def of(cls, contract: Contract, stage: Stage) -> Setting:
        """The setting a contract's stage asks for."""
        return cls(
            stream=stage is not Stage.OFFLINE_CI,
            census=stage is Stage.OFFLINE_CI and contract.stages.offline_ci.census,
            alpha=contract.certainty.alpha,
            hard_exceedance=contract.certainty.hard_exceedance,
            at=max(contract.stages.min_prompts(stage), intervals.ASYMPTOTIC_MINIMUM),
        )

    def mean_bounds(self, sample: Moments, alpha: float) -> tuple[float, float]:
        """Bounds of an unbounded mean, each end one-sided at alpha; method `mean_method`."""
        if self.stream:
            return sequential.asymptotic_cs(sample, alpha, self.at)
        return intervals.student_t(sample, alpha)

    @property
    def mean_method(self) -> str:
        """Name of the bound `mean_bounds` gives."""
        return f"{'asymptotic-cs' if self.stream else 'student-t'} (asymptotic, skew-corrected)"


@dataclass(frozen=True)
class Finding:
    """One clause on one cell, before alarms are corrected for their number.

    Attributes:
        observed: the judged quantity; None when nothing was seen.
        limit, comparator, threshold, statistic, unit: as in :class:`contracts.verdicts.Verdict`.
        n, noun: how many draws, and what they are.
        low, high: bounds of the quantity, each one-sided at alpha; infinite where there is none.
        holds: whether the quantity is certified within its limit at level alpha.
        log_e: log e-value of the violation; `p_value` is at most exp of minus it.
        certain: violated outright, by a counterexample or a complete count.
        needed: draws that would decide at the observed rate.
        sentence: what was seen, in words.
    """

    comparator: Comparator
    limit: float
    statistic: str
    unit: str
    threshold: float | None = None
    observed: float | None = None
    n: int = 0
    noun: str = "prompt"
    low: float = -math.inf
    high: float = math.inf
    method: str = "none"
    holds: bool = False
    p_value: float = 1.0
    log_e: float = 0.0
    certain: bool = False
    needed: Callable[[], int | None] = lambda: None
    sentence: str = ""


def blank_finding(clause: Clause) -> Finding:
    """What is asked, with nothing seen yet."""
    metric = METRICS[clause.metric]
    if clause.kind is ClauseKind.SOFT and metric.shape is Shape.DECISION:
        return Finding(
            Comparator.LTE, clause.exceedance or 0.0, "exceedance", metric.unit, clause.limit.value
        )
    statistic = {Shape.DECISION: "worst", Shape.PAIRED: "value", Shape.COUNT: "share", Shape.GAUGE: "worst"}
    named = clause.statistic.value if clause.statistic else statistic.get(metric.shape, "none")
    unit = "" if clause.relative_to else metric.unit
    noun = {Shape.RUNTIME: "request", Shape.COUNT: "request", Shape.GAUGE: "reading"}
    return Finding(
        clause.limit.comparator, clause.limit.value, named, unit, noun=noun.get(metric.shape, "prompt")
    )


def plug_in(blank: Finding, value: float) -> Finding:
    """A complete count against the limit: exact, no interval to speak of [S1]."""
    broken = Limit(**{blank.comparator.value: blank.limit}).exceeded_by(value)
    return replace(
        blank,
        observed=value,
        low=value,
        high=value,
        method="census",
        holds=not broken,
        p_value=0.0 if broken else 1.0,
        certain=broken,
    )


def within(blank: Finding, ends: tuple[float, float]) -> bool:
    """Whether an interval lies wholly within the limit."""
    low, high = ends
    if blank.comparator is Comparator.LTE:
        return high <= blank.limit
    if blank.comparator is Comparator.GTE:
        return low >= blank.limit
    return high <= blank.limit and low >= -blank.limit


def excludes(blank: Finding, ends: tuple[float, float]) -> bool:
    """Whether an interval lies wholly beyond the limit."""
    low, high = ends
    if blank.comparator is Comparator.LTE:
        return low > blank.limit
    if blank.comparator is Comparator.GTE:
        return high < blank.limit
    return low > blank.limit or high < -blank.limit


def bounded(blank: Finding, bound: Bound, setting: Setting, p_value: float | None = None) -> Finding:
    """An interval against the limit; without a p-value it is found by inverting the interval.

    A limit on the absolute value has two ways to be broken, so its alarms share alpha.
    """
    low, high = bound(setting.alpha)
    ways = 2.0 if blank.comparator is Comparator.ABS_LTE else 1.0
    if p_value is None:
        p_value = intervals.p_by_inversion(lambda a: excludes(blank, bound(a / ways)))
    return replace(
        blank,
        low=low,
        high=high,
        holds=within(blank, (low, high)),
        p_value=p_value,
        log_e=log_e_from_p(p_value),
    )


def said(found: Finding, what: str, setting: Setting, show: Callable[[float], str]) -> Finding:
    """The finding with its sentence: what, how many, and the interval where there is one."""
    parts = [what, phrases.counted(found.n, found.noun)]
    if found.method == "census":
        parts.append("all of them")
    elif found.method != "gauge" and (math.isfinite(found.low) or math.isfinite(found.high)):
        parts.append(phrases.interval(show(found.low), show(found.high), setting.alpha))
    return replace(found, sentence=", ".join(parts))


def limited(found: Finding, name: str, setting: Setting) -> Finding:
    """The finding with the sentence of an observed quantity and its limit."""
    if found.observed is None:
        return found
    limit = phrases.at_most(found.comparator, phrases.number(found.limit, found.unit))
    return said(
        found, f"{name} {phrases.number(found.observed, found.unit)} ({limit})", setting, phrases.number
    )


def share(draws: Draws, setting: Setting, blank: Finding, *, exact: bool) -> Finding:
    """A mean of draws in [0, 1] against a limit; `exact` says every draw is 0 or 1."""
    blank = replace(blank, observed=draws.mean, n=draws.n)
    if setting.census:
        return plug_in(blank, draws.mean)
    top = blank.comparator is not Comparator.GTE
    threshold, rho = -math.log(setting.alpha), blank.limit
    if exact and not setting.stream:
        k, n = draws.exceeding, draws.n
        p = intervals.binomial_p_value(k, n, rho) if top else intervals.binomial_p_value(n - k, n, 1.0 - rho)
        found = bounded(
            replace(blank, method="clopper-pearson"), lambda a: intervals.clopper_pearson(k, n, a), setting, p
        )
        share = Fraction(k, n)

        def decides(m: int) -> bool:
            low, high = intervals.clopper_pearson(float(share * m), m, setting.alpha)
            return high <= rho or low > rho

        return replace(found, needed=lambda: sequential.smallest(decides, n))
    betting = sequential.Betting(draws)
    above, below = betting.log_e_above(rho), betting.log_e_below(rho)
    alarm, certify = (above, below) if top else (below, above)

    def grown(m: int) -> bool:
        more = sequential.Betting(draws, m / draws.n)
        return max(more.log_e_above(rho), more.log_e_below(rho)) >= threshold

    return replace(
        blank,
        low=betting.lower(setting.alpha),
        high=betting.upper(setting.alpha),
        method="betting-cs" if setting.stream else "betting",
        holds=certify >= threshold,
        p_value=min(1.0, math.exp(-max(alarm, 0.0))),
        log_e=alarm,
        needed=lambda: sequential.smallest(grown, draws.n),
    )


def asymptotic(
    blank: Finding, moments: Moments, bound_of: Callable[[Moments], Bound], setting: Setting
) -> Finding:
    """A normal approximation, believed from `ASYMPTOTIC_MINIMUM` prompts on."""
    least, n = intervals.ASYMPTOTIC_MINIMUM, moments.n
    found = bounded(blank, bound_of(moments), setting)

    def decides(m: int) -> bool:
        ends = bound_of(moments.times(Fraction(m, n)))(setting.alpha)
        return within(blank, ends) or excludes(blank, ends)

    found = replace(found, needed=lambda: sequential.smallest(decides, max(n, least)))
    return found if n >= least else replace(found, holds=False, p_value=1.0, log_e=0.0)
