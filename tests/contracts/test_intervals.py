"""Fixed-sample bounds against enumeration and mpmath."""

import math
import random

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from contracts import intervals
from contracts.accumulators import Moments, Sketch
from contracts.calibration import Calibrated, CalibrationSums

mp.mp.dps = 30


def at_least(k, n, p):
    return mp.fsum(mp.binomial(n, i) * mp.mpf(p) ** i * (1 - mp.mpf(p)) ** (n - i) for i in range(k, n + 1))


@pytest.mark.parametrize(
    ("rho", "table"),
    [(0.05, [59, 93, 124]), (0.01, [299, 473, 628, 773]), (0.02, [149, 236, 313, 386]), (0.001, [2995])],
)
def test_prompts_needed_is_the_table_of_the_theory(rho, table):
    assert [intervals.prompts_needed(rho, 0.05, k) for k in range(len(table))] == table


def test_prompts_needed_says_what_it_cannot_answer():
    assert intervals.prompts_needed(1e-7, 0.05, 1) is None
    with pytest.raises(ValueError, match="rho"):
        intervals.prompts_needed(0.0, 0.05)


@pytest.mark.parametrize(("k", "n"), [(0, 20), (1, 20), (7, 20), (19, 20), (20, 20)])
@pytest.mark.parametrize("alpha", [0.05, 0.001])
def test_clopper_pearson_inverts_the_binomial(k, n, alpha):
    low, high = intervals.clopper_pearson(k, n, alpha)
    assert low == 0.0 if k == 0 else float(at_least(k, n, low)) == pytest.approx(alpha, rel=1e-9)
    assert high == 1.0 if k == n else float(1 - at_least(k + 1, n, high)) == pytest.approx(alpha, rel=1e-9)


@pytest.mark.parametrize(("k", "n"), [(0, 299), (3, 773), (480, 10_000), (40, 1_000_000), (2.5, 40.0)])
@pytest.mark.parametrize("alpha", [0.05, 1e-6])
def test_clopper_pearson_is_the_beta_quantile_to_ten_digits(k, n, alpha):
    low, high = intervals.clopper_pearson(k, n, alpha)
    with mp.workdps(50):
        if k:
            tail = mp.betainc(k, n - k + 1, 0, mp.mpf(low), regularized=True)
            assert float(tail) == pytest.approx(alpha, rel=1e-8)
        tail = mp.betainc(k + 1, n - k, 0, mp.mpf(high), regularized=True)
        assert float(1 - tail) == pytest.approx(alpha, rel=1e-8)


def test_no_trials_bound_nothing():
    assert intervals.clopper_pearson(0, 0, 0.05) == (0.0, 1.0)


@pytest.mark.parametrize("rho", [0.01, 0.3, 0.99])
def test_binomial_p_value_is_the_tail(rho):
    for k in range(13):
        assert intervals.binomial_p_value(k, 12, rho) == pytest.approx(float(at_least(k, 12, rho)), rel=1e-10)
    assert intervals.binomial_p_value(1, 12, 0.0) == 0.0
    assert intervals.binomial_p_value(3, 12, 1.0) == 1.0


def test_clopper_pearson_covers_whatever_the_truth():
    for p in (0.003, 0.05, 0.4):
        missed = sum(
            float(mp.binomial(40, k) * mp.mpf(p) ** k * (1 - mp.mpf(p)) ** (40 - k))
            for k in range(41)
            if intervals.clopper_pearson(k, 40, 0.05)[1] < p
        )
        assert missed <= 0.05


def test_student_t_against_its_definition():
    values = [1.0, 2.0, 4.0, 5.0]
    low, high = intervals.student_t(Moments.of(values), 0.05)
    mean, sd = sum(values) / 4, math.sqrt(sum((v - 3.0) ** 2 for v in values) / 3)
    t = (high - mean) / (sd / 2)
    tail = mp.quad(lambda x: (1 + x * x / 3) ** -2, [t, mp.inf]) / mp.quad(
        lambda x: (1 + x * x / 3) ** -2, [-mp.inf, mp.inf]
    )
    assert float(tail) == pytest.approx(0.05, rel=1e-8)
    assert low == pytest.approx(2 * mean - high)


def test_a_skewed_sample_moves_one_end_outwards_by_the_edgeworth_term():
    values = [0.0, 0.0, 0.0, 1.0, 9.0]
    low, high = intervals.student_t(Moments.of(values), 0.05)
    assert low == pytest.approx(stats.t.interval(0.9, 4, 2.0, stats.sem(values))[0])
    t = stats.t.ppf(0.95, 4)
    skewness = stats.skew(values)
    assert Moments.of(values).skewness == pytest.approx(skewness)
    scale = np.std(values, ddof=1) / math.sqrt(5)
    assert high == pytest.approx(2.0 + scale * (t + skewness * (1 + 2 * t * t) / (6 * math.sqrt(5))))
    mirrored = intervals.student_t(Moments.of([-v for v in values]), 0.05)
    assert mirrored == pytest.approx((-high, -low))


def test_the_upper_end_of_a_skewed_mean_is_wrong_less_often_than_students():
    draws = np.random.default_rng(3).lognormal(0, 1, (1500, 60))
    truth = math.exp(0.5)
    plain = sum(row.mean() + stats.t.ppf(0.95, 59) * stats.sem(row) < truth for row in draws)
    ours = sum(intervals.student_t(Moments.of(row), 0.05)[1] < truth for row in draws)
    assert ours < 0.8 * plain
    assert ours / 1500 < 0.1
    assert intervals.student_t(Moments.of([1.0]), 0.05) == (-math.inf, math.inf)


@pytest.mark.parametrize("q", [0.5, 0.95])
def test_quantile_bounds_are_order_statistics(q):
    values = sorted(random.Random(3).lognormvariate(0, 1) for _ in range(120))
    low, high = intervals.quantile_bounds(Sketch.of(values), q, 0.05)
    upper = next(j for j in range(1, 121) if 1 - at_least(j, 120, q) >= 0.95)  # P(Bin <= j − 1)
    lower = max(i for i in range(1, 121) if 1 - at_least(i, 120, q) <= 0.05)
    assert values[lower - 1] / 1.011 <= low <= values[lower - 1]
    assert values[upper - 1] <= high <= values[upper - 1] * 1.011


def test_a_quantile_has_no_upper_bound_below_its_least_sample():
    assert intervals.quantile_bounds(Sketch.of([1.0] * 298), 0.99, 0.05)[1] == math.inf
    assert intervals.quantile_bounds(Sketch.of([1.0] * 299), 0.99, 0.05)[1] == pytest.approx(1.0, rel=0.011)
    assert intervals.quantile_bounds(Sketch(), 0.5, 0.05) == (0.0, math.inf)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.sampled_from([0.5, 0.9, 0.99]))
def test_sketches_hold_the_quantile_of_the_values_seen(values, q):
    exact = sorted(values)[max(math.ceil(q * len(values)), 1) - 1]
    low, high = intervals.sketch_quantile(Sketch.of(values), q)
    assert low * (1 - 1e-12) <= exact <= high * (1 + 1e-12)


def test_mean_of_a_sketch_is_within_its_error():
    values = [random.Random(5).lognormvariate(0, 2) for _ in range(500)]
    moments, error = intervals.sketch_moments(Sketch.of(values))
    assert abs(moments.mean / (sum(values) / 500) - 1) <= error


def brute_gap(prompts, bins):
    """ECE(train) − ECE(inference), written out."""
    gap = 0.0
    for side in (0, 2):
        cells = [[0.0, 0.0] for _ in range(bins)]
        for prompt in prompts:
            for c, h in zip(prompt[side], prompt[side + 1], strict=True):
                b = min(max(math.ceil(c * bins) - 1, 0), bins - 1)
                cells[b][0] += c
                cells[b][1] += h
        total = sum(len(p[0]) for p in prompts)
        gap += (1 if side == 0 else -1) * sum(abs(c - h) for c, h in cells) / total
    return gap


def calibrated(rng, n, shift):
    conf = [rng.uniform(0.05, 1) for _ in range(n)]
    hit = [float(rng.random() < c - 0.1) for c in conf]
    return Calibrated(conf, hit, [min(1.0, c * (1 + shift * rng.random())) for c in conf], hit)


def collected(prompts, bins):
    sums = None
    for prompt in prompts:
        sums = CalibrationSums.of(prompt, bins).plus(sums)
    return sums.frozen()


def test_calibration_gap_and_its_delta_method_match_the_jackknife():
    rng = random.Random(11)
    prompts = [calibrated(rng, rng.randint(20, 60), 0.3) for _ in range(60)]
    gap, residuals = intervals.calibration_gap(collected(prompts, 10))
    assert gap == pytest.approx(brute_gap(prompts, 10), rel=1e-9)
    left_out = [brute_gap(prompts[:i] + prompts[i + 1 :], 10) for i in range(60)]
    centre = sum(left_out) / 60
    jackknife = math.sqrt(59 / 60 * sum((g - centre) ** 2 for g in left_out))
    assert math.sqrt(residuals.variance / residuals.n) == pytest.approx(jackknife, rel=0.15)


def equal_mass_ece(confidence, hit, bins):
    """ECE with the fine bins of theory.md [S11] joined in order, written out."""
    order = np.argsort(confidence)
    fine = np.clip(np.ceil((1 - np.sqrt(1 - confidence[order])) * 64).astype(int) - 1, 0, 63)
    gap, error, edge = 0.0, 0.0, 1
    for b in range(64):
        members = order[fine == b]
        gap += confidence[members].sum() - hit[members].sum()
        if (fine <= b).sum() * bins >= edge * len(order):
            edge = (fine <= b).sum() * bins // len(order) + 1
            error, gap = error + abs(gap), 0.0
    return error / len(order)


@pytest.mark.parametrize("bins", [2, 5, 15])
def test_equal_mass_bins_are_joined_from_fine_ones(bins):
    rng = np.random.default_rng(2)
    sums, sides = None, []
    for _ in range(40):
        confidence = [rng.beta(a, 0.5, 50) for a in (2.0, 1.5)]
        hit = [(rng.random(50) < c**2).astype(float) for c in confidence]
        prompt = Calibrated(confidence[0], hit[0], confidence[1], hit[1])
        sums = CalibrationSums.of(prompt, bins, equal_mass=True).plus(sums)
        sides.append(prompt)
    gap, residuals = intervals.calibration_gap(sums.frozen(), bins)
    whole = [np.concatenate([np.asarray(p[i]) for p in sides]) for i in range(4)]
    expected = equal_mass_ece(whole[0], whole[1], bins) - equal_mass_ece(whole[2], whole[3], bins)
    assert gap == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert 0.0 < math.sqrt(residuals.variance / residuals.n) < 0.1


def test_a_group_of_equal_mass_is_off_by_at_most_a_fine_bin():
    """Exactly calibrated but for one group: its gap alone is left, whatever the sign elsewhere."""
    half = Calibrated([0.2] * 50 + [0.9] * 50, [0.0] * 50 + [1.0] * 50, [0.2] * 100, [0.0] * 80 + [1.0] * 20)
    frozen = CalibrationSums.of(half, 2, equal_mass=True).frozen()
    gap, _ = intervals.calibration_gap(frozen, 2)
    assert gap == pytest.approx((10.0 + 5.0) / 100)
    assert intervals.calibration_gap(frozen, 1)[0] == pytest.approx((10.0 - 5.0) / 100)


def test_identical_kernels_have_no_calibration_gap():
    rng = random.Random(1)
    prompts = [calibrated(rng, 30, 0.0) for _ in range(5)]
    gap, residuals = intervals.calibration_gap(collected(prompts, 15))
    assert gap == 0.0
    assert residuals.variance == 0.0


def test_p_by_inversion_finds_where_a_bound_turns():
    assert intervals.p_by_inversion(lambda alpha: alpha >= 0.013) == pytest.approx(0.013, rel=0.02)
    assert intervals.p_by_inversion(lambda _: False) == 1.0
    assert intervals.p_by_inversion(lambda _: True) <= 1.1e-12
