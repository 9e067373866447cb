"""Values between two ends: never a HOLDS where all is known to be VIOLATED, nor the other way round."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.bounds import truncated_tv
from contracts.collect import BadValues
from contracts.evidence import Draws, Ends, Evidence
from contracts.judge import judge
from tests.contracts.judge_kit import (
    DECODE,
    HOLDS,
    INCONCLUSIVE,
    NO_DATA,
    PER_PROMPT,
    PLAIN,
    UNMEASURABLE,
    VIOLATED,
    clause,
    collector,
    contract,
    only,
)

LIMIT = {"lte": 0.2}
TV = [
    clause("tv", LIMIT, exceedance=0.2),
    clause("tv", LIMIT, exceedance=0.2, **PER_PROMPT),
    clause("tv", LIMIT, exceedance=0.3, per="prompt", aggregate="mean"),
    clause("tv", LIMIT),
    clause("tv", {"abs_lte": 0.2}),
    clause("tv", LIMIT, statistic="mean"),
    clause("tv", {"gte": 0.05}, statistic="mean"),
    clause("tv", {"gte": 0.05}),
    clause("tv", {"gte": 0.05}, exceedance=0.3),
]
EASY = {"hard_exceedance": 0.3, "alpha": 0.2}


def judged(document, prompts, stage="offline_ci", metric="tv"):
    """Of prompts of (lower ends, upper ends), or of exact values."""
    c = collector(document, stage)
    for i, values in enumerate(prompts):
        low, high = values if isinstance(values, tuple) else (values, None)
        c.add_prompt(f"p{i:04}", PLAIN, DECODE, {metric: low}, upper=None if high is None else {metric: high})
    return judge(document, c.evidence(), contract_digest="sha256:c")


def pair(rng, vocabulary, noise, known):
    """True TV of a random pair, and the ends the `known` most likely tokens of q give."""
    z = rng.normal(size=vocabulary) * 2
    p, q = (np.exp(x) / np.exp(x).sum() for x in (z, z + rng.normal(size=vocabulary) * noise))
    s = np.argsort(-q)[:known]
    return 0.5 * float(np.abs(p - q).sum()), truncated_tv(np.minimum(p[s], 1.0), np.minimum(q[s], 1.0))


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(TV),
    st.sampled_from(["offline_ci", "shadow"]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.integers(1, 30),
    st.floats(0.0, 3.0),
    st.integers(1, 9),
)
def test_a_verdict_from_the_ends_is_one_from_the_truth_or_undecided(
    asked, stage, census, seed, prompts, noise, known
):
    rng = np.random.default_rng(seed)
    document = contract(asked, certainty=EASY, stages={"offline_ci": {"census": census}})
    exact, ends = [], []
    for _ in range(prompts):
        rows = [pair(rng, 9, noise, known) for _ in range(rng.integers(1, 4))]
        assert all(low - 1e-12 <= tv <= high + 1e-12 for tv, (low, high) in rows)
        exact.append([tv for tv, _ in rows])
        ends.append(([low for _, (low, _) in rows], [high for _, (_, high) in rows]))
    truth, seen = only(judged(document, exact, stage)), only(judged(document, ends, stage))
    assert seen.verdict in {truth.verdict, INCONCLUSIVE}
    if known == 9:
        assert seen.verdict is truth.verdict
    assert seen.n == truth.n
    if seen.verdict is HOLDS and seen.observed is not None and seen.interval.high is not None:
        assert truth.interval.high is None or seen.interval.high >= truth.interval.high - 1e-9


@pytest.mark.parametrize("asked", [c for c in TV if "gte" not in c["limit"]], ids=str)
@pytest.mark.parametrize("census", [True, False])
def test_the_upper_end_passes_and_the_lower_end_fails(asked, census):
    document = contract(asked, certainty=EASY, stages={"offline_ci": {"census": census}})
    many = 200
    assert only(judged(document, [([0.01], [0.19])] * many)).verdict is HOLDS
    assert only(judged(document, [([0.21], [0.9])] * many)).verdict is VIOLATED
    between = only(judged(document, [([0.19], [0.21])] * many))
    assert between.verdict is INCONCLUSIVE
    assert "truncated log-probabilities" in between.reason
    assert between.needed is None  # no number of prompts brings the ends together
    assert judged(document, [([0.19], [0.21])] * many).converged is None


@pytest.mark.parametrize("stage", ["offline_ci", "shadow"])
@pytest.mark.parametrize(
    "asked",
    [clause("kl"), clause("kl", statistic="mean"), clause("kl", exceedance=0.2),
     clause("kl", exceedance=0.2, per="prompt")],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("census", [True, False])
def test_without_an_upper_end_a_clause_can_fail_and_never_hold(asked, stage, census):
    document = contract(asked, certainty=EASY, stages={"offline_ci": {"census": census}})
    small = only(judged(document, [([0.0], [math.inf])] * 200, stage, "kl"))
    assert small.verdict is INCONCLUSIVE
    assert small.observed == 0.0
    assert "no upper ends" in small.reason
    assert small.interval.high is None or "exceedance" in asked
    large = only(judged(document, [([0.5], [math.inf])] * 200, stage, "kl"))
    # One upper end at infinity among finite ones leaves their mean as unknown.
    mixed = [([0.0], [0.01])] * 199 + [([0.0], [math.inf])]
    if asked.get("statistic") == "mean":
        assert large.verdict is VIOLATED
        assert only(judged(document, mixed, stage, "kl")).verdict is INCONCLUSIVE
    else:
        assert large.verdict is VIOLATED
    least = contract(
        asked | {"limit": {"gte": 0.2}}, certainty=EASY, stages={"offline_ci": {"census": census}}
    )
    assert only(judged(least, [([0.5], [math.inf])] * 200, stage, "kl")).verdict is HOLDS
    assert only(judged(least, [([0.1], [math.inf])] * 200, stage, "kl")).verdict is INCONCLUSIVE


def test_what_truncation_hides_says_so():
    document = contract(clause("logit_osc", {"lte": 1.0}), clause("tv", LIMIT))
    found = judged(document, [([0.1], [0.15])])
    assert [v.verdict for v in found.verdicts] == [NO_DATA, INCONCLUSIVE]
    assert found.verdicts[0].reason.endswith("; truncated log-probabilities do not give it")


def test_unmeasurable_decisions_are_counted_once():
    document = contract(clause("tv", LIMIT))
    verdict = only(judged(document, [([0.1, math.nan], [0.15, math.nan])] * 3))
    assert verdict.verdict is UNMEASURABLE
    assert verdict.reason.startswith("3 decisions could not be measured")


ends = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.3, math.nan]), st.sampled_from([0.0, 0.2, math.inf])),
    min_size=1, max_size=3,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(ends, st.integers(0, 2)), max_size=12),
    st.booleans(),
    st.sampled_from([clause("kl"), clause("kl", exceedance=0.1), clause("kl", statistic="mean")]),
)
def test_merging_keeps_its_laws(prompts, plain_shard, asked):
    """Shards of exact values among them: those are their own upper ends."""
    document = contract(asked)
    shards = [collector(document, shard=name) for name in "abc"]
    whole = collector(document, shard="whole")
    for i, (rows, which) in enumerate(prompts):
        low = [a for a, _ in rows]
        high = [a + b for a, b in rows]
        if plain_shard and which == 0:
            shards[0].add_prompt(f"p{i}", PLAIN, DECODE, {"kl": low})
            whole.add_prompt(f"p{i}", PLAIN, DECODE, {"kl": low}, upper={"kl": low})
        else:
            for c in (shards[which], whole):
                c.add_prompt(f"p{i}", PLAIN, DECODE, {"kl": low}, upper={"kl": high})
    parts = [shard.evidence() for shard in shards]
    forms = {
        a.merge(b).merge(c).canonical() for a, b, c in itertools.permutations(parts)
    } | {parts[0].merge(parts[1].merge(parts[2])).canonical()}  # fmt: skip
    (form,) = forms
    merged = Evidence.read(form)
    assert merged.canonical() == form
    found, together = merged.cell("C0", "all", DECODE), whole.evidence().cell("C0", "all", DECODE)
    if together is not None:
        assert found.highest == together.highest
        assert found.model_copy(update={"upper": None}) == together.model_copy(update={"upper": None})


def test_exact_evidence_does_not_mention_ends():
    document = contract(clause("tv", LIMIT))
    c = collector(document)
    c.add_prompt("p", PLAIN, DECODE, {"tv": [0.1]})
    assert b"upper" not in c.evidence().canonical()
    assert c.evidence().cells[0].highest == Ends(
        draws=Draws.of([(0, 1)]),
        moments=c.evidence().cells[0].moments,
        extreme=c.evidence().cells[0].extreme,
    )


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        ({"tv": [0.5]}, {"tv": [0.4]}, "between 0.5 and 0.4 at decision 7"),
        ({"tv": [0.5]}, {"tv": [1.5]}, "between 0.5 and 1.5"),
        ({"tv": [0.5]}, {"tv": [math.nan]}, "between 0.5 and nan"),
        ({"tv": [0.5]}, {"tv": [0.5, 0.6]}, "without lower ones"),
        ({"tv": [0.5]}, {"kl": [0.5]}, "upper ends of kl without lower ones"),
        ({"log_ratio": [0.5]}, {"log_ratio": [0.6]}, "log_ratio has a sign"),
    ],
)
def test_ends_that_cannot_be_are_refused(low, high, words):
    c = collector(contract(clause("tv", LIMIT)))
    with pytest.raises(BadValues, match=words):
        c.add_prompt("p", PLAIN, DECODE, low, upper=high, offset=7)
    assert c.evidence().prompts == 0


def test_ends_come_with_every_draw_or_none():
    c = collector(contract(clause("tv", LIMIT)))
    c.add_prompt("a", PLAIN, DECODE, {"tv": [0.1]}, upper={"tv": [0.2]})
    with pytest.raises(BadValues, match=r"upper ends of \['tv'\] come with some draws only"):
        c.add_prompt("b", PLAIN, DECODE, {"tv": [0.1]})


@pytest.mark.parametrize(
    ("asked", "low", "high", "expected"),
    [
        (clause("tv", LIMIT), [0.1, 0.1], [0.15, 0.25], True),
        (clause("tv", LIMIT), [0.3, 0.1], [0.4, 0.15], False),
        (clause("tv", LIMIT, exceedance=0.1), [0.1], [0.25], True),
        (clause("tv", LIMIT, statistic="mean"), [0.0, 0.15], [0.1, 0.25], False),
        (clause("tv", LIMIT, statistic="mean"), [0.0, 0.15], [0.3, 0.25], True),
        (clause("tv", LIMIT) | {"phase": "prefill"}, [0.1], [0.25], False),
        (clause("tv", LIMIT, slices=["long"]), [0.1], [0.25], False),
        (clause("tv", LIMIT), [math.nan], [math.nan], False),
    ],
)
def test_which_prompts_narrower_ends_could_decide(asked, low, high, expected):
    c = collector(contract(asked))
    assert c.straddles("p", PLAIN, DECODE, {"tv": low}, {"tv": high}) is expected
    assert c.evidence().prompts == 0


def test_infinite_ends_do_not_narrow():
    c = collector(contract(clause("kl")))
    assert not c.straddles("p", PLAIN, DECODE, {"kl": [0.0]}, {"kl": [math.inf]})
