"""The e-process: exactness, validity, power."""

import itertools
import math
import random
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.accumulators import Draws, Moments, Sketch
from contracts.sequential import (
    MASS_AT_ZERO,
    NODES,
    Betting,
    Running,
    asymptotic_cs,
    binary,
    prompts_needed,
    quantile_bounds,
)

mp.mp.dps = 40
ALPHA = 0.05
T = [mp.mpf(2 * i + 1) / (2 * NODES) for i in range(NODES)]

shares = st.lists(
    st.integers(1, 40).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), min_size=1, max_size=40
)


def exact_above(k, n, rho):
    """Σ w (p/ρ)^k ((1 − p)/(1 − ρ))^(n − k), p = ρ^(1 − t²), w ∝ t."""
    rho = mp.mpf(rho)
    total = mp.fsum(T)
    return mp.fsum(
        t / total * (rho ** (-t * t)) ** k * ((1 - rho ** (1 - t * t)) / (1 - rho)) ** (n - k) for t in T
    )


def exact_below(k, n, rho):
    rho = mp.mpf(rho)
    weights = [t**3 for t in T]
    scale = (1 - mp.mpf(MASS_AT_ZERO)) / mp.fsum(weights)
    body = mp.fsum(
        w * scale * ((1 - (1 - rho) ** (1 - t * t)) / rho) ** k * ((1 - rho) ** (-t * t)) ** (n - k)
        for w, t in zip(weights, T, strict=True)
    )
    return body + (mp.mpf(MASS_AT_ZERO) * (1 - rho) ** -n if k == 0 else 0)


@pytest.mark.parametrize("rho", [0.001, 0.05, 0.5, 0.9])
@pytest.mark.parametrize(("k", "n"), [(0, 1), (1, 1), (0, 400), (3, 400), (50, 400), (400, 400)])
def test_binary_draws_give_the_likelihood_ratio_mixture(rho, k, n):
    betting = Betting(binary(k, n))
    assert betting.log_e_above(rho) == pytest.approx(
        float(mp.log(exact_above(k, n, rho))), rel=1e-9, abs=1e-9
    )
    assert betting.log_e_below(rho) == pytest.approx(
        float(mp.log(exact_below(k, n, rho))), rel=1e-9, abs=1e-9
    )


@pytest.mark.parametrize(("k", "n", "rho"), [(9, 100, 0.05), (30, 900, 0.01), (300, 1000, 0.2)])
def test_the_nodes_are_a_fair_quadrature_of_the_log_uniform_prior(k, n, rho):
    rho = mp.mpf(rho)

    def integrand(u):
        return (rho**-u) ** k * ((1 - rho ** (1 - u)) / (1 - rho)) ** (n - k)

    integral = mp.quad(integrand, mp.linspace(0, 1, 41))
    assert float(mp.log(integral)) == pytest.approx(Betting(binary(k, n)).log_e_above(float(rho)), abs=0.05)


@settings(max_examples=60, deadline=None)
@given(shares, st.sampled_from([0.01, 0.2, 0.7]))
def test_shares_multiply_bets(pairs, rho):
    r = mp.mpf(rho)
    total = mp.fsum(T)
    exact = mp.mpf(0)
    for t in T:
        bet = (r ** (-t * t) - 1) / (1 - r)
        exact += t / total * mp.fprod(1 + bet * (mp.mpf(k) / n - r) for k, n in pairs)
    assert Betting(Draws.of(pairs)).log_e_above(rho) == pytest.approx(
        float(mp.log(exact)), rel=1e-8, abs=1e-8
    )


@pytest.mark.parametrize("rho", [0.02, 0.3])
@pytest.mark.parametrize(
    "values",
    [[(1, Fraction(0)), (1, Fraction(1))], [(2, Fraction(0)), (1, Fraction(1, 3)), (1, Fraction(1))]],
)
def test_expectation_under_the_null_is_at_most_one(rho, values):
    """By enumeration: a distribution on `values` tilted to have mean exactly rho."""
    top = sum(w * v for w, v in values) / sum(w for w, _ in values)
    lift = Fraction(rho).limit_denominator(1000) / top
    atoms = [(Fraction(w, sum(x for x, _ in values)) * lift, v) for w, v in values]
    atoms.append((1 - sum(w for w, _ in atoms), Fraction(0)))
    mean = sum(w * v for w, v in atoms)
    n = 5
    above = below = 0.0
    for outcome in itertools.product(atoms, repeat=n):
        weight = float(math.prod(w for w, _ in outcome))
        draws = Draws.of((v.numerator, v.denominator) for _, v in outcome)
        above += weight * math.exp(Betting(draws).log_e_above(float(mean)))
        below += weight * math.exp(Betting(draws).log_e_below(float(mean)))
    assert above == pytest.approx(1.0, rel=1e-9)
    assert below == pytest.approx(1.0, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(shares)
def test_e_values_are_monotone_in_the_null(pairs):
    betting = Betting(Draws.of(pairs))
    grid = [0.001, 0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 0.99]
    above = [betting.log_e_above(r) for r in grid]
    below = [betting.log_e_below(r) for r in grid]
    assert all(a >= b - 1e-9 for a, b in itertools.pairwise(above))
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(below))


@settings(max_examples=60, deadline=None)
@given(shares, st.sampled_from([0.05, 0.001]))
def test_bounds_invert_the_e_values(pairs, alpha):
    betting = Betting(Draws.of(pairs))
    low, high = betting.lower(alpha), betting.upper(alpha)
    assert 0.0 <= low <= betting.mean + 1e-9
    assert betting.mean - 1e-9 <= high <= 1.0
    if low > 0.0:
        assert betting.log_e_above(low) >= -math.log(alpha) - 1e-9
        assert betting.log_e_above(min(low * (1 + 1e-6), 1.0)) < -math.log(alpha)
    if high < 1.0:
        assert betting.log_e_below(high) >= -math.log(alpha) - 1e-9
        assert betting.log_e_below(high * (1 - 1e-6)) < -math.log(alpha)


@settings(max_examples=60, deadline=None)
@given(st.lists(shares, min_size=1, max_size=3), st.sampled_from([0.003, 0.1, 0.8]))
def test_one_draw_at_a_time_gives_the_same_e_values(streams, rho):
    length = min(map(len, streams))
    runs = {above: Running(rho, len(streams), above=above) for above in (True, False)}
    for i in range(length):
        for above, running in runs.items():
            running.add(np.array([pairs[i][0] / pairs[i][1] for pairs in streams]))
            whole = [Betting(Draws.of(pairs[: i + 1])) for pairs in streams]
            expected = [b.log_e_above(rho) if above else b.log_e_below(rho) for b in whole]
            assert running.log_e() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    kept = np.arange(len(streams)) == 0
    runs[True].keep(kept)
    assert runs[True].log_e() == pytest.approx([Betting(Draws.of(streams[0][:length])).log_e_above(rho)])


def test_running_refuses_a_null_that_is_no_mean():
    with pytest.raises(ValueError, match="rho"):
        Running(0.0, 1, above=True)


def boundary(rho, n_max):
    """Fewest exceedances that alarm after n draws, for n = 1..n_max."""
    k, out = 0, []
    for n in range(1, n_max + 1):
        while k <= n and Betting(binary(k, n)).log_e_above(rho) < -math.log(ALPHA):
            k += 1
        out.append(k)
    return out


def stopping(curve, p):
    """Exact mean stopping time (up to the horizon) and the probability to have stopped by then."""
    alive = {0: 1.0}
    mean = 0.0
    for stop in curve:
        mean += sum(alive.values())
        grown = {}
        for k, weight in alive.items():
            for step, chance in ((0, 1 - p), (1, p)):
                if k + step < stop:
                    grown[k + step] = grown.get(k + step, 0.0) + weight * chance
        alive = grown
    return mean, 1.0 - sum(alive.values())


def wald(p, rho):
    return math.log(1 / ALPHA) / (p * math.log(p / rho) + (1 - p) * math.log((1 - p) / (1 - rho)))


@pytest.mark.parametrize(
    ("rho", "alternatives"), [(0.1, [0.2, 0.5]), (0.01, [0.05, 0.2]), (0.05, [0.1, 0.25, 0.5])]
)
def test_peeking_is_free_and_detection_is_near_walds_floor(rho, alternatives):
    curve = boundary(rho, int(wald(min(alternatives), rho) * 6))
    assert stopping(curve, rho)[1] <= ALPHA
    for p in alternatives:
        mean, stopped = stopping(curve, p)
        assert stopped > 0.99
        assert mean / wald(p, rho) <= 1.65


def certified(rho, n_max):
    """Most exceedances that certify after n draws, for n = 1..n_max; −1 where none do."""
    most, out = -1, []
    for n in range(1, n_max + 1):
        while most + 1 <= n and Betting(binary(most + 1, n)).log_e_below(rho) >= -math.log(ALPHA):
            most += 1
        out.append(most)
    return out


def ever_certified(curve, p):
    """Exact probability to have been certified at some draw."""
    alive, gone = {0: 1.0}, 0.0
    for most in curve:
        grown = {}
        for k, weight in alive.items():
            for step, chance in ((0, 1 - p), (1, p)):
                grown[k + step] = grown.get(k + step, 0.0) + weight * chance
        gone += sum(w for k, w in grown.items() if k <= most)
        alive = {k: w for k, w in grown.items() if k > most and w > 1e-15}
    return gone


@pytest.mark.parametrize(("rho", "horizon"), [(0.3, 400), (0.1, 800), (0.02, 1200)])
def test_false_passes_at_every_peek_are_within_alpha_exactly(rho, horizon):
    """By dynamic programming over all paths of 0/1 draws, a peek after each."""
    curve = certified(rho, horizon)
    assert ever_certified(curve, rho * 1.0001) <= ALPHA
    assert ever_certified(curve, rho / 4) > 0.9


@pytest.mark.parametrize(("k", "n"), [(0, 50), (3, 50), (20, 50), (49, 50), (5, 3000)])
@pytest.mark.parametrize("alpha", [0.05, 0.001])
def test_ends_of_the_confidence_sequence_are_the_roots_of_the_exact_mixture(k, n, alpha):
    betting = Betting(binary(k, n))
    low, high = betting.lower(alpha), betting.upper(alpha)
    for end, exact in ((low, exact_above), (high, exact_below)):
        if 0.0 < end < 1.0:
            around = [mp.mpf(end) * (1 + side * mp.mpf("1e-8")) for side in (-1, 1)]
            excess = [mp.log(exact(k, n, r)) + mp.log(alpha) for r in around]
            assert excess[0] * excess[1] < 0
    assert low > 0.0 or k < 2
    assert high < 1.0 or k >= n - 1


@pytest.mark.parametrize("scatter", [0.0, 0.3, 0.9])
def test_false_alarms_and_false_passes_with_a_peek_after_every_prompt(scatter):
    """Shares correlated within prompts: beta-distributed rates around the null mean."""
    rng = random.Random(17)
    rho, tokens, runs, horizon = 0.1, 20, 120, 150
    alarms = passes = 0
    for _ in range(runs):
        pairs, alarm, passed = [], False, False
        for n in range(1, horizon + 1):
            rate = (
                rho
                if scatter == 0
                else rng.betavariate(rho * (1 / scatter - 1), (1 - rho) * (1 / scatter - 1))
            )
            pairs.append((sum(rng.random() < rate for _ in range(tokens)), tokens))
            if n % 5 == 0:
                betting = Betting(Draws.of(pairs))
                alarm = alarm or betting.log_e_above(rho) >= -math.log(ALPHA)
                passed = passed or betting.log_e_below(rho) >= -math.log(ALPHA)
        alarms, passes = alarms + alarm, passes + passed
    most = ALPHA * runs + 3 * math.sqrt(ALPHA * (1 - ALPHA) * runs)
    assert alarms <= most
    assert passes <= most


def test_prompts_needed_certifies_exactly_there():
    for rho, k in ((0.05, 0), (0.05, 2), (0.01, 0)):
        n = prompts_needed(rho, ALPHA, k)
        assert Betting(binary(k, n)).log_e_below(rho) >= -math.log(ALPHA)
        assert Betting(binary(k, n - 1)).log_e_below(rho) < -math.log(ALPHA)
    assert prompts_needed(0.05, ALPHA) <= 59 * 1.2
    assert prompts_needed(1e-7, ALPHA) is None
    with pytest.raises(ValueError, match="alpha"):
        prompts_needed(0.1, 0.0)


def test_no_draws_say_nothing():
    betting = Betting(Draws())
    assert betting.log_e_above(0.1) == betting.log_e_below(0.1) == 0.0
    assert (betting.lower(0.05), betting.upper(0.05)) == (0.0, 1.0)


def test_impossible_nulls_are_refuted_at_once():
    assert Betting(binary(1, 50)).log_e_above(0.0) == math.inf
    assert Betting(binary(0, 50)).log_e_above(0.0) == 0.0
    assert Betting(binary(49, 50)).log_e_below(1.0) == math.inf
    assert Betting(binary(50, 50)).log_e_below(1.0) == 0.0


def test_asymptotic_cs_covers_at_every_peek():
    rng = random.Random(23)
    missed = 0
    for _ in range(150):
        total = squares = cubes = 0.0
        out = False
        for n in range(1, 301):
            x = rng.expovariate(1.0)
            total, squares, cubes = total + x, squares + x * x, cubes + x**3
            if n >= 30 and n % 10 == 0:
                sample = Moments(n=n, total=total, squares=squares, cubes=cubes)
                low, high = asymptotic_cs(sample, 0.05, 100)
                out = out or not low <= 1.0 <= high
        missed += out
    assert missed <= 150 * 0.1 + 3 * math.sqrt(150 * 0.09)
    assert asymptotic_cs(Moments.of([1.0]), 0.05, 100) == (-math.inf, math.inf)


def test_quantile_sequences_hold_the_quantile_and_need_enough_values():
    rng = random.Random(5)
    values = [rng.lognormvariate(0, 0.5) for _ in range(800)]
    low, high = quantile_bounds(Sketch.of(values), 0.5, 0.05)
    assert 0.8 < low < 1.0 < high < 1.25
    assert quantile_bounds(Sketch.of(values[:50]), 0.99, 0.05)[1] == math.inf
    assert quantile_bounds(Sketch.of(values), 0.99, 0.05)[1] < math.inf
