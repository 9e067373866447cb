"""Per-decision values become the accumulators of docs/architecture.md's table."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.calibration import Calibrated
from contracts.collect import BadValues, Collector
from contracts.evidence import Position, Provenance
from contracts.model import Contract, Phase
from contracts.slices import Attributes

NAN = math.nan
PREFILL, DECODE = Phase.PREFILL, Phase.DECODE
PLAIN = Attributes(prompt_tokens=10)
PROVENANCE = Provenance(
    contract="sha256:c", checkpoint="k", train_build="t", inference_build="i", suite="s", stage="shadow"
)


def clause(metric, limit, family="numerical", **more):
    return {
        "id": "C",
        "family": family,
        "metric": metric,
        "limit": limit,
        "kind": "soft",
        "level": "L2",
    } | more


def collector(*clauses, shard="x", **more):
    document = {
        "apiVersion": "kernel-contracts/v1",
        "kind": "KernelContract",
        "metadata": {"name": "t", "version": "1.0.0"},
        "pair": {"train": {"engine": "torch"}, "inference": {"engine": "torch"}},
        "slices": {"long": {"where": {"prompt_tokens": {"gte": 512}}}},
        "clauses": [c | {"id": f"C{i}"} for i, c in enumerate(clauses)],
    }
    return Collector(Contract.model_validate(document | more), PROVENANCE, shard)


def cell(evidence, phase=DECODE, clause="C0", slice="all"):
    return evidence.cell(clause, slice, phase)


SOFT_KL = clause("kl", {"lte": 0.1}, "statistical", exceedance=0.05)
HARD_KL = clause("kl", {"lte": 0.1}, "statistical", kind="hard")
MEAN_KL = HARD_KL | {"statistic": "mean"}


def test_soft_clauses_count_decisions_and_name_the_extreme():
    c = collector(SOFT_KL)
    c.add_prompt("a", PLAIN, DECODE, {"kl": [0.0, 0.2, 0.1, 0.3]}, offset=7)
    got = cell(c.evidence())
    assert got.draws.shares == ((2, 4, 1),)
    assert got.moments.mean == math.fsum([0.0, 0.2, 0.1, 0.3]) / 4
    assert got.extreme.high == 0.3
    assert got.extreme.high_at == Position(draw="a", index=10, phase=DECODE)
    assert got.extreme.low_at == Position(draw="a", index=7, phase=DECODE)
    assert c.evidence().cell("C0", "all", PREFILL) is None


@pytest.mark.parametrize("kind", [SOFT_KL, HARD_KL, MEAN_KL])
def test_an_unmeasurable_decision_is_an_exceedance_and_in_no_mean(kind):
    c = collector(kind)
    c.add_prompt("a", PLAIN, DECODE, {"kl": [0.0, NAN, 0.02]})
    c.add_prompt("b", PLAIN, DECODE, {"kl": [NAN]})
    got = cell(c.evidence())
    assert got.unmeasurable.count == 2
    assert got.unmeasurable.first == (
        Position(draw="a", index=1, phase=DECODE),
        Position(draw="b", index=0, phase=DECODE),
    )
    assert got.moments.n == 1
    assert got.moments.mean == 0.01
    assert got.extreme.high == 0.02
    if kind is not MEAN_KL:
        assert got.draws.shares == ((1, 1, 1), (1, 3, 1))


def test_nan_in_one_metric_breaks_the_decision_for_all():
    c = collector(
        SOFT_KL,
        clause("tv", {"lte": 0.5}, "statistical", exceedance=0.05),
        clause("unmeasurable", {"lte": 0}, kind="hard"),
    )
    c.add_prompt("a", PLAIN, DECODE, {"kl": [0.0, NAN], "tv": [0.1, 0.2]})
    evidence = c.evidence()
    assert cell(evidence, clause="C1").unmeasurable.count == 1
    assert cell(evidence, clause="C1").draws.shares == ((1, 2, 1),)
    broken = cell(evidence, clause="C2")
    assert broken.unmeasurable.count == 0
    assert broken.extreme.high == 1.0
    assert broken.extreme.high_at.index == 1


def test_the_given_mask_breaks_decisions_too():
    c = collector(SOFT_KL)
    c.add_prompt("a", PLAIN, DECODE, {"kl": [0.0, 0.0], "unmeasurable": [0.0, 1.0]})
    assert cell(c.evidence()).unmeasurable.count == 1


def test_infinite_values_exceed_but_make_no_mean():
    c = collector(SOFT_KL, MEAN_KL)
    c.add_prompt("a", PLAIN, DECODE, {"kl": [0.0, math.inf]})
    evidence = c.evidence()
    soft, mean = cell(evidence), cell(evidence, clause="C1")
    assert soft.draws.shares == ((1, 2, 1),)
    assert soft.unmeasurable.count == 0
    assert soft.extreme.high == math.inf
    assert soft.moments.n == 0
    assert mean.unmeasurable.count == 1


@pytest.mark.parametrize(
    ("limit", "aggregate", "values", "share", "value"),
    [
        ({"lte": 0.5}, "max", [0.1, 0.6], (1, 1), 0.6),
        ({"lte": 0.5}, "mean", [0.1, 0.6], (0, 1), 0.35),
        ({"lte": 0.5}, "min", [0.1, 0.6], (0, 1), 0.1),
        ({"abs_lte": 0.5}, "max", [-0.6, 0.1], (1, 1), -0.6),
        ({"abs_lte": 0.5}, None, [-0.6, 0.1], (1, 1), -0.6),
        ({"gte": 0.5}, None, [0.4, 0.6], (1, 1), 0.4),
        ({"lte": 0.5}, None, [0.4, 0.6], (1, 1), 0.6),
    ],
)
def test_per_prompt_clauses_have_one_indicator_a_prompt(limit, aggregate, values, share, value):
    c = collector(clause("log_ratio", limit, per="prompt", aggregate=aggregate, exceedance=0.1))
    c.add_prompt("a", PLAIN, DECODE, {"log_ratio": values})
    got = cell(c.evidence())
    assert got.draws.shares == ((*share, 1),)
    assert got.extreme.high == value


def test_an_unmeasurable_decision_breaks_the_whole_aggregate():
    c = collector(SOFT_KL | {"per": "prompt", "aggregate": "mean"})
    c.add_prompt("a", PLAIN, DECODE, {"kl": [0.0, NAN, 0.0]})
    got = cell(c.evidence())
    assert got.draws.shares == ((1, 1, 1),)
    assert got.unmeasurable.count == 1
    assert got.extreme is None


def test_bounded_means_are_kept_as_shares():
    c = collector(clause("tv", {"lte": 0.1}, "statistical", kind="hard", statistic="mean"), MEAN_KL)
    c.add_prompt("a", PLAIN, DECODE, {"tv": [0.25, 0.75], "kl": [0.0, 0.0]})
    assert cell(c.evidence()).draws.mean == 0.5
    assert cell(c.evidence(), clause="C1").draws is None


def test_clip_fraction_is_worked_out_from_the_log_ratio():
    c = collector(
        clause("clip_fraction_at_zero", {"lte": 0}, exceedance=0.1),
        rl={"clip": {"low": 0.2, "high": 0.28}, "kernel_budget_share": 0.25},
    )
    assert c.needs == {"log_ratio"}
    ratios = [math.log(0.79), math.log(0.81), 0.0, math.log(1.27), math.log(1.29), NAN]
    c.add_prompt("a", PLAIN, DECODE, {"log_ratio": ratios})
    assert cell(c.evidence()).draws.shares == ((3, 6, 1),)
    assert cell(c.evidence()).unmeasurable.count == 1


def test_needs_name_what_the_stage_asks_for():
    c = collector(
        clause("topk_agreement", {"gte": 0.8}, "statistical", k=10, exceedance=0.1),
        SOFT_KL | {"stages": ["full"]},
        clause("ece_gap", {"lte": 0.1}, "statistical", kind="hard"),
        clause("ppl_ratio", {"lte": 1.1}, "statistical", kind="hard"),
        clause("latency", {"lte": 1.0}, "runtime", kind="hard", statistic="p50"),
    )
    assert c.needs == {"topk_agreement@10"}
    assert c.needs_calibration
    assert c.needs_nll


def test_slices_and_phases_get_cells_only_where_a_draw_fell():
    c = collector(SOFT_KL | {"slices": ["all", "long"]}, SOFT_KL | {"phase": "prefill"})
    c.add_prompt("a", PLAIN, PREFILL, {"kl": [0.0]})
    c.add_prompt("b", Attributes(prompt_tokens=600), DECODE, {"kl": [0.0]})
    c.add_prompt("c", PLAIN, DECODE, {"kl": []})
    evidence = c.evidence()
    assert [k.key for k in evidence.cells] == [
        ("C0", "all", "decode"),
        ("C0", "all", "prefill"),
        ("C0", "long", "decode"),
        ("C1", "all", "prefill"),
    ]
    assert evidence.prompts == 2


def test_paired_metrics_use_measurable_decisions_only():
    c = collector(
        clause("ece_gap", {"lte": 0.1}, "statistical", kind="hard", bins=4),
        clause("ppl_ratio", {"lte": 1.1}, "statistical", kind="hard"),
    )
    sides = Calibrated([0.25, 0.3, NAN], [1.0, 0.0, 0.0], [0.2, 0.9, 0.5], [1.0, 1.0, 0.0])
    c.add_prompt("a", PLAIN, DECODE, {}, calibration=sides, nll=([1.0, 2.0, 3.0], [1.5, math.inf, 3.0]))
    ece, ppl = cell(c.evidence()), cell(c.evidence(), clause="C1")
    assert [b.count for b in ece.calibration.train] == [1, 1, 0, 0]
    assert [b.hits for b in ece.calibration.inference] == [1, 0, 0, 1]
    assert (ece.calibration.prompts, ece.unmeasurable.count) == (1, 1)
    assert (ppl.nll_train.mean, ppl.nll_inference.mean, ppl.nll_gap.mean) == (1.0, 1.5, 0.5)
    assert ppl.unmeasurable.count == 2


REWARDED = {"reward": {"range": [0, 2], "grader": "g"}}
DRIFT = clause("reward_drift", {"abs_lte": 0.1}, "statistical", kind="hard", slices=["all", "long"])
FLIPS = clause("flip_rate", {"lte": 0.1}, "statistical", kind="hard")


def test_paired_rewards_are_differences_as_draws():
    c = collector(DRIFT, FLIPS, **REWARDED)
    assert c.needs_rewards
    assert c.needs_outcomes
    c.add_rewards("a", PLAIN, 2.0, 0.0)
    c.add_rewards("b", Attributes(prompt_tokens=600), [1.0, 2.0], 1.5)
    c.add_rewards("c", PLAIN, math.nan, 1.0)
    got = cell(c.evidence(), None)
    assert (got.rewards.form, got.rewards.train.mean, got.rewards.inference.mean) == ("paired", 1.75, 0.75)
    assert got.rewards.gap.mean == 1.0
    assert got.draws.mean == 0.75
    assert (got.unmeasurable.count, got.unmeasurable.first[0].draw) == (1, "c")
    assert cell(c.evidence(), None, slice="long").rewards.gap.n == 1
    assert cell(c.evidence(), None, "C1") is None
    assert c.evidence().prompts == 3


def test_weighted_rewards_estimate_training_from_rollouts_of_inference():
    c = collector(DRIFT, **REWARDED)
    c.add_weighted_reward("a", PLAIN, 2.0, math.log(1.5))
    c.add_weighted_reward("b", PLAIN, 0.0, math.log(0.5))
    for draw, log_weight in (("c", math.inf), ("d", -math.inf), ("e", math.nan), ("f", 301.0)):
        c.add_weighted_reward(draw, PLAIN, 1.0, log_weight)
    got = cell(c.evidence(), None)
    assert got.rewards.form == "weighted"
    assert (got.rewards.train.mean, got.rewards.inference.mean) == (pytest.approx(1.5), 1.0)
    assert got.draws is None
    assert got.weights.prompts == 2
    assert got.unmeasurable.count == 4


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.add_rewards("a", PLAIN, 1.0, 1.0), "draw 'a', reward_drift: given twice"),
        (lambda c: c.add_rewards("b", PLAIN, 3.0, 1.0), r"draw 'b': reward 3.0 is outside .* \[0.0, 2.0\]"),
        (lambda c: c.add_rewards("b", PLAIN, [], 1.0), "no reward"),
        (lambda c: c.add_rewards("b", PLAIN, math.inf, 1.0), "outside"),
        (lambda c: c.add_weighted_reward("b", PLAIN, 1.0, 0.0), "weighted rewards beside paired"),
    ],
)
def test_bad_rewards_are_named_and_leave_nothing_behind(call, words):
    c = collector(DRIFT, **REWARDED)
    c.add_rewards("a", PLAIN, 1.0, 1.0)
    before = c.evidence()
    with pytest.raises(BadValues, match=words):
        call(c)
    assert c.evidence() == before
    with pytest.raises(BadValues, match="no reward section"):
        collector(DRIFT).add_rewards("a", PLAIN, 1.0, 1.0)


def test_outcomes_fill_the_table_and_ungraded_ones_are_unmeasurable():
    c = collector(FLIPS, **REWARDED)
    pairs = [(True, True), (True, False), (True, False), (False, True), (False, False), (None, True)]
    for i, (train, inference) in enumerate(pairs):
        c.add_outcome(f"p{i}", PLAIN, train, inference)
    got = cell(c.evidence(), None)
    table = got.outcomes
    assert (table.both, table.train_only, table.inference_only, table.neither) == (1, 2, 1, 1)
    assert (table.n, table.flips, got.unmeasurable.count) == (5, 3, 1)
    with pytest.raises(BadValues, match="flip_rate: given twice"):
        c.add_outcome("p0", PLAIN, True, True)


def test_weights_of_decisions_come_from_the_log_ratio():
    c = collector(clause("ess", {"gte": 0.9}, "statistical", kind="hard"))
    assert c.needs == {"log_ratio"}
    c.add_prompt("a", PLAIN, DECODE, {"log_ratio": [0.0, math.log(2.0), math.inf, NAN, 400.0]})
    c.add_prompt("b", PLAIN, DECODE, {"log_ratio": [math.inf]})
    got = cell(c.evidence())
    assert [float(v) for v in got.weights.sums] == [2.0, pytest.approx(3.0), pytest.approx(5.0)]
    assert (got.weights.prompts, got.unmeasurable.count) == (1, 4)
    assert (got.extreme.high, got.extreme.high_at.index) == (pytest.approx(2.0), 1)


def test_requests_feed_runtime_and_counts():
    c = collector(
        clause("latency", {"lte": 1.2}, "runtime", kind="hard", statistic="p50", relative_to="baseline"),
        clause("failure_rate", {"lte": 0.1}, "runtime", kind="hard"),
        clause(
            "dual_evaluation_coverage", {"gte": 0.1}, "observability", kind="hard", slices=["all", "long"]
        ),
    )
    c.add_request(PLAIN, role="baseline", ok=True, latency_s=1.0)
    c.add_request(PLAIN, role="candidate", ok=True, latency_s=2.0, dual=True)
    c.add_request(PLAIN, role="mirror", ok=False, latency_s=30.0)
    evidence = c.evidence()
    latency = cell(evidence, None)
    assert (latency.candidate.n, latency.baseline.n) == (1, 1)
    failures, coverage = cell(evidence, None, "C1").count, cell(evidence, None, "C2").count
    assert (failures.events, failures.trials) == (1, 2)
    assert (coverage.events, coverage.trials) == (1, 2)
    assert cell(evidence, None, "C2", "long") is None
    assert evidence.prompts == 0


def test_gauges_keep_the_extremes_and_nan_is_unmeasurable():
    c = collector(clause("telemetry_age", {"lte": "5m"}, "observability", kind="hard"))
    for value in (3.0, 9.0, NAN):
        c.gauge("telemetry_age", value)
    got = cell(c.evidence(), None)
    assert (got.gauge.low, got.gauge.high, got.gauge.readings, got.unmeasurable.count) == (3.0, 9.0, 2, 1)
    with pytest.raises(BadValues, match="not a gauge"):
        c.gauge("kl", 1.0)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"kl": [0.0], "tv": [0.0, 0.0]}, "different lengths"),
        ({"kl": [-1.0]}, r"draw 'b', decode: kl is -1.0 at decision 5"),
        ({"tv": [1.1]}, r"outside \[0.0, 1.0\]"),
        ({"klx": [0.0]}, "not a registered metric"),
        ({}, "no values"),
    ],
)
def test_bad_values_are_named_and_leave_nothing_behind(values, words):
    c = collector(SOFT_KL, clause("tv", {"lte": 0.5}, "statistical", exceedance=0.05))
    before = c.evidence()
    with pytest.raises(BadValues, match=words):
        c.add_prompt("b", PLAIN, DECODE, values, offset=5)
    assert c.evidence() == before


def test_a_draw_counts_once_and_metrics_come_with_every_draw():
    c = collector(SOFT_KL)
    c.add_prompt("a", PLAIN, DECODE, {"kl": [0.0]})
    with pytest.raises(BadValues, match="given twice"):
        c.add_prompt("a", PLAIN, DECODE, {"kl": [0.0]})
    with pytest.raises(BadValues, match="some draws only"):
        c.add_prompt("b", PLAIN, DECODE, {"tv": [0.0]})
    with pytest.raises(BadValues, match="latency"):
        c.add_request(PLAIN, role="candidate", ok=True, latency_s=NAN)


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from([0.0, 0.05, 0.1, 0.30000000000000004, 1e-17, NAN]), max_size=6),
            st.sampled_from([10, 600]),
            st.integers(0, 2),
        ),
        max_size=12,
    )
)
def test_any_sharding_gives_the_single_collectors_bytes(prompts):
    clauses = (
        SOFT_KL | {"slices": ["all", "long"]},
        MEAN_KL,
        HARD_KL | {"per": "prompt"},
        clause("ece_gap", {"lte": 0.1}, "statistical", kind="hard"),
    )

    def fill(c, chosen):
        for i, (values, tokens, _) in chosen:
            row = np.array(values)
            sides = Calibrated(row, np.zeros(len(row)), np.abs(row - 0.01), np.ones(len(row)))
            c.add_prompt(f"p{i:02}", Attributes(prompt_tokens=tokens), DECODE, {"kl": row}, calibration=sides)
        return c.evidence()

    whole = fill(collector(*clauses), list(enumerate(prompts)))
    parts = [
        fill(collector(*clauses, shard=str(s)), [(i, p) for i, p in enumerate(prompts) if p[2] == s])
        for s in (2, 0, 1)
    ]
    merged = parts[0].merge(parts[1]).merge(parts[2])
    assert merged.model_copy(update={"shards": whole.shards}).canonical() == whole.canonical()
