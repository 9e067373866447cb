"""Laws of the judge: nothing never passes, more drift never helps, judging again changes nothing."""

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.calibration import Calibrated
from contracts.evidence import (
    Calibration,
    Cell,
    Count,
    Draws,
    Evidence,
    Moments,
    Outcomes,
    Rewards,
    Sketch,
    Weights,
)
from contracts.judge import judge
from contracts.metrics import METRICS, Shape
from tests.contracts.judge_kit import (
    BAD,
    DECODE,
    GOOD,
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
    judged,
    only,
    service,
    soft,
)

REWARD = {"reward": {"range": [0, 2], "grader": "g"}}
BLANK = Cell(
    clause="", slice="all", phase=DECODE, draws=Draws(), moments=Moments(), nll_gap=Moments(),
    candidate=Sketch(), baseline=Sketch(), count=Count(), outcomes=Outcomes(), weights=Weights(),
    rewards=Rewards(form="paired"), calibration=Calibration(train=(), inference=()),
)  # fmt: skip
ANY = [
    clause(exceedance=0.3),
    clause(exceedance=0.3, **PER_PROMPT),
    clause(),
    clause(statistic="mean"),
    clause("tv", {"lte": 0.9}, statistic="mean"),
    clause("ece_gap", {"lte": 1.0}),
    clause("ppl_ratio", {"lte": 9.0}),
    clause("ess", {"gte": 0.1}),
    service("reward_drift", {"abs_lte": 1.9}),
    service("flip_rate", {"lte": 0.9}),
    service("latency", {"lte": 9.0}, statistic="p50"),
    service("failure_rate", {"lte": 0.9}),
    service("telemetry_age", {"lte": 9.0}),
]


@pytest.mark.parametrize("asked", ANY, ids=lambda c: c["metric"])
@pytest.mark.parametrize("stage", ["offline_ci", "shadow", "canary", "full"])
@pytest.mark.parametrize("census", [True, False])
def test_nothing_never_holds(asked, stage, census):
    document = contract(asked, stages={"offline_ci": {"census": census}}, **REWARD)
    judgement = judge(document, collector(document, stage).evidence(), contract_digest="sha256:c")
    assert only(judgement).verdict is NO_DATA
    assert judgement.converged is None
    empty = Evidence(provenance=collector(document, stage).evidence().provenance, shards=("x",), prompts=9)
    blank = empty.model_copy(update={"cells": (BLANK.model_copy(update={"clause": "C0"}),)})
    for nothing in (empty, blank):
        assert judge(document, nothing, contract_digest="sha256:c").converged is None
    unserved = collector(document, stage)
    unserved.gauge("telemetry_age", 1.0)
    for _ in range(1000):
        unserved.add_request(PLAIN, role="candidate", ok=True, latency_s=1.0)
    assert judge(document, unserved.evidence(), contract_digest="sha256:c").converged is None


@settings(max_examples=80)
@given(
    st.sampled_from([c for c in ANY if METRICS[c["metric"]].shape is Shape.DECISION]),
    st.sampled_from(["offline_ci", "shadow"]),
    st.booleans(),
    st.lists(st.lists(st.sampled_from([0.0, 0.5, math.nan]), min_size=1, max_size=3), max_size=40),
)
def test_nan_never_passes(asked, stage, census, prompts):
    document = contract(asked, stages={"offline_ci": {"census": census}}, certainty={"hard_exceedance": 0.2})
    judgement = judged(document, [*prompts, [0.0, math.nan]], stage, asked["metric"])
    assert only(judgement).verdict in {UNMEASURABLE, VIOLATED}
    assert judgement.converged is not True


ORDER = {VIOLATED: 0, INCONCLUSIVE: 1, HOLDS: 2}


@settings(max_examples=60)
@given(
    st.sampled_from(ANY[:5]),
    st.sampled_from(["offline_ci", "shadow"]),
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.integers(0, 59),
)
def test_more_drift_never_improves_a_share_or_an_extreme(asked, stage, counts, which):
    if asked.get("statistic") == "mean" and asked["metric"] == "kl":
        return  # an outlier widens a t interval, which may turn VIOLATED into INCONCLUSIVE
    document = contract(asked, certainty={"hard_exceedance": 0.2})
    rows = [[0.95] * k + [0.0] * (4 - k) for k in counts]
    worse = [list(r) for r in rows]
    worse[which % len(rows)] = [0.95] * 4
    before, after = (only(judged(document, r, stage, asked["metric"])) for r in (rows, worse))
    assert ORDER[after.verdict] <= ORDER[before.verdict]
    assert after.observed >= before.observed


@settings(max_examples=40)
@given(st.integers(0, 60), st.integers(1, 60), st.sampled_from(["offline_ci", "shadow"]))
def test_looser_clauses_hold_where_tighter_ones_do(bad, good, stage):
    prompts = [GOOD] * good + [BAD] * bad
    outcomes = [
        ORDER[only(judged(soft(exceedance=e, **PER_PROMPT), prompts, stage)).verdict]
        for e in (0.02, 0.1, 0.4, 0.9)
    ]
    assert all(a <= b for a, b in itertools.pairwise(outcomes))


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(ANY), min_size=1, max_size=5),
    st.sampled_from(["offline_ci", "shadow"]),
    st.lists(st.lists(st.sampled_from([0.0, 0.03, 0.5, math.nan]), min_size=1, max_size=4), max_size=25),
    st.lists(st.integers(0, 2), min_size=25, max_size=25),
)
def test_judging_stored_and_merged_evidence_again_gives_the_same_bytes(asked, stage, prompts, shard_of):
    """Whatever the clauses, the sharding and the order of merging."""
    document = contract(*asked, **REWARD)
    shards = [collector(document, stage, shard) for shard in "abc"]
    for i, values in enumerate(prompts):
        c, draw = shards[shard_of[i]], f"p{i:02}"
        keys = ("kl", "tv", "log_ratio")
        sides = Calibrated(np.abs(values) / 2, np.zeros(len(values)), np.abs(values), np.ones(len(values)))
        c.add_prompt(
            draw, PLAIN, DECODE, dict.fromkeys(keys, values), calibration=sides, nll=(values, values)
        )
        c.add_rewards(draw, PLAIN, 1.0, abs(values[0]))
        c.add_outcome(draw, PLAIN, True, None if math.isnan(values[0]) else values[0] < 0.1)
        c.add_request(PLAIN, role="candidate", ok=True, latency_s=abs(len(values)))
    a, b, c = (shard.evidence() for shard in shards)
    first = judge(document, a.merge(b).merge(c), contract_digest="sha256:c")
    stored = Evidence.read(c.merge(a).merge(b).canonical())
    again = judge(document, stored, contract_digest="sha256:c")
    assert first.model_dump_json() == again.model_dump_json()
    if not prompts:
        assert first.converged is None


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("per", ["decision", "prompt"])
def test_a_pair_just_beyond_its_exceedance_hardly_ever_passes_at_any_peek(correlation, per):
    """The judge's own false passes; benchmarks/decision_quality.py has the table."""
    rng = np.random.default_rng(29)
    rho, runs, horizon = 0.1, 60, 120
    document = soft(exceedance=rho, **(PER_PROMPT if per == "prompt" else {}))
    provenance = collector(document, "shadow").evidence().provenance
    passed = 0
    for _ in range(runs):
        scale = 1 / correlation - 1 if correlation else 0
        rates = rng.beta(rho * 1.0001 * scale, (1 - rho * 1.0001) * scale, horizon) if scale else rho * 1.0001
        size = 1 if per == "prompt" else 20
        counts = rng.binomial(size, rates if size > 1 else rho * 1.0001, horizon)
        for n in range(30, horizon + 1, 15):
            cell = Cell(
                clause="C0", slice="all", phase=DECODE, draws=Draws.of((int(k), size) for k in counts[:n])
            )
            evidence = Evidence(provenance=provenance, shards=("x",), prompts=n, cells=(cell,))
            if judge(document, evidence, contract_digest="sha256:c").converged:
                passed += 1
                break
    assert passed <= 0.05 * runs + 3 * math.sqrt(0.05 * 0.95 * runs)


def test_a_million_decisions_are_judged_in_under_a_second():
    """Processor time; benchmarks/judging.py has the table of every kind of clause."""
    rng = np.random.default_rng(31)
    lengths = rng.integers(300, 700, 2000)
    document = contract(*[clause(exceedance=0.02)] * 7)
    cells = tuple(
        Cell(
            clause=f"C{i}", slice="all", phase=DECODE,
            draws=Draws.of(zip(rng.binomial(lengths, 0.01).tolist(), lengths.tolist(), strict=True)),
        )
        for i in range(7)
    )  # fmt: skip
    provenance = collector(document, "shadow").evidence().provenance
    evidence = Evidence(provenance=provenance, shards=("x",), prompts=2000, cells=cells)
    started = time.process_time()
    judgement = judge(document, evidence, contract_digest="sha256:c")
    assert time.process_time() - started < 1.0
    assert judgement.converged is True
