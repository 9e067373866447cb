"""Rewards, graded outcomes and importance weights against enumeration, scipy and simulation."""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from contracts import intervals
from contracts.accumulators import Draws
from contracts.judge import judge
from contracts.paired_accumulators import Weights
from contracts.sequential import Betting
from tests.contracts.judge_kit import (
    HOLDS,
    INCONCLUSIVE,
    PLAIN,
    STAGES,
    UNMEASURABLE,
    VIOLATED,
    clause,
    collector,
    contract,
    judged,
    only,
    service,
)

REWARD = {"reward": {"range": [0, 1], "grader": "g"}}


def drift(limit=0.1, comparator="abs_lte", **more):
    return contract(service("reward_drift", {comparator: limit}), **REWARD | more)


def rewarded(document, pairs, stage="offline_ci"):
    c = collector(document, stage)
    for i, (train, inference) in enumerate(pairs):
        c.add_rewards(f"p{i:05}", PLAIN, train, inference)
    return only(judge(document, c.evidence(), contract_digest="sha256:c"))


def weighted(document, rows, stage="offline_ci"):
    c = collector(document, stage)
    for i, (reward, log_weight) in enumerate(rows):
        c.add_weighted_reward(f"p{i:05}", PLAIN, reward, log_weight)
    return only(judge(document, c.evidence(), contract_digest="sha256:c"))


def flipped(document, table, stage="offline_ci"):
    c = collector(document, stage)
    outcomes = [(True, True), (True, False), (False, True), (False, False)]
    pairs = [pair for pair, count in zip(outcomes, table, strict=True) for _ in range(count)]
    for i, (train, inference) in enumerate(pairs):
        c.add_outcome(f"p{i:05}", PLAIN, train, inference)
    return only(judge(document, c.evidence(), contract_digest="sha256:c"))


@pytest.mark.parametrize("stage", STAGES)
def test_reward_drift_is_certified_within_and_alarmed_beyond_on_both_sides(stage):
    same = rewarded(drift(), [(0.5, 0.5)] * 200, stage)
    assert same.verdict is HOLDS
    assert same.method == ("betting" if stage == "offline_ci" else "betting-cs")
    assert (same.observed, same.unit, same.n) == (0.0, "reward", 200)
    assert same.interval.low < 0.0 < same.interval.high
    for pair in ((1.0, 0.0), (0.0, 1.0)):
        assert rewarded(drift(), [pair] * 20 + [(0.5, 0.5)] * 20, stage).verdict is VIOLATED
    assert rewarded(drift(), [(0.5, 0.5)] * 10, stage).verdict is INCONCLUSIVE
    one_sided = drift(0.1, "lte")
    assert rewarded(one_sided, [(0.0, 1.0)] * 40, stage).verdict is HOLDS
    assert rewarded(one_sided, [(1.0, 0.0)] * 40, stage).verdict is VIOLATED
    other = drift(-0.1, "gte")
    assert rewarded(other, [(1.0, 0.0)] * 40, stage).verdict is HOLDS
    assert rewarded(other, [(0.0, 1.0)] * 40, stage).verdict is VIOLATED


def test_the_reason_of_a_reward_drift_shows_both_sides():
    verdict = rewarded(drift(), [(1.0, 0.0)] * 3 + [(1.0, 1.0)] * 37)
    assert verdict.observed == 0.075
    assert "reward drift 0.075 reward (limit within ±0.1 reward), 40 prompts" in verdict.reason
    assert "training 1, inference 0.925" in verdict.reason


def test_needed_prompts_decide_a_reward_drift():
    few = rewarded(drift(), [(0.5, 0.5)] * 20)
    assert rewarded(drift(), [(0.5, 0.5)] * few.needed).verdict is HOLDS
    assert rewarded(drift(), [(0.5, 0.5)] * (few.needed - 1)).verdict is INCONCLUSIVE


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60),
    st.sampled_from(STAGES),
)
def test_the_interval_of_a_reward_drift_inverts_the_bets(pairs, stage):
    verdict = rewarded(drift(0.3), [(a / 4, b / 4) for a, b in pairs], stage)
    betting = Betting(Draws.of((a - b + 4, 8) for a, b in pairs))
    assert verdict.interval.low == pytest.approx(2 * betting.lower(0.05) - 1, abs=1e-6)
    assert verdict.interval.high == pytest.approx(2 * betting.upper(0.05) - 1, abs=1e-6)
    within = verdict.interval.low > -0.3 and verdict.interval.high < 0.3
    assert (verdict.verdict is HOLDS) == within


def test_reward_drift_alarms_keep_their_level_on_either_side():
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(200):
        gap = np.where(rng.random(60) < 0.55, 1.0, -1.0)  # mean 0.1: at the limit
        alarms += rewarded(drift(), [(max(g, 0.0), max(-g, 0.0)) for g in gap]).verdict is VIOLATED
    assert alarms <= 0.05 * 200 + 3 * math.sqrt(0.05 * 0.95 * 200)


def test_a_census_of_rewards_is_exact():
    document = drift(0.5, stages={"offline_ci": {"census": True}})
    assert rewarded(document, [(1.0, 0.5)]).verdict is HOLDS
    assert rewarded(document, [(1.0, 0.4)]).verdict is VIOLATED


@pytest.mark.parametrize("stage", STAGES)
def test_weighted_rewards_agree_with_the_expectation_and_show_their_effective_size(stage):
    """Two answers: q = (.5, .5), p = (.6, .4), r = (1, 0), so the drift is 0.1."""
    rng = np.random.default_rng(11)
    first = rng.random(3000) < 0.5
    rows = [(1.0, math.log(1.2)) if a else (0.0, math.log(0.8)) for a in first]
    verdict = weighted(drift(0.3), rows, stage)
    assert verdict.observed == pytest.approx(0.1, abs=0.01)
    assert verdict.verdict is HOLDS
    assert "(asymptotic, skew-corrected)" in verdict.method
    assert "importance-weighted, effective sample size 0.96" in verdict.reason
    assert weighted(drift(0.05), rows, stage).verdict is VIOLATED


def test_weights_that_leave_too_few_effective_prompts_are_not_believed():
    rows = [(0.5, 0.0)] * 60 + [(0.5, math.log(1e4))]
    verdict = weighted(drift(0.3), rows)
    assert verdict.verdict is INCONCLUSIVE
    assert "too few to be believed" in verdict.reason


def test_a_reward_that_is_no_number_never_passes():
    rows = [(0.5, 0.5)] * 400 + [(math.nan, 0.5)]
    assert rewarded(drift(), rows).verdict is UNMEASURABLE


@pytest.mark.parametrize(
    ("table", "outcome"),
    [
        ((50, 0, 0, 9), HOLDS),
        ((50, 0, 0, 8), INCONCLUSIVE),
        ((40, 0, 1, 52), HOLDS),
        ((40, 1, 0, 51), INCONCLUSIVE),
        ((30, 10, 10, 10), VIOLATED),
    ],
)
def test_flip_rate_is_clopper_pearson_over_tasks(table, outcome):
    verdict = flipped(contract(service("flip_rate", {"lte": 0.05}), **REWARD), table)
    assert verdict.verdict is outcome
    assert verdict.method == "clopper-pearson"
    assert verdict.observed == pytest.approx((table[1] + table[2]) / sum(table))


def test_the_reason_of_a_flip_rate_has_the_table_and_mcnemars_test():
    document = contract(service("flip_rate", {"lte": 0.2}), **REWARD)
    verdict = flipped(document, (80, 9, 1, 10), "shadow")
    assert verdict.method == "betting-cs"
    assert "outcome differs on 10% of tasks (limit at most 20%), 100 tasks" in verdict.reason
    assert "both passed 80, training only 9, inference only 1, neither 10" in verdict.reason
    assert "exact McNemar p = 0.021" in verdict.reason


@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 0), (3, 3), (9, 1), (0, 12), (200, 160)])
def test_mcnemar_is_the_exact_binomial_test(b, c):
    expected = stats.binomtest(b, b + c, 0.5).pvalue if b + c else 1.0
    assert intervals.mcnemar_p_value(b, c) == pytest.approx(expected, rel=1e-9)
    assert intervals.mcnemar_p_value(c, b) == intervals.mcnemar_p_value(b, c)


weights = st.lists(st.lists(st.floats(-3, 3), min_size=1, max_size=6), min_size=2, max_size=12)


def by_prompt(prompts):
    return Weights.of(
        (len(p), math.fsum(map(math.exp, p)), math.fsum(math.exp(2 * v) for v in p)) for p in prompts
    )


@settings(max_examples=60, deadline=None)
@given(weights)
def test_effective_sample_size_is_its_definition(prompts):
    size, _ = intervals.effective_sample_size(by_prompt(prompts))
    w = [mp.exp(v) for p in prompts for v in p]
    assert size == pytest.approx(float(mp.fsum(w) ** 2 / (len(w) * mp.fsum(v * v for v in w))), rel=1e-12)
    assert 0.0 < size <= 1.0 + 1e-12


def test_its_delta_method_matches_the_jackknife():
    rng = np.random.default_rng(3)
    prompts = [rng.normal(rng.normal(0, 0.2), 0.3, rng.integers(5, 40)).tolist() for _ in range(80)]
    size, residuals = intervals.effective_sample_size(by_prompt(prompts))
    left_out = [
        intervals.effective_sample_size(by_prompt(prompts[:i] + prompts[i + 1 :]))[0] for i in range(80)
    ]
    jackknife = math.sqrt(79 / 80 * sum((v - np.mean(left_out)) ** 2 for v in left_out))
    assert math.sqrt(residuals.variance / 80) == pytest.approx(jackknife, rel=0.1)
    assert size < 1.0


@pytest.mark.parametrize("stage", STAGES)
def test_ess_is_judged_with_prompts_as_draws(stage):
    document = contract(clause("ess", {"gte": 0.9}))
    rng = np.random.default_rng(7)

    def verdict(spread, n=200):
        return only(judged(document, rng.normal(0, spread, (n, 20)).tolist(), stage, "log_ratio"))

    assert verdict(0.0).verdict is HOLDS
    assert verdict(0.05).verdict is HOLDS
    assert verdict(1.0).verdict is VIOLATED
    assert verdict(0.0, 29).verdict is INCONCLUSIVE
    shown = verdict(0.05)
    assert "effective sample size 0.99" in shown.reason
    assert "largest weight 1." in shown.reason
    assert shown.method.startswith("delta-method, ")
    broken = only(judged(document, [[0.0, math.inf]] * 50, stage, "log_ratio"))
    assert broken.verdict is UNMEASURABLE
    assert only(judged(document, [[math.inf]] * 50, stage, "log_ratio")).verdict is UNMEASURABLE


def test_a_census_of_weights_is_exact():
    document = contract(clause("ess", {"gte": 0.9}), stages={"offline_ci": {"census": True}})
    assert only(judged(document, [[0.0]], metric="log_ratio")).verdict is HOLDS
    assert only(judged(document, [[0.0], [2.0]], metric="log_ratio")).verdict is VIOLATED
