"""The certificate against the whole distributions, which only the tests know."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.bounds import truncated_tv
from workers.certificates import EXACT, certify, ends_names
from workers.drift import SIDES, DriftInputError, drift
from workers.kernels.openai_answers import REPORTED, Row

KS = (1, 3, 5)


def served(z_inf, tokens, k, *, dtype=np.float32):
    """What a server says of logits [n, V]: float32 log-probs of the K most likely and the realised token."""
    rows = []
    for z, token in zip(np.asarray(z_inf, dtype=dtype), tokens, strict=True):
        log_q = z - (z.max() + np.log(np.exp(z - z.max()).sum(dtype=dtype)))
        best = sorted(range(len(z)), key=lambda i: (-log_q[i], i))[:k]
        rows.append(Row({i: min(float(log_q[i]), 0.0) for i in {*best, token}}, len(best)))
    return rows


def pair(seed, noise, vocabulary=40, n=6, scale=3.0):
    rng = np.random.default_rng(seed)
    z = (rng.normal(size=(n, vocabulary)) * scale).astype(np.float32)
    other = (z + rng.normal(size=z.shape) * noise + rng.normal()).astype(np.float32)
    return torch.tensor(z), torch.tensor(other), rng.integers(0, vocabulary, n).tolist()


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1e-6, 1e-4, 1e-2, 0.3, 5.0]), st.integers(1, 40),
    st.floats(0.01, 12.0),
)  # fmt: skip
def test_the_truth_lies_between_the_ends(seed, noise, k, scale):
    z_tr, z_inf, tokens = pair(seed, noise, scale=scale)
    truth = drift(z_tr, z_inf, torch.tensor(tokens), temperature=1.0, vocab_size=40, ks=KS)
    found = certify(z_tr, served(z_inf, tokens, k), tokens, vocab_size=40, ks=KS)
    assert set(found.values) == {*EXACT, *ends_names(KS)}
    assert set(found.upper) == set(ends_names(KS))
    assert set(found.sides) == set(SIDES)
    assert not found.values["unmeasurable"].any()
    for name in ends_names(KS):
        exact = truth[name].numpy()
        assert (found.values[name] <= exact + 1e-12).all(), name
        assert (found.upper[name] >= exact - 1e-12).all(), name
    for name in ("log_ratio", "abs_log_ratio", "nll_inference", "confidence_inference", "nll_train"):
        ours = (found.values | found.sides)[name]
        np.testing.assert_allclose(ours, truth[name].numpy(), atol=2 * REPORTED)
    for name in ("top1_flip", "hit_train", "hit_inference"):
        assert ((found.values | found.sides)[name] == truth[name].numpy()).all()
    for kk in [one for one in KS if one <= k]:
        assert (found.values[f"topk_agreement@{kk}"] == found.upper[f"topk_agreement@{kk}"]).all()


def test_ends_meet_when_everything_is_known():
    z_tr, z_inf, tokens = pair(3, 0.5)
    truth = drift(z_tr, z_inf, torch.tensor(tokens), temperature=1.0, vocab_size=40)
    found = certify(z_tr, served(z_inf, tokens, 40), tokens, vocab_size=40)
    np.testing.assert_allclose(found.values["tv"], truth["tv"], atol=2 * REPORTED)
    np.testing.assert_allclose(found.upper["tv"], truth["tv"], atol=2 * REPORTED)
    np.testing.assert_allclose(found.values["kl"], truth["kl"], atol=5 * REPORTED)
    np.testing.assert_allclose(found.values["kl_reverse"], truth["kl_reverse"], atol=9 * REPORTED)


def test_ends_against_multiprecision():
    """tv_K and the coarsened divergences, to the slack they are widened by."""
    z_tr, z_inf, tokens = pair(5, 0.4)
    rows = served(z_inf, tokens, 7)
    found = certify(z_tr, rows, tokens, vocab_size=40)
    with mpmath.workdps(50):
        for at, (z, row) in enumerate(zip(z_tr.tolist(), rows, strict=True)):
            total = mpmath.fsum(mpmath.exp(v) for v in z)
            p = {i: mpmath.exp(z[i]) / total for i in row.logprobs}
            q = {i: mpmath.exp(v) for i, v in row.logprobs.items()}
            tail_p, tail_q = 1 - mpmath.fsum(p.values()), 1 - mpmath.fsum(q.values())
            tv = (mpmath.fsum(abs(p[i] - q[i]) for i in p) + abs(tail_p - tail_q)) / 2
            kl = mpmath.fsum(p[i] * mpmath.log(p[i] / q[i]) for i in p) + tail_p * mpmath.log(tail_p / tail_q)
            assert found.values["tv"][at] == pytest.approx(float(tv) - math.expm1(REPORTED), abs=1e-9)
            high = float(tv + min(tail_p, tail_q)) + math.expm1(REPORTED)
            assert found.upper["tv"][at] == pytest.approx(high, abs=1e-9)
            assert float(kl) - 5 * REPORTED <= found.values["kl"][at] <= float(kl)
            ours = truncated_tv([float(v) for v in p.values()], [float(v) for v in q.values()])
            assert (float(tv), high - math.expm1(REPORTED)) == pytest.approx(ours, abs=1e-9)


def test_both_ends_are_attained():
    """Tails that are disjoint give the upper end, equal ones the lower."""
    half = math.log(0.5)
    row = Row({0: half, 1: math.log(0.3)}, 2)
    z = torch.tensor([[half, math.log(0.3), math.log(0.2), -60.0]], dtype=torch.float64)
    same, apart = (
        torch.tensor([x], dtype=torch.float64)
        for x in (z[0].tolist(), [*z[0, :2].tolist(), -60.0, math.log(0.2)])
    )
    found = certify(z, [row], [0], vocab_size=4)
    low = drift(z, same, torch.tensor([0]), temperature=1.0, vocab_size=4)["tv"]
    high = drift(z, apart, torch.tensor([0]), temperature=1.0, vocab_size=4)["tv"]
    assert found.values["tv"][0] == pytest.approx(float(low), abs=2 * REPORTED)
    assert found.upper["tv"][0] == pytest.approx(float(high), abs=2 * REPORTED)
    assert float(high) == pytest.approx(0.2)


@pytest.mark.parametrize("fault", ["empty", "nan", "inf", "masked", "mass", "realised", "top"])
def test_what_cannot_be_measured_is_alone_in_it(fault):
    z_tr, z_inf, tokens = pair(7, 0.1)
    rows = served(z_inf, tokens, 5)
    good = certify(z_tr, rows, tokens, vocab_size=40, ks=KS)
    if fault in ("nan", "inf", "masked"):
        z_tr[2, 9] = {"nan": math.nan, "inf": math.inf, "masked": -math.inf}[fault]
    else:
        known = rows[2].logprobs
        rows[2] = {
            "empty": Row({}, 0),
            "mass": Row(known | {tokens[2]: 0.0, (tokens[2] + 1) % 40: -1.0}, 5),
            "realised": Row({i: v for i, v in known.items() if i != tokens[2]}, 4),
            "top": Row(known, 0),
        }[fault]
    found = certify(z_tr, rows, tokens, vocab_size=40, ks=KS)
    assert found.values["unmeasurable"].tolist() == [0, 0, 1, 0, 0, 0]
    for mine, theirs in ((found.values, good.values), (found.upper, good.upper), (found.sides, good.sides)):
        for name in mine:
            if name != "unmeasurable":
                assert math.isnan(mine[name][2]), name
            others = np.delete(mine[name], 2), np.delete(theirs[name], 2)
            np.testing.assert_array_equal(*others)


def test_padding_of_the_vocabulary_is_cut():
    z_tr, z_inf, tokens = pair(11, 0.2)
    padded = torch.cat((z_tr, torch.full((6, 8), 50.0)), -1)
    rows = served(z_inf, tokens, 5)
    a, b = (certify(z, rows, tokens, vocab_size=40, ks=KS) for z in (z_tr, padded))
    for name in a.values:
        np.testing.assert_array_equal(a.values[name], b.values[name])


def test_rows_beyond_a_block_and_of_unequal_widths():
    z_tr, z_inf, tokens = pair(13, 0.2, n=70)
    rows = served(z_inf, tokens, 3)
    rows[40] = served(z_inf, tokens, 9)[40]
    found = certify(z_tr, rows, tokens, vocab_size=40)
    one = certify(z_tr[40:41], rows[40:41], tokens[40:41], vocab_size=40)
    assert found.upper["tv"][40] == pytest.approx(one.upper["tv"][0], abs=1e-15)
    assert len(found.values["tv"]) == 70
    assert len(certify(z_tr[:0], [], [], vocab_size=40).values["tv"]) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens": [0]}, "1 tokens"),
        ({"vocab_size": 41}, "vocabulary of 41"),
        ({"vocab_size": 5, "tokens": [0] * 5 + [39]}, "outside the vocabulary of 5"),
    ],
)
def test_what_does_not_fit_is_refused(change, words):
    z_tr, z_inf, tokens = pair(17, 0.2)
    given = {"tokens": tokens, "vocab_size": 40} | change
    with pytest.raises(DriftInputError, match=words):
        certify(z_tr, served(z_inf, tokens, 3), given["tokens"], vocab_size=given["vocab_size"])
