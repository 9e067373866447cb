"""Every bound against mpmath at 80 digits, and with equality where the theory says so."""

import itertools
import math
import random

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import bounds_search
from contracts import bounds

mp.mp.dps = 80
SLACK = mp.mpf("1e-12")

logits = st.lists(st.floats(-30, 30), min_size=2, max_size=12)


@st.composite
def pairs(draw):
    train = draw(logits)
    step = draw(st.sampled_from([1e-6, 1e-2, 1.0, 10.0]))
    diff = draw(st.lists(st.floats(-1, 1), min_size=len(train), max_size=len(train)))
    return (
        train,
        [z + step * d for z, d in zip(train, diff, strict=True)],
        draw(st.sampled_from([0.3, 1.0, 2.5])),
    )


def softmax(z, t):
    z = [mp.mpf(v) / t for v in z]
    peak = max(z)
    e = [mp.exp(v - peak) for v in z]
    total = mp.fsum(e)
    return [v / total for v in e]


def quantities(train, inference, t):
    p, q = softmax(train, t), softmax(inference, t)
    d = [mp.mpf(a) - mp.mpf(b) for a, b in zip(train, inference, strict=True)]
    mean = mp.fsum(d) / len(d)
    mean_q = mp.fsum(b * v for b, v in zip(q, d, strict=True))
    return {
        "tv": mp.fsum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2,
        "kl": mp.fsum(a * mp.log(a / b) for a, b in zip(p, q, strict=True)),
        "kl_reverse": mp.fsum(b * mp.log(b / a) for a, b in zip(p, q, strict=True)),
        "log_w": max(abs(mp.log(a / b)) for a, b in zip(p, q, strict=True)),
        "w2": mp.fsum(b * (a / b) ** 2 for a, b in zip(p, q, strict=True)),
        "h": float((max(d) - min(d)) / t),
        "osc": max(d) - min(d),
        "linf": float(max(abs(v) for v in d)),
        "eps2": float(mp.sqrt(mp.fsum((v - mean) ** 2 for v in d))),
        "s": float(mp.sqrt(mp.fsum(b * (v - mean_q) ** 2 for b, v in zip(q, d, strict=True)))),
        "b": float(max(d) - mean_q),
    }


def below(value, bound):
    assert value <= mp.mpf(bound) * (1 + SLACK) + mp.mpf("1e-15")


@settings(max_examples=150, deadline=None)
@given(pairs())
def test_no_bound_is_ever_exceeded(case):
    t = case[2]
    x = quantities(*case)
    below(x["osc"], bounds.osc_from_l2(x["eps2"]))
    below(x["osc"], bounds.osc_from_linf(x["linf"]))
    chain = [
        bounds.tv_from_osc(x["h"]),
        bounds.tv_from_l2(x["eps2"], t),
        bounds.tv_from_l2_linear(x["eps2"], t),
    ]
    below(x["tv"], chain[0])
    assert chain[0] <= chain[1] * (1 + 1e-12) + 1e-15
    assert chain[1] <= chain[2] + 1e-15
    for kl in (x["kl"], x["kl_reverse"]):
        below(kl, bounds.kl_from_osc(x["h"]))
        below(kl, bounds.kl_from_l2(x["eps2"], t))
        below(x["tv"], bounds.tv_from_kl(float(kl) * (1 + 1e-12)))
    below(x["log_w"], bounds.log_ratio_from_osc(x["h"]))
    below(x["log_w"], bounds.log_ratio_from_l2(x["eps2"], t))
    below(x["w2"] - 1, bounds.chi2_from_osc(x["h"]))
    below(x["w2"], bounds.second_moment_from_osc(x["h"]))
    below(x["kl_reverse"], bounds.kl_from_weighted(x["s"], x["b"], t))
    below(x["tv"], bounds.tv_from_weighted(x["s"], x["b"], t))


@pytest.mark.parametrize("eps", [1e-6, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("t", [0.5, 1.0])
def test_b1_is_attained_by_two_symmetric_tokens(eps, t):
    half = eps / math.sqrt(2) / 2
    x = quantities([half, -half], [-half, half], t)
    assert float(x["tv"]) == pytest.approx(bounds.tv_from_l2(eps, t), rel=1e-12)
    assert float(x["tv"]) == pytest.approx(bounds.tv_from_osc(x["h"]), rel=1e-12)


def test_b3_is_approached_when_all_mass_sits_at_one_end():
    x = quantities([40.0, 0.0], [40.0, 1.5], 1.0)
    assert float(x["log_w"]) == pytest.approx(bounds.log_ratio_from_osc(1.5), rel=1e-12)
    assert bounds.log_ratio_from_osc(1.5) == pytest.approx(bounds.log_ratio_from_l2(1.5 / math.sqrt(2)))


def test_c1_holds_for_every_way_to_cut_and_is_attained():
    rng = random.Random(7)
    for _ in range(200):
        p, q = ([rng.random() ** 4 for _ in range(5)] for _ in range(2))
        p, q = [v / sum(p) for v in p], [v / sum(q) for v in q]
        tv = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
        for size in range(6):
            for kept in itertools.combinations(range(5), size):
                low, high = bounds.truncated_tv([p[i] for i in kept], [q[i] for i in kept])
                assert low - 1e-12 <= tv <= high + 1e-12
    # the same tail on both sides attains the lower end, disjoint tails the upper one
    assert bounds.truncated_tv([0.6], [0.5])[0] == pytest.approx(0.5 * (0.1 + 0.1))
    disjoint = 0.5 * (abs(0.6 - 0.5) + 0.4 + 0.5)
    assert bounds.truncated_tv([0.6], [0.5])[1] == pytest.approx(disjoint)


def test_c1_of_the_full_vocabulary_is_exact():
    assert bounds.truncated_tv([0.25, 0.75], [0.5, 0.5]) == (0.25, 0.25)


@pytest.mark.parametrize(
    ("p", "q", "words"),
    [
        ([0.5], [0.5, 0.5], "same tokens"),
        ([1.5], [0.5], r"\[0, 1\]"),
        ([float("nan")], [0.5], r"\[0, 1\]"),
        ([0.9, 0.9], [0.5, 0.1], "above 1"),
    ],
)
def test_c1_refuses_what_is_no_distribution(p, q, words):
    with pytest.raises(ValueError, match=words):
        bounds.truncated_tv(p, q)


def test_rewards_follow_the_chain():
    assert bounds.reward_from_tv(0.02, 3.0) == pytest.approx(0.06)
    tau = bounds.l2_for_reward(0.01, 2.0, t=0.7)
    assert 2.0 * bounds.tv_from_l2_linear(tau, 0.7) == pytest.approx(0.01)
    soft = bounds.reward_from_soft_clause(tau, 0.05, 2.0, t=0.7)
    assert soft == pytest.approx(2.0 * (0.95 * math.tanh(tau / (2 * math.sqrt(2) * 0.7)) + 0.05))


def test_sequences_take_the_smallest_of_three_bounds():
    assert bounds.sequence_tv([], []) == 0.0
    assert bounds.sequence_tv([0.1] * 3, [10.0] * 3) == pytest.approx(1 - 0.9**3)
    assert bounds.sequence_tv([0.1, 0.0], [10.0, 10.0]) == pytest.approx(0.1)
    assert bounds.sequence_tv([0.1] * 3, [1e-4] * 3) == pytest.approx(math.sqrt(1.5e-4))
    assert bounds.sequence_tv([1.0], [9.0]) == 1.0
    with pytest.raises(ValueError, match="one TV and one KL"):
        bounds.sequence_tv([0.1], [])


@pytest.mark.parametrize("x", [1e-9, 1e-4, 9.99e-4, 1.001e-3, 0.1, 30.0])
def test_phi_keeps_its_digits(x):
    exact = (mp.exp(mp.mpf(x)) - 1 - mp.mpf(x)) / mp.mpf(x) ** 2
    assert bounds.kl_from_weighted(1.0, x) == pytest.approx(float(exact), rel=1e-9)


def test_overflow_is_vacuous_not_an_error():
    assert bounds.chi2_from_osc(1e4) == bounds.second_moment_from_osc(1e4) == math.inf
    assert bounds.kl_from_weighted(1.0, 1e4) == math.inf
    assert bounds.tv_from_weighted(1.0, 1e4) == 1.0


def test_vacuity_example_of_the_theory():
    assert bounds.tv_from_l2(7.8) == pytest.approx(0.992, abs=1e-3)
    assert bounds.tv_from_osc(0.18) == pytest.approx(0.045, abs=1e-3)


def test_adversarial_search_exceeds_nothing_and_attains_what_is_tight():
    """A small run of benchmarks/bounds_search.py, whose full table is in docs/benchmarks."""
    records = bounds_search.search(1_500, seed=5, largest=1024)
    assert all(record.exceeded == 0 and record.seen >= 1_500 for record in records)
    claims = [claim for _, claim, _, _ in bounds_search.CHECKS]
    exact = dict(zip(claims, bounds_search.exact_ratios(records), strict=True))
    assert max(exact.values()) <= 1 + 1e-12
    for attained in ("TV ≤ tanh(h/4)", "TV ≤ tanh(ε₂/2√2T)", "|log w| ≤ h"):
        assert exact[attained] == pytest.approx(1.0, abs=1e-9)
    rng = np.random.default_rng(6)
    assert bounds_search.truncated(rng, 200, 5000)[0] == 0
    sequences = bounds_search.sequences(rng, 50)
    assert (sequences[0], sequences[2]) == (0, 0)


@pytest.mark.parametrize("vocabulary", [2, 3, 1000, 151_936])
@pytest.mark.parametrize("h", [1e-3, 0.5, 6.0])
def test_b1_is_attained_at_any_vocabulary(vocabulary, h):
    """Two groups of tokens, d = h on the one with mass 1/(1 + e^(h/2))."""
    first = vocabulary // 2
    mass = mp.mpf(1) / (1 + mp.exp(mp.mpf(h) / 2))
    lifted = mass * mp.exp(h) / (1 - mass + mass * mp.exp(h))
    assert float(lifted - mass) == pytest.approx(bounds.tv_from_osc(h), rel=1e-12)
    z = np.full(vocabulary, math.log(float((1 - mass) / (vocabulary - first))))
    z[:first] = math.log(float(mass / first))
    d = np.where(np.arange(vocabulary) < first, h, 0.0)
    found = bounds_search.measure(bounds_search.Pairs(z[None], d[None], np.ones(1)))
    assert found["tv"][0] == pytest.approx(bounds.tv_from_osc(h), rel=1e-9)


def weights(p, q):
    return [a / b for a, b in zip(p, q, strict=True)]


@settings(max_examples=60, deadline=None)
@given(pairs(), st.sampled_from([0.0, 0.1, 0.5]), st.randoms(use_true_random=False))
def test_policy_gradient_bias_is_within_r1_to_r3(case, c, rng):
    """By definition: E_p[A·s] − E_q[clip(w)·A·s] in two dimensions, |A| ≤ 3, ‖s‖ ≤ 2."""
    p, q = softmax(case[0], case[2]), softmax(case[1], case[2])
    w = weights(p, q)
    x = quantities(*case)
    clipped = [min(max(v, 1 - mp.mpf(c)), 1 + mp.mpf(c)) for v in w]
    worst = rng.random() < 0.5
    angles = [0.0 if worst else rng.uniform(0, 2 * math.pi) for _ in w]
    advantages = [3 * mp.sign(a - b) if worst else 3 * mp.mpf(rng.uniform(-1, 1))
                  for a, b in zip(w, clipped, strict=True)]  # fmt: skip
    parts = [b * (a - k) * adv for a, b, k, adv in zip(w, q, clipped, advantages, strict=True)]
    bias = mp.hypot(
        mp.fsum(v * 2 * mp.cos(t) for v, t in zip(parts, angles, strict=True)),
        mp.fsum(v * 2 * mp.sin(t) for v, t in zip(parts, angles, strict=True)),
    )
    excess = mp.fsum(b * max(abs(a - 1) - mp.mpf(c), 0) for a, b in zip(w, q, strict=True))
    below(bias, bounds.gradient_bias_clipped(float(excess), 2.0, 3.0))
    if worst:
        assert float(bias) == pytest.approx(float(6 * excess), rel=1e-9, abs=1e-15)
    if c == 0.0:
        largest = float(max(abs(v - 1) for v in w))
        below(bias, bounds.gradient_bias_from_tv(float(x["tv"]), 2.0, 3.0))
        below(bias, bounds.gradient_bias_from_weight(largest, 2.0, 3.0))
        below(bias, bounds.gradient_bias_from_osc(x["h"], 2.0, 3.0))


def test_a_clip_wider_than_the_promise_leaves_no_bias():
    assert bounds.gradient_bias_clipped(max(0.1 - 0.2, 0.0), 2.0, 3.0) == 0.0


def test_r4_is_the_example_of_the_theory():
    assert bounds.clip_room(0.2, 0.2) == pytest.approx(math.log(1.2))
    assert bounds.clip_room(0.2, 0.2) == pytest.approx(0.1823, abs=1e-4)
    assert bounds.log_ratio_from_l2(0.129) == pytest.approx(0.1823, abs=2e-4)
    assert bounds.budget_share(0.0912, 0.2, 0.2) == pytest.approx(0.5, abs=1e-3)
    assert bounds.clip_room(0.05, 0.28) == pytest.approx(-math.log(0.95))
    assert bounds.update_range(0.2, 0.2, 0.2) is None
    for bad in ((0.0, 0.2), (1.0, 0.2), (0.2, 0.0)):
        with pytest.raises(ValueError, match="clip range"):
            bounds.clip_room(*bad)


@given(st.floats(0.01, 0.9), st.floats(0.01, 3.0), st.floats(0, 0.999), st.floats(0, 1), st.floats(-1, 1))
def test_updates_within_r4_are_never_clipped(low, high, share, at, side):
    kappa = share * bounds.clip_room(low, high)
    least, most = bounds.update_range(kappa, low, high)
    log_r = least + at * (most - least) + side * kappa
    assert math.log1p(-low) - 1e-12 <= log_r <= math.log1p(high) + 1e-12


@given(st.lists(st.floats(0, 50), max_size=20))
def test_r5_is_a_product_of_hyperbolic_secants(hs):
    exact = mp.fprod(1 / mp.cosh(mp.mpf(h) / 2) ** 2 for h in hs)
    assert bounds.trajectory_ess(hs) == pytest.approx(float(exact), rel=1e-9)
    assert bounds.trajectory_log_ratio(hs) == math.fsum(hs)
