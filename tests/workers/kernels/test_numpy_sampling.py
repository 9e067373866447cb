"""The sampler without torch against the one with it: the same truncation and log-probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.stats import chisquare

from contracts.model import Sampling
from workers.kernels import sampling as with_torch
from workers.kernels.numpy_sampling import generator, kept, sample

SAMPLINGS = st.builds(
    Sampling,
    temperature=st.floats(0.25, 3.0),
    top_p=st.sampled_from([0.1, 0.5, 0.9, 1.0]),
    top_k=st.integers(0, 12),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
)
# Multiples of 1/4, far enough apart that float32 and float64 sums reach top_p at the same token.
LOGITS = arrays.arrays(np.float32, st.integers(1, 16), elements=st.integers(-40, 40).map(lambda i: i / 4))


@given(LOGITS, st.integers(0, 12), st.sampled_from([0.0, 0.05, 0.5]))
def test_truncation_keeps_the_same_tokens(logits, top_k, min_p):
    chosen = Sampling(top_k=top_k, min_p=min_p)
    assert (
        kept(logits.astype(np.float64), chosen).tolist()
        == with_torch.kept(torch.tensor(logits), chosen).tolist()
    )


@given(LOGITS, SAMPLINGS)
def test_a_token_is_kept_and_its_logprob_is_over_the_whole_vocabulary(logits, chosen):
    token, logprob = sample(logits, chosen, generator(3))
    scores = logits.astype(np.float64) / chosen.temperature
    keep = kept(scores, chosen)
    assert keep[token]
    assert keep[scores.argmax()]
    expected = torch.tensor(scores).log_softmax(-1)[token]
    assert logprob == pytest.approx(float(expected), abs=1e-12)


def test_top_p_keeps_the_token_that_reaches_it():
    scores = np.log(np.array([0.5, 0.3, 0.15, 0.05]))
    assert kept(scores, Sampling(top_p=0.7)).tolist() == [True, True, False, False]
    assert kept(scores, Sampling(top_p=0.85)).tolist() == [True, True, True, False]


def test_frequencies_are_the_probabilities():
    logits, source = np.array([0.0, 1.0, 2.0, -np.inf], dtype=np.float32), generator(11)
    drawn = np.bincount(
        [sample(logits, Sampling(temperature=1.5), source)[0] for _ in range(4000)], minlength=4
    )
    p = np.exp(logits[:3].astype(np.float64) / 1.5)
    assert drawn[3] == 0
    assert chisquare(drawn[:3], 4000 * p / p.sum()).pvalue > 1e-4


def test_a_seed_gives_its_tokens():
    logits = np.zeros(50, dtype=np.float32)
    draws = [
        [sample(logits, Sampling(), source)[0] for _ in range(5)] for source in map(generator, (1, 1, 2, -1))
    ]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2] != draws[3]


@pytest.mark.parametrize(
    ("logits", "token"),
    [
        ([1.0, float("nan"), 3.0], 2),
        ([1.0, float("inf"), 0.0], 0),
        ([-float("inf")] * 3, 0),
    ],
)
def test_logits_that_are_no_distribution_give_a_token_and_nan(logits, token):
    found, logprob = sample(np.array(logits, dtype=np.float32), Sampling(), generator(0))
    assert found == token
    assert math.isnan(logprob)
    assert found == with_torch.sample(torch.tensor(logits), Sampling(), with_torch.generator(0))[0]
