"""The contract's values: limits, conditions, defaults, and what they refuse."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from contracts.metrics import DECISION_METRICS, METRICS, Shape, nearest
from contracts.model import (
    Action,
    Canary,
    Certainty,
    Clause,
    Comparator,
    Condition,
    Level,
    LevelActions,
    Limit,
    Pair,
    Sampling,
    Slice,
    Stage,
    StagePlans,
    default_escalation,
)


@pytest.mark.parametrize(
    ("limit", "inside", "outside"),
    [
        ({"lte": 0.1}, (-5.0, 0.1), (0.1000001,)),
        ({"gte": "80%"}, (0.8, 1.0), (0.79,)),
        ({"abs_lte": 0.03}, (-0.03, 0.03), (-0.031, 0.031)),
    ],
)
def test_limits(limit: dict[str, object], inside: tuple[float, ...], outside: tuple[float, ...]) -> None:
    one = Limit.model_validate(limit)
    assert not any(one.exceeded_by(value) for value in inside)
    assert all(one.exceeded_by(value) for value in (*outside, math.nan))
    assert one.comparator == next(iter(limit))
    assert Limit.model_validate(one.model_dump()) == one


@given(st.sampled_from(list(Comparator)), st.floats(0, 1e6), st.floats(allow_nan=False))
def test_a_limit_is_inclusive_and_nan_breaks_it(
    comparator: Comparator, value: float, observed: float
) -> None:
    limit = Limit.model_validate({comparator.value: value})
    assert not limit.exceeded_by(value)
    assert limit.exceeded_by(math.nan)
    if comparator is Comparator.ABS_LTE:
        assert limit.exceeded_by(observed) == limit.exceeded_by(-observed)


@pytest.mark.parametrize(
    "bad", [{}, {"lte": 1, "gte": 0}, {"lte": None}, {"lte": True}, {"abs_lte": -1}, {"eq": 1}]
)
def test_what_is_no_limit(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Limit.model_validate(bad)


def test_conditions_keep_types() -> None:
    assert Condition.model_validate("python").eq == "python"
    assert Condition.model_validate(1).eq == 1
    assert Condition.model_validate(True).eq is True
    assert Condition.model_validate({"in": ["8", 8]}).one_of == ("8", 8)
    for bad in ({}, None, ["x"], {"between": 1}, {"gte": math.inf}):
        with pytest.raises(ValidationError):
            Condition.model_validate(bad)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Sampling(temperature=0),
        lambda: Sampling(temperature=math.inf),
        lambda: Certainty(alpha=1.0),
        lambda: Canary(steps=(0.5, 0.5)),
        lambda: Canary(steps=()),
        lambda: Pair(train={"engine": ["torch"]}, inference={}),  # type: ignore[dict-item]
        lambda: Slice(where={}, name="x"),  # type: ignore[call-arg]
    ],
)
def test_values_refuse(build: object) -> None:
    with pytest.raises(ValidationError):
        build()  # type: ignore[operator]


def test_values_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Sampling().temperature = 2.0  # type: ignore[misc]


def test_defaults() -> None:
    assert StagePlans().min_prompts(Stage.CANARY) == 1
    for stage in Stage:
        assert default_escalation()[Level.L3].at(stage) == (
            Action.LOG,
            Action.FALLBACK,
            Action.FREEZE,
            Action.PAGE,
        )
    assert not Sampling().truncated
    assert Sampling(top_k=5).truncated
    clause = Clause.model_validate(
        {"id": "A", "family": "numerical", "metric": "kl", "limit": {"lte": 1}, "kind": "hard", "level": "L1"}
    )
    assert clause.slices == ("all",)
    assert clause.stages == tuple(Stage)


@pytest.mark.parametrize(
    ("written", "offline", "full", "back"),
    [
        (["log"], ("log",), ("log",), ["log"]),
        ({"default": ["log"]}, ("log",), ("log",), ["log"]),
        ({"default": ["log"], "full": ["page"]}, ("log",), ("page",), {"default": ["log"], "full": ["page"]}),
        ({"full": ["page"]}, (), ("page",), {"default": [], "full": ["page"]}),
        ({"default": ["log"], "full": []}, ("log",), (), {"default": ["log"], "full": []}),
    ],
)
def test_actions_by_stage(
    written: object, offline: tuple[str, ...], full: tuple[str, ...], back: object
) -> None:
    policy = LevelActions.model_validate(written)
    assert (policy.at(Stage.OFFLINE_CI), policy.at(Stage.FULL)) == (offline, full)
    assert policy.model_dump(mode="json") == back
    assert LevelActions.model_validate(policy.model_dump(mode="json")) == policy
    assert LevelActions.model_validate_json(json.dumps(written), strict=True) == policy


def test_the_registry_is_consistent() -> None:
    for name, metric in METRICS.items():
        assert name == metric.id
        assert metric.low < metric.high
        assert metric.source
        assert metric.summary
        assert metric.worse in ("up", "down")
        assert (name in DECISION_METRICS) == (metric.shape is Shape.DECISION)
    assert nearest("klx", [*METRICS]) == "kl"
    assert nearest("zzzz", [*METRICS]) is None
