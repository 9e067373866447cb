"""Findings on paired metrics: calibration gap, perplexity ratio, rewards, outcomes, weights."""

from __future__ import annotations

import math
from dataclasses import replace

from contracts import intervals, phrases, sequential
from contracts.accumulators import Draws, Moments
from contracts.drift_findings import average
from contracts.evidence import Cell
from contracts.finding import (
    Bound,
    Finding,
    Setting,
    asymptotic,
    limited,
    plug_in,
    said,
    share,
)
from contracts.model import Clause, Comparator, Reward
from contracts.paired_accumulators import Calibration, Outcomes, Rewards, Weights
from contracts.reductions import DEFAULT_BINS


def paired_finding(
    clause: Clause, cell: Cell, setting: Setting, blank: Finding, reward: Reward | None
) -> Finding:
    """A paired metric of one cell; `reward` is the contract's section, for `reward_drift`."""
    match clause.metric:
        case "ece_gap" if cell.calibration is not None and cell.calibration.decisions:
            groups = (clause.bins or DEFAULT_BINS) if clause.binning == "equal_mass" else None
            found = _calibration_gap(cell.calibration, groups, setting, blank)
            return limited(found, clause.metric, setting)
        case "ppl_ratio" if cell.nll_gap is not None and cell.nll_gap.n:
            return limited(average(cell.nll_gap, setting, blank, math.exp), clause.metric, setting)
        case "flip_rate" if cell.outcomes is not None and cell.outcomes.n:
            return _flips(cell.outcomes, setting, blank)
        case "reward_drift" if cell.rewards is not None and cell.rewards.gap.n and reward is not None:
            return _reward_drift(cell.rewards, cell, setting, blank, reward)
        case "ess" if cell.weights is not None and cell.weights.sums[2] > 0:
            return _effective_size(cell.weights, cell, setting, blank)
        case _:
            return blank


def _calibration_gap(
    calibration: Calibration, groups: int | None, setting: Setting, blank: Finding
) -> Finding:
    signed, residuals = intervals.calibration_gap(calibration, groups)
    blank = replace(blank, observed=abs(signed), n=residuals.n)
    if setting.census:
        return plug_in(blank, abs(signed))

    def bound_of(sample: Moments) -> Bound:
        def bound(alpha: float) -> tuple[float, float]:
            low, high = (signed + end for end in setting.mean_bounds(sample, alpha))
            return max(low, -high, 0.0), min(max(abs(low), abs(high)), 1.0)

        return bound

    return asymptotic(
        replace(blank, method=f"delta-method, {setting.mean_method}"), residuals, bound_of, setting
    )


def _flips(outcomes: Outcomes, setting: Setting, blank: Finding) -> Finding:
    """Tasks whose outcome differs, one 0/1 draw each, with the table and McNemar's p-value [Q13]."""
    found = share(
        sequential.binary(outcomes.flips, outcomes.n), setting, replace(blank, noun="task"), exact=True
    )
    p = intervals.mcnemar_p_value(outcomes.train_only, outcomes.inference_only)
    limit = phrases.at_most(found.comparator, phrases.percent(found.limit))
    found = said(
        found,
        f"outcome differs on {phrases.percent(outcomes.flips / outcomes.n)} of tasks ({limit})",
        setting,
        phrases.percent,
    )
    table = (
        f"both passed {outcomes.both:,}, training only {outcomes.train_only:,}, inference only "
        f"{outcomes.inference_only:,}, neither {outcomes.neither:,}; exact McNemar p = {p:.2g}"
    )
    return replace(found, sentence=f"{found.sentence}; {table}")


def _reward_drift(rewards: Rewards, cell: Cell, setting: Setting, blank: Finding, reward: Reward) -> Finding:
    """E_train r − E_inference r: by bets on paired differences, asymptotic where importance-weighted."""
    blank = replace(blank, observed=rewards.gap.mean, n=rewards.gap.n)
    weighted = ""
    if setting.census:
        found = plug_in(blank, rewards.gap.mean)
    elif cell.draws is not None and cell.draws.n:
        found = _difference(cell.draws, reward.range[1] - reward.range[0], setting, blank)
    else:
        found = average(rewards.gap, setting, blank, lambda v: v)
    if rewards.form == "weighted" and cell.weights is not None and cell.weights.sums[2] > 0:
        size, _ = intervals.effective_sample_size(cell.weights)
        weighted = f"; importance-weighted, effective sample size {phrases.number(size)}"
        if not setting.census and size * rewards.gap.n < intervals.ASYMPTOTIC_MINIMUM:
            found = replace(found, holds=False, p_value=1.0, log_e=0.0)
            weighted += ", too few to be believed"
    found = limited(found, "reward drift", setting)
    sides = (
        f"training {phrases.number(rewards.train.mean)}, inference {phrases.number(rewards.inference.mean)}"
    )
    return replace(found, sentence=f"{found.sentence}; {sides}{weighted}")


def _difference(draws: Draws, width: float, setting: Setting, blank: Finding) -> Finding:
    """A mean difference in [−width, width] from draws x = (difference + width)/2width [S3].

    Each side of the limit is a null mean of x. Within ± the limit both sides are certified, and
    an alarm is the mean of both sides' e-values, which is an e-value.
    """
    threshold = -math.log(setting.alpha)
    most = min(0.5 + blank.limit / (2.0 * width), 1.0)
    least = max(0.5 - blank.limit / (2.0 * width), 0.0)

    def logs(betting: sequential.Betting) -> tuple[float, float]:
        """Log e-values for certification and for alarm."""
        if blank.comparator is Comparator.LTE:
            return betting.log_e_below(most), betting.log_e_above(most)
        if blank.comparator is Comparator.GTE:
            return betting.log_e_above(most), betting.log_e_below(most)
        certify = min(
            math.inf if most >= 1.0 else betting.log_e_below(most),
            math.inf if least <= 0.0 else betting.log_e_above(least),
        )
        high, low = sorted((betting.log_e_above(most), betting.log_e_below(least)), reverse=True)
        return certify, high if math.isinf(high) else high + math.log1p(math.exp(low - high)) - math.log(2.0)

    betting = sequential.Betting(draws)
    certify, alarm = logs(betting)
    return replace(
        blank,
        low=(2.0 * betting.lower(setting.alpha) - 1.0) * width,
        high=(2.0 * betting.upper(setting.alpha) - 1.0) * width,
        method="betting-cs" if setting.stream else "betting",
        holds=certify >= threshold,
        p_value=min(1.0, math.exp(-max(alarm, 0.0))),
        log_e=alarm,
        needed=lambda: sequential.smallest(
            lambda m: max(logs(sequential.Betting(draws, m / draws.n))) >= threshold, draws.n
        ),
    )


def _effective_size(weights: Weights, cell: Cell, setting: Setting, blank: Finding) -> Finding:
    """Effective sample size of the importance weights, with prompts as draws [Q16]."""
    size, residuals = intervals.effective_sample_size(weights)
    blank = replace(blank, observed=size, n=residuals.n)

    def bound_of(sample: Moments) -> Bound:
        def bound(alpha: float) -> tuple[float, float]:
            low, high = setting.mean_bounds(sample, alpha)
            return max(size + low, 0.0), min(size + high, 1.0)

        return bound

    method = f"delta-method, {setting.mean_method}"
    if setting.census:
        found = plug_in(blank, size)
    else:
        found = asymptotic(replace(blank, method=method), residuals, bound_of, setting)
    found = limited(found, "effective sample size", setting)
    if cell.extreme is None:
        return found
    largest = f"largest weight {phrases.number(cell.extreme.high)} at {phrases.place(cell.extreme.high_at)}"
    return replace(found, sentence=f"{found.sentence}; {largest}")
