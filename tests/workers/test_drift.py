"""Drift against mpmath, its laws, and what cannot be measured."""

from __future__ import annotations

import logging
import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.metrics import METRICS
from workers import drift as module
from workers.drift import SIDES, DriftInputError, drift, metric_names, top_ids

mpmath.mp.dps = 60
INF, NAN = math.inf, math.nan


def oracle(z_tr, z_inf, token, temperature):
    """The definitions of theory.md section 2 in 60 digits."""
    a, b = [mpmath.mpf(float(v)) for v in z_tr], [mpmath.mpf(float(v)) for v in z_inf]
    d = [x - y for x, y in zip(a, b, strict=True)]

    def softmax(z):
        top = max(z)
        e = [mpmath.exp((v - top) / temperature) for v in z]
        return [v / mpmath.fsum(e) for v in e]

    p, q = softmax(a), softmax(b)
    log_w = [mpmath.log(x) - mpmath.log(y) for x, y in zip(p, q, strict=True)]
    mean, mean_q = mpmath.fsum(d) / len(d), mpmath.fsum(w * x for w, x in zip(q, d, strict=True))
    return {
        "logit_l2": mpmath.sqrt(mpmath.fsum(x * x for x in d)),
        "logit_l2_centered": mpmath.sqrt(mpmath.fsum((x - mean) ** 2 for x in d)),
        "logit_linf": max(abs(x) for x in d),
        "logit_osc": max(d) - min(d),
        "logit_weighted": mpmath.sqrt(mpmath.fsum(w * (x - mean_q) ** 2 for w, x in zip(q, d, strict=True))),
        "log_ratio": log_w[token],
        "abs_log_ratio": abs(log_w[token]),
        "kl": mpmath.fsum(x * w for x, w in zip(p, log_w, strict=True)),
        "kl_reverse": -mpmath.fsum(x * w for x, w in zip(q, log_w, strict=True)),
        "tv": mpmath.fsum(abs(x - y) for x, y in zip(p, q, strict=True)) / 2,
        "confidence_train": max(p),
        "confidence_inference": max(q),
        "nll_train": -mpmath.log(p[token]),
        "nll_inference": -mpmath.log(q[token]),
    }


def agrees(z_tr, z_inf, temperature=1.0, floor=1e-14):
    tokens = torch.arange(len(z_tr)) % z_tr.shape[1]
    found = drift(z_tr, z_inf, tokens, temperature=temperature, vocab_size=z_tr.shape[1])
    for row in range(len(z_tr)):
        for name, value in oracle(z_tr[row], z_inf[row], int(tokens[row]), temperature).items():
            assert float(found[name][row]) == pytest.approx(float(value), rel=1e-6, abs=floor), (name, row)


def noisy(scale, *, v=300, n=3, spread=5.0, seed=0):
    source = torch.Generator().manual_seed(seed)
    z = torch.randn(n, v, generator=source) * spread
    return z, z + torch.randn(n, v, generator=source) * scale


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.05, 1.0, 30.0])
def test_agrees_with_the_definitions(scale, temperature):
    agrees(*noisy(scale), temperature)


def test_bfloat16_logits_are_read_as_they_are():
    z, w = noisy(0.05)
    agrees(z, w.bfloat16())


@pytest.mark.parametrize("offset", [1e3, -3e4])
def test_a_large_common_offset_costs_nothing(offset):
    z, w = noisy(0.5)
    agrees(z + offset, w + offset, floor=1e-11)


def test_an_offset_of_one_side_moves_only_the_uncentred_metrics():
    z, w = noisy(0.25)
    z, w = (z * 64).round() / 64, (w * 64).round() / 64  # exact after adding 1024
    tokens = torch.tensor([1, 2, 3])
    before = drift(z, w, tokens, temperature=1.0, vocab_size=300, ks=(5,))
    after = drift(z + 1024, w, tokens, temperature=1.0, vocab_size=300, ks=(5,))
    for name in set(before) - {"logit_l2", "logit_linf"}:
        torch.testing.assert_close(after[name], before[name], rtol=1e-9, atol=1e-12)
    assert (after["logit_linf"] > 1000).all()


def test_near_equal_distributions_keep_their_digits():
    # One ulp on one unlikely token: KL of about 1e-17, which naive sums return as noise.
    z = torch.zeros(1, 300)
    z[0, 7] = 12.0
    w = z.clone()
    w[0, 9] = 1e-3
    tokens = torch.tensor([9])
    found = drift(z, w, tokens, temperature=1.0, vocab_size=300)
    exact = oracle(z[0], w[0], 9, 1.0)
    for name in ("kl", "kl_reverse", "tv", "log_ratio", "logit_weighted"):
        assert float(found[name][0]) == pytest.approx(float(exact[name]), rel=1e-6), name


def test_one_hot_and_opposite_one_hot():
    z, w = torch.zeros(2, 300), torch.zeros(2, 300)
    z[:, 0], w[0, 0], w[1, 5] = 60.0, 61.0, 60.0
    agrees(z, w)


def test_a_probability_that_underflows_on_one_side_overflows_nothing():
    z, w = torch.zeros(1, 4), torch.zeros(1, 4)
    z[0, 0], w[0, 1] = 2000.0, 2000.0
    found = drift(z, w, torch.tensor([1]), temperature=1.0, vocab_size=4)
    assert float(found["kl"][0]) == pytest.approx(2000.0)
    assert float(found["log_ratio"][0]) == pytest.approx(-2000.0)
    assert float(found["tv"][0]) == pytest.approx(1.0)
    assert float(found["unmeasurable"][0]) == 0.0


def test_a_vocabulary_of_150_thousand():
    z, w = noisy(0.02, v=151_936, n=1)
    found = drift(z, w, torch.tensor([3]), temperature=1.0, vocab_size=z.shape[1], fuse=False)
    d = z.double() - w.double()
    p, q = z.double().softmax(-1), w.double().softmax(-1)
    assert float(found["logit_l2"]) == pytest.approx(float(d.norm()), rel=1e-12)
    assert float(found["tv"]) == pytest.approx(float((p - q).abs().sum() / 2), rel=1e-6)
    assert float(found["kl"]) == pytest.approx(float((p * (p.log() - q.log())).sum()), rel=1e-6)


def test_equal_logits_are_exactly_no_drift():
    z, _ = noisy(0.0)
    found = drift(z, z.clone(), torch.tensor([0, 1, 2]), temperature=0.7, vocab_size=300, ks=(1, 10))
    assert all((found[name] == 0).all() for name in metric_names(()))
    assert (found["topk_agreement@10"] == 1).all()


logits = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=12)


@given(st.data(), logits, st.sampled_from([0.5, 1.0, 1.7]))
def test_the_chain_of_bounds_holds(data, z, temperature):
    w = data.draw(st.lists(st.floats(-20, 20, width=32), min_size=len(z), max_size=len(z)))
    token = data.draw(st.integers(0, len(z) - 1))
    found = drift(
        torch.tensor([z]),
        torch.tensor([w]),
        torch.tensor([token]),
        temperature=temperature,
        vocab_size=len(z),
    )
    found = {name: float(values[0]) for name, values in found.items()}
    h, slack = found["logit_osc"] / temperature, 1e-9
    assert found["tv"] <= math.tanh(h / 4) + slack  # B1
    assert found["tv"] <= math.sqrt(max(found["kl"], 0) / 2) + slack  # B2
    assert found["kl"] <= h * h / 8 + slack
    assert found["abs_log_ratio"] <= h + slack  # B3
    assert found["logit_osc"] <= 2 * found["logit_linf"] + slack
    assert found["kl"] >= -1e-15
    assert found["kl_reverse"] >= -1e-15
    for name in metric_names(()):
        assert METRICS[name].low - 1e-15 <= found[name] <= METRICS[name].high + 1e-15


@given(st.data(), logits)
def test_swapping_the_kernels_swaps_the_divergences(data, z):
    w = data.draw(st.lists(st.floats(-20, 20, width=32), min_size=len(z), max_size=len(z)))
    a, b, y = torch.tensor([z]), torch.tensor([w]), torch.tensor([0])
    there = drift(a, b, y, temperature=1.0, vocab_size=len(z))
    back = drift(b, a, y, temperature=1.0, vocab_size=len(z))
    for one, other in (
        ("kl", "kl_reverse"),
        ("tv", "tv"),
        ("abs_log_ratio", "abs_log_ratio"),
        ("logit_osc", "logit_osc"),
    ):
        torch.testing.assert_close(there[one], back[other], rtol=1e-8, atol=1e-12)


@given(st.integers(1, 12), st.integers(0, 10**6), st.sampled_from([40, 700, 5000]), st.booleans())
def test_top_ids_are_those_of_a_stable_sort(k, seed, v, coarse):
    z = torch.randn(3, v, generator=torch.Generator().manual_seed(seed))
    z = z.bfloat16().round() if coarse else z  # rounding makes ties at every place
    expected = z.float().sort(descending=True, stable=True).indices[:, :k]
    assert torch.equal(top_ids(z, k), expected)


def test_negative_zero_ties_with_zero():
    assert top_ids(torch.tensor([[-1.0, -0.0, 0.0, -2.0]]), 2).tolist() == [[1, 2]]


def test_topk_flip_and_hits():
    z = torch.tensor([[5.0, 4.0, 3.0, 0.0], [5.0, 4.0, 3.0, 0.0]])
    w = torch.tensor([[5.0, 0.0, 3.0, 4.0], [4.0, 5.0, 3.0, 0.0]])
    found = drift(z, w, torch.tensor([0, 1]), temperature=1.0, vocab_size=4, ks=(2, 3, 9))
    assert found["topk_agreement@2"].tolist() == [0.5, 1.0]
    assert found["topk_agreement@3"].tolist() == [pytest.approx(2 / 3), 1.0]
    assert found["topk_agreement@9"].tolist() == [1.0, 1.0]
    assert found["top1_flip"].tolist() == [0.0, 1.0]
    assert found["hit_train"].tolist() == [1.0, 0.0]
    assert found["hit_inference"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("side", ["train", "inference"])
def test_a_logit_that_is_no_number_spoils_its_decision_and_no_other(bad, side):
    z, w = noisy(0.1)
    clean = drift(z, w, torch.tensor([0, 1, 2]), temperature=1.0, vocab_size=300, ks=(10,))
    (z if side == "train" else w)[1, 40] = bad
    found = drift(z, w, torch.tensor([0, 1, 2]), temperature=1.0, vocab_size=300, ks=(10,))
    assert found["unmeasurable"].tolist() == [0.0, 1.0, 0.0]
    for name in set(found) - {"unmeasurable"}:
        assert math.isnan(found[name][1]), name
        assert torch.equal(found[name][[0, 2]], clean[name][[0, 2]]), name


def test_ids_masked_on_both_sides_are_as_if_they_did_not_exist():
    z, w = noisy(0.3)
    without = drift(z[:, 50:], w[:, 50:], torch.tensor([0, 1, 2]), temperature=0.8, vocab_size=250, ks=(10,))
    z[:, :50] = w[:, :50] = -INF
    found = drift(z, w, torch.tensor([50, 51, 52]), temperature=0.8, vocab_size=300, ks=(10,))
    for name in found:
        torch.testing.assert_close(found[name], without[name], rtol=1e-12, atol=1e-15)


def test_a_realised_token_that_is_masked_is_unmeasurable():
    z, w = noisy(0.3, n=1)
    z[0, 4] = w[0, 4] = -INF
    assert drift(z, w, torch.tensor([4]), temperature=1.0, vocab_size=300)["unmeasurable"].tolist() == [1.0]


def test_nothing_left_after_masking_is_unmeasurable():
    z = torch.full((1, 5), -INF)
    assert drift(z, z, torch.tensor([0]), temperature=1.0, vocab_size=5)["unmeasurable"].tolist() == [1.0]


def test_padding_of_the_vocabulary_is_cut():
    z, w = noisy(0.1)
    padded_z = torch.cat((z, torch.full((3, 20), 1e4)), -1)
    padded_w = torch.cat((w, torch.full((3, 4), NAN)), -1)
    y = torch.tensor([0, 1, 2])
    found = drift(padded_z, padded_w, y, temperature=1.0, vocab_size=300)
    clean = drift(z, w, y, temperature=1.0, vocab_size=300)
    assert all(torch.equal(found[name], clean[name]) for name in clean)


def test_no_decisions_give_empty_columns():
    found = drift(
        torch.zeros(0, 9), torch.zeros(0, 9), torch.zeros(0, dtype=torch.long), temperature=1.0, vocab_size=9
    )
    assert set(found) == {*metric_names(()), *SIDES}
    assert all(len(values) == 0 for values in found.values())


@pytest.mark.parametrize(
    ("rows", "tokens", "temperature", "vocabulary", "message"),
    [
        (2, [0], 1.0, 9, "one row a decision"),
        (1, [9], 1.0, 9, "row 0: token 9"),
        (1, [-1], 1.0, 9, "row 0: token -1"),
        (1, [0], 0.0, 9, "temperature"),
        (1, [0], NAN, 9, "temperature"),
        (1, [0], 1.0, 10, "vocabulary of 10"),
    ],
)
def test_input_that_does_not_fit_is_refused(rows, tokens, temperature, vocabulary, message):
    z = torch.zeros(rows, 9)
    with pytest.raises(DriftInputError, match=message):
        drift(z, z, torch.tensor(tokens), temperature=temperature, vocab_size=vocabulary)


def test_fused_and_eager_give_the_same_numbers():
    z, w = noisy(0.02, v=4500, n=7)
    z[2, 9], w[3, :40], z[3, :40] = NAN, -INF, -INF
    y = torch.arange(7) * 100
    fused = drift(z, w.bfloat16(), y, temperature=0.9, vocab_size=4500, ks=(1, 10))
    eager = drift(z, w.bfloat16(), y, temperature=0.9, vocab_size=4500, ks=(1, 10), fuse=False)
    for name in eager:
        torch.testing.assert_close(fused[name], eager[name], rtol=1e-9, atol=1e-14, equal_nan=True)


def test_without_a_compiler_it_is_eager_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    with caplog.at_level(logging.WARNING):
        assert module.compiled.__wrapped__() is module._eager
    assert "no C++ compiler" in caplog.text


def test_a_compiler_that_fails_is_not_asked_twice(monkeypatch, caplog):
    asked = []

    def broken(*_):
        asked.append(1)
        raise RuntimeError("collect2: ld returned 1\nmore")

    monkeypatch.setattr(module.torch, "compile", lambda *_, **__: broken)
    reductions = module.compiled.__wrapped__()
    z, w = noisy(0.1)
    for _ in range(2):
        found = reductions(z, w, torch.tensor([0, 1, 2]), 1.0)
    assert asked == [1]
    assert "collect2: ld returned 1" in caplog.text
    assert torch.equal(found[0], module._eager(z, w, torch.tensor([0, 1, 2]), 1.0)[0])
