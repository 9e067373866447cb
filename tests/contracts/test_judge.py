"""Verdicts: three-valued, with two kinds of absence, and no way to pass without data."""

import math

import numpy as np
import pytest

from contracts.calibration import Calibrated
from contracts.evidence import Evidence
from contracts.judge import JUDGE_VERSION, WrongContract, judge
from tests.contracts.judge_kit import (
    BAD,
    DECODE,
    GOOD,
    HOLDS,
    INCONCLUSIVE,
    NO_DATA,
    PER_PROMPT,
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
    soft,
)


@pytest.mark.parametrize(
    ("good", "bad", "outcome"),
    [
        (58, 0, INCONCLUSIVE),
        (59, 0, HOLDS),
        (92, 1, HOLDS),
        (91, 1, INCONCLUSIVE),
        (122, 2, HOLDS),
        (0, 1, INCONCLUSIVE),
        (0, 2, VIOLATED),
        (50, 10, VIOLATED),
        (96, 6, INCONCLUSIVE),
    ],
)
def test_soft_clause_on_prompts_is_clopper_pearson(good, bad, outcome):
    verdict = only(judged(soft(**PER_PROMPT), [GOOD] * good + [BAD] * bad))
    assert verdict.verdict is outcome
    assert verdict.method == "clopper-pearson"
    assert verdict.n == good + bad
    assert verdict.observed == pytest.approx(bad / (good + bad))
    assert (verdict.limit, verdict.threshold, verdict.unit) == (0.05, 0.1, "nats")


@pytest.mark.parametrize("stage", STAGES)
def test_soft_clause_on_decisions_bets_on_prompts_as_draws(stage):
    document = soft()
    certified = only(judged(document, [[0.0] * 50] * 80, stage))
    assert certified.verdict is HOLDS
    assert certified.method == ("betting" if stage == "offline_ci" else "betting-cs")
    assert only(judged(document, [[0.0] * 5000] * 10, stage)).verdict is INCONCLUSIVE
    assert only(judged(document, [BAD] * 40, stage)).verdict is VIOLATED


def test_inconclusive_says_how_many_would_decide():
    verdict = only(judged(soft(**PER_PROMPT), [GOOD] * 20))
    assert verdict.needed == 59
    assert "about 59 prompts would decide" in verdict.reason
    more = only(judged(soft(), [[0.0] * 9] * 20, "shadow"))
    assert only(judged(soft(), [[0.0] * 9] * more.needed, "shadow")).verdict is HOLDS
    assert only(judged(soft(), [[0.0] * 9] * (more.needed - 1), "shadow")).verdict is INCONCLUSIVE


def test_the_reason_is_a_plain_sentence():
    verdict = only(judged(soft(), [[0.0, 0.5, 0.0]] * 96))
    assert verdict.reason.startswith(
        "kl above 0.1 nats on 33.3% of decisions (limit 5%), 96 prompts, 95% interval ["
    )


@pytest.mark.parametrize("stage", STAGES)
def test_hard_clause_falls_at_one_counterexample_and_stands_only_on_enough_prompts(stage):
    document = contract(clause())
    assert only(judged(document, [GOOD] * 298, stage)).verdict is INCONCLUSIVE
    assert only(judged(document, [GOOD] * 298, stage)).needed == 299
    assert only(judged(document, [GOOD] * 299, stage)).verdict is HOLDS
    broken = only(judged(document, [GOOD] * 298 + [[0.0, 0.05, 0.7]], stage))
    assert broken.verdict is VIOLATED
    assert broken.observed == 0.7
    assert "largest kl 0.7 nats at p00298 decision 2 (limit at most 0.1 nats)" in broken.reason


def test_a_census_is_exact():
    document = contract(
        clause(),
        clause(exceedance=0.5),
        clause(statistic="mean", limit={"lte": 0.25}),
        stages={"offline_ci": {"census": True}},
    )
    hard, share, mean = judged(document, [GOOD, BAD]).verdicts
    assert [hard.verdict, share.verdict, mean.verdict] == [VIOLATED, HOLDS, HOLDS]
    assert {v.method for v in (hard, share, mean)} == {"census"}
    assert share.observed == 0.25
    assert share.interval.low == share.interval.high == 0.25
    assert (
        only(
            judged(contract(clause(exceedance=0.24), stages={"offline_ci": {"census": True}}), [GOOD, BAD])
        ).verdict
        is VIOLATED
    )
    assert only(judged(soft(exceedance=0.5), [GOOD, BAD], "shadow")).verdict is INCONCLUSIVE


@pytest.mark.parametrize("stage", STAGES)
def test_means(stage):
    document = contract(clause(statistic="mean"))
    values = [[0.05 + 0.01 * math.sin(i)] for i in range(100)]
    assert only(judged(document, values, stage)).verdict is HOLDS
    assert only(judged(document, [[v + 0.2] for (v,) in values], stage)).verdict is VIOLATED
    assert only(judged(document, [[v + 0.05] for (v,) in values], stage)).verdict is INCONCLUSIVE
    few = only(judged(document, values[:29], stage))
    assert few.verdict is INCONCLUSIVE
    assert few.needed >= 30
    signed = contract(clause("log_ratio", {"abs_lte": 0.02}, statistic="mean"))
    for shift, outcome in ((0.0, HOLDS), (0.2, VIOLATED), (-0.2, VIOLATED)):
        rows = [[v - 0.05 + shift] for (v,) in values]
        assert only(judged(signed, rows, stage, "log_ratio")).verdict is outcome


@pytest.mark.parametrize("stage", STAGES)
def test_bounded_means_are_not_fooled_by_no_variance(stage):
    document = contract(clause("top1_flip", {"lte": 0.01}, statistic="mean"))
    assert only(judged(document, [[0.0]] * 100, stage, "top1_flip")).verdict is INCONCLUSIVE
    assert only(judged(document, [[0.0]] * 400, stage, "top1_flip")).verdict is HOLDS
    agreement = contract(clause("topk_agreement", {"gte": 0.8}, statistic="mean", k=10))
    for value, outcome in ((0.95, HOLDS), (0.5, VIOLATED)):
        rows = [[value]] * 200
        assert only(judged(agreement, rows, stage, "topk_agreement@10")).verdict is outcome


@pytest.mark.parametrize("stage", STAGES)
def test_ratios_to_a_concurrent_baseline(stage):
    document = contract(service("latency", {"lte": 1.2}, statistic="p50", relative_to="baseline"))

    def verdict(factor, n=300):
        c = collector(document, stage)
        c.add_prompt("a", PLAIN, DECODE, {"kl": [0.0]})
        for i in range(n):
            c.add_request(PLAIN, role="baseline", ok=True, latency_s=1 + 0.1 * math.sin(i))
            c.add_request(PLAIN, role="candidate", ok=True, latency_s=factor * (1 + 0.1 * math.sin(i + 1)))
        return only(judge(document, c.evidence(), contract_digest="sha256:c"))

    assert verdict(1.0).verdict is HOLDS
    assert verdict(1.0).observed == pytest.approx(1.0, abs=0.02)
    assert verdict(1.6).verdict is VIOLATED
    assert verdict(1.2).verdict is INCONCLUSIVE
    assert verdict(1.0, n=3).verdict is INCONCLUSIVE
    assert verdict(1.0).unit == ""


def test_a_runtime_clause_without_a_statistic_is_no_data():
    document = contract(service("latency", {"lte": 9.0}))
    c = collector(document)
    c.add_request(PLAIN, role="candidate", ok=True, latency_s=1.0)
    assert only(judge(document, c.evidence(), contract_digest="sha256:c")).verdict is NO_DATA


def test_no_baseline_is_no_data():
    document = contract(service("latency", {"lte": 1.2}, statistic="p99", relative_to="baseline"))
    c = collector(document)
    c.add_request(PLAIN, role="candidate", ok=True, latency_s=1.0)
    assert only(judge(document, c.evidence(), contract_digest="sha256:c")).verdict is NO_DATA


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("limit", "failed", "served", "outcome"),
    [
        (0.05, 0, 100, HOLDS),
        (0.05, 30, 70, VIOLATED),
        (0.05, 1, 20, INCONCLUSIVE),
        (0.0, 1, 5000, VIOLATED),
        (0.0, 0, 298, INCONCLUSIVE),
        (0.0, 0, 299, HOLDS),
    ],
)
def test_failure_rate(stage, limit, failed, served, outcome):
    document = contract(service("failure_rate", {"lte": limit}))
    c = collector(document, stage)
    c.add_prompt("a", PLAIN, DECODE, {"kl": [0.0]})
    for i in range(failed + served):
        c.add_request(PLAIN, role="candidate", ok=i >= failed)
    assert only(judge(document, c.evidence(), contract_digest="sha256:c")).verdict is outcome


@pytest.mark.parametrize(("age", "outcome"), [(12.0, HOLDS), (301.0, VIOLATED), (math.nan, UNMEASURABLE)])
def test_gauges_and_coverage_are_complete_counts(age, outcome):
    document = contract(
        service("telemetry_age", {"lte": "300 s"}), service("dual_evaluation_coverage", {"gte": 0.5})
    )
    c = collector(document, "full")
    c.add_prompt("a", PLAIN, DECODE, {"kl": [0.0]})
    c.gauge("telemetry_age", age)
    c.add_request(PLAIN, role="candidate", ok=True, dual=True)
    c.add_request(PLAIN, role="candidate", ok=True)
    gauge, coverage = judge(document, c.evidence(), contract_digest="sha256:c").verdicts
    assert gauge.verdict is outcome
    assert coverage.verdict is HOLDS


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("binning", ["equal_width", "equal_mass"])
def test_calibration_gap_in_either_binning(stage, binning):
    rng = np.random.default_rng(3)
    document = contract(clause("ece_gap", {"lte": 0.1}, binning=binning, bins=10))

    def verdict(spoilt, n=120):
        c = collector(document, stage)
        for i in range(n):
            confidence = rng.random(40)
            hit = (rng.random(40) < confidence).astype(float)
            sides = Calibrated(confidence, hit, confidence, hit * (rng.random(40) > spoilt))
            c.add_prompt(f"p{i}", PLAIN, DECODE, {"kl": confidence}, calibration=sides)
        return only(judge(document, c.evidence(), contract_digest="sha256:c"))

    assert verdict(0.0).verdict is HOLDS
    assert verdict(0.8).verdict is VIOLATED
    assert verdict(0.0, 20).verdict is INCONCLUSIVE


def test_unmeasurable_decisions_are_named_and_break_hard_clauses():
    document = contract(clause(exceedance=0.05), clause(), clause("unmeasurable", {"lte": 0}, level="L3"))
    judgement = judged(document, [GOOD] * 400 + [[0.0, math.nan]])
    share, hard, count = judgement.verdicts
    assert [share.verdict, hard.verdict, count.verdict] == [UNMEASURABLE, UNMEASURABLE, VIOLATED]
    assert "1 decision could not be measured, first p00400 decision 1" in hard.reason
    assert "unmeasurable decision at p00400 decision 1" in count.reason
    assert (judgement.converged, judgement.level) == (False, "L3")
    only_soft = judged(soft(), [GOOD] * 400 + [[0.0, math.nan]])
    assert (only_soft.converged, only_soft.level) == (None, None)
    broken = judged(contract(clause()), [[math.nan, 0.5]])
    assert only(broken).verdict is VIOLATED


def test_all_nan_never_passes_and_is_violated_once_it_is_certain():
    assert only(judged(soft(), [[math.nan]])).verdict is UNMEASURABLE
    assert only(judged(soft(), [[math.nan]] * 50)).verdict is VIOLATED
    assert judged(contract(clause(statistic="mean")), [[math.nan]] * 50).converged is False


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_passes_on_its_least_prompts_only(stage):
    document = contract(clause(exceedance=0.05, **PER_PROMPT), stages={stage: {"min_prompts": 200}})
    few = only(judged(document, [GOOD] * 199, stage))
    assert few.verdict is INCONCLUSIVE
    assert few.needed == 200
    assert "the stage asks for at least 200 prompts" in few.reason
    assert judged(document, [GOOD] * 200, stage).converged is True
    assert only(judged(document, [BAD] * 50, stage)).verdict is VIOLATED


def test_every_clause_slice_and_phase_is_judged_once():
    document = contract(
        {**clause(exceedance=0.05), "phase": None, "slices": ["all", "long"]},
        clause(exceedance=0.05),
        service("failure_rate", {"lte": 0.1}, slices=["all", "long"]),
        service("reward_drift", {"abs_lte": 0.1}),
        clause(exceedance=0.05, stages=["full"]),
    )
    judgement = judged(document, [GOOD] * 100)
    assert [(v.clause, v.slice, v.phase) for v in judgement.verdicts] == [
        ("C0", "all", "prefill"),
        ("C0", "all", "decode"),
        ("C0", "long", "prefill"),
        ("C0", "long", "decode"),
        ("C1", "all", "decode"),
        ("C2", "all", None),
        ("C2", "long", None),
        ("C3", "all", None),
    ]
    absent = judgement.verdicts[7]
    assert (absent.verdict, absent.n, absent.observed) == (NO_DATA, 0, None)
    assert absent.reason == "no data: reward_drift was not measured on any prompt in slice all"
    assert judgement.converged is None


def test_alarms_are_corrected_for_their_number_and_passes_are_not():
    prompts = [GOOD] * 60 + [BAD] * 7  # p = 0.047 on its own
    single = soft(**PER_PROMPT)
    assert only(judged(single, prompts)).verdict is VIOLATED
    many = [clause(exceedance=0.05, **PER_PROMPT)] + [clause("tv", exceedance=0.05, **PER_PROMPT)] * 3

    def first(correction):
        document = contract(*many, certainty={"alarm_correction": correction})
        return judged(document, prompts).verdicts[0]

    assert first("none").verdict is VIOLATED
    for correction in ("holm", "bonferroni", "e-bh"):
        verdict = first(correction)
        assert verdict.verdict is INCONCLUSIVE
        assert f"no alarm once corrected for all cells ({correction})" in verdict.reason
    for correction in ("holm", "bonferroni", "e-bh", "none"):
        document = contract(*many, certainty={"alarm_correction": correction})
        assert judged(document, [BAD] * 60).verdicts[0].verdict is VIOLATED
        assert judged(document, [GOOD] * 59).verdicts[0].verdict is HOLDS


def test_the_level_is_the_worst_violated():
    document = contract(clause(level="L1"), clause(exceedance=0.05, level="L3", **PER_PROMPT))
    mild = judged(document, [GOOD] * 400 + [BAD])
    assert (mild.converged, mild.level) == (False, "L1")
    assert mild.reason.startswith("1 of 2 violated: C0 on all (decode) VIOLATED: largest kl 0.5")
    assert judged(document, [BAD] * 60).level == "L3"
    fine = judged(document, [GOOD] * 400)
    assert (fine.converged, fine.level) == (True, None)


def test_evidence_of_another_contract_is_refused():
    document = soft()
    evidence = collector(document).evidence()
    with pytest.raises(WrongContract, match="sha256:c, not sha256:other"):
        judge(document, evidence, contract_digest="sha256:other")


def test_no_clause_at_the_stage_is_no_pass():
    document = contract(clause(stages=["full"]))
    judgement = judged(document, [GOOD] * 400)
    assert (judgement.converged, judgement.verdicts) == (None, ())
    assert judgement.reason == "no clause is judged at stage offline_ci"


def test_judging_is_deterministic_and_survives_storage():
    document = contract(clause(exceedance=0.05), clause(statistic="mean"))
    c = collector(document, "shadow")
    for i in range(200):
        c.add_prompt(f"p{i}", PLAIN, DECODE, {"kl": [0.01 * (i % 7), 0.02, 0.2 * (i % 41 == 0)]})
    evidence = c.evidence()
    first = judge(document, evidence, contract_digest="sha256:c")
    again = judge(document, Evidence.model_validate_json(evidence.canonical()), contract_digest="sha256:c")
    assert first.model_dump_json() == again.model_dump_json()
    assert first.judge_version == JUDGE_VERSION
    assert first.evidence_digest == evidence.digest
