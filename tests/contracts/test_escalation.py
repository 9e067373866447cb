"""Levels of violated verdicts become actions, once each."""

import pytest

from contracts.escalation import actions, violated_slices, violations
from contracts.model import Action, Contract, Stage
from contracts.verdicts import Interval, Judgement, Outcome, Verdict

LOG, GUARD, FREEZE, FALLBACK, PAGE = Action


def verdict(outcome, level="L2", kind="hard", slice="all"):
    return Verdict(
        clause="C", family="statistical", metric="kl", statistic="worst", unit="nats", kind=kind, level=level,
        slice=slice, phase="decode", verdict=outcome, observed=None, comparator="lte", limit=0.1,
        threshold=None, n=1, needed=None, interval=Interval(low=None, high=None), alpha=0.05, method="none",
        reason="", evidence_digest="d",
    )  # fmt: skip


def judgement(*verdicts):
    return Judgement(
        judge_version="1", contract_digest="c", evidence_digest="d", stage="shadow", prompts=1,
        converged=None, level=None, reason="", verdicts=verdicts,
    )  # fmt: skip


def contract(**more):
    return Contract.model_validate(
        {
            "apiVersion": "kernel-contracts/v1",
            "kind": "KernelContract",
            "metadata": {"name": "t", "version": "1.0.0"},
            "pair": {"train": {"engine": "torch"}, "inference": {"engine": "torch"}},
            "clauses": [
                {
                    "id": "C",
                    "family": "statistical",
                    "metric": "kl",
                    "limit": {"lte": 0.1},
                    "kind": "hard",
                    "level": "L2",
                }
            ],
        }
        | more
    )


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([], ()),
        (["L1"], (LOG,)),
        (["L2"], (LOG, GUARD, FREEZE)),
        (["L3"], (LOG, FREEZE, FALLBACK, PAGE)),
        (["L1", "L3", "L2"], (LOG, GUARD, FREEZE, FALLBACK, PAGE)),
    ],
)
def test_default_actions_are_the_three_levels(levels, expected):
    assert actions(contract(), judgement(*(verdict("VIOLATED", level) for level in levels))) == expected


def test_the_contracts_own_actions_count():
    own = contract(escalation={"L1": ["page"]})
    assert actions(own, judgement(verdict("VIOLATED", "L1"), verdict("VIOLATED", "L2"))) == (PAGE,)


@pytest.mark.parametrize(("stage", "expected"), [("shadow", (LOG,)), ("full", (FREEZE, PAGE))])
def test_actions_are_those_of_the_judgements_stage(stage, expected):
    own = contract(escalation={"L2": {"default": ["log"], "full": ["page", "freeze"]}})
    seen = judgement(verdict("VIOLATED", "L2")).model_copy(update={"stage": Stage(stage)})
    assert actions(own, seen) == expected


@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize("outcome", list(Outcome))
def test_what_escalates(outcome, kind):
    expected = outcome == "VIOLATED" or (outcome == "UNMEASURABLE" and kind == "hard")
    assert bool(violations(judgement(verdict(outcome, kind=kind)))) is expected


def test_violated_slices_by_level():
    seen = judgement(
        verdict("VIOLATED", "L2", slice="long"),
        verdict("VIOLATED", "L2", slice="all"),
        verdict("VIOLATED", "L3", slice="safety"),
        verdict("HOLDS", "L3", slice="python"),
    )
    assert violated_slices(seen) == ("all", "long", "safety")
    assert violated_slices(seen, "L3") == ("safety",)
