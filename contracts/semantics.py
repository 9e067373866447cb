"""What the parts of a contract mean together: everything that could never work is refused here.

Works on the raw document, part by part, so that one misspelt key does not hide the other
problems. What reads but is unwise is :mod:`contracts.lint`'s business.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from contracts.diagnostics import Path, Problem
from contracts.metrics import METRICS, Metric, Shape
from contracts.model import (
    STAGES,
    Action,
    Clause,
    ClauseKind,
    Comparator,
    Condition,
    Level,
    LevelActions,
    Reward,
    Slice,
    Stage,
    default_escalation,
)
from contracts.shape import hint, part, where
from contracts.slices import ATTRIBUTES, NUMBER, OPERATORS
from contracts.units import duration, unit_of

PARAMETERS = {"k": "how many tokens are compared", "bins": "the number of confidence bins"}


def check(root: dict[str, Any]) -> Iterator[Problem]:
    """Every impossibility in the document, each with the path it is about."""
    yield from _slices(root)
    yield from _clauses(root)
    yield from _escalation(root)
    yield from _stages(root)


def _items(root: dict[str, Any], key: str, kind: type) -> Any:
    value = root.get(key)
    return value if isinstance(value, kind) else kind()


# Slices


def _slices(root: dict[str, Any]) -> Iterator[Problem]:
    for name, raw in _items(root, "slices", dict).items():
        found = part(Slice, raw)
        if found is None:
            continue
        if name == "all" and found.where:
            yield Problem(
                ("slices", name, "where"), "slice-all", "slice all is everything: it takes no condition"
            )
        for attribute, condition in found.where.items():
            yield from _condition(attribute, condition, ("slices", name, "where", attribute))


def _condition(attribute: str, condition: Condition, path: Path) -> Iterator[Problem]:
    kind = ATTRIBUTES.get(attribute)
    if kind is None:
        message = f"no draw has the attribute {attribute!r}{_suggest(attribute, [*ATTRIBUTES])}"
        yield Problem(path, "unknown-attribute", message, at_key=True)
        return
    asked = condition.model_dump(exclude_none=True, by_alias=True)
    for operator, value in asked.items():
        if operator not in OPERATORS[kind]:
            message = f"{attribute} takes {', '.join(OPERATORS[kind])}, not {operator}"
            yield Problem((*path, operator), "operator", message, at_key=True)
            continue
        values = value if isinstance(value, tuple) else (value,)
        if any(_is_number(one) != (kind == NUMBER) for one in values):
            message = f"{attribute} is a {kind}; {value!r} can never match"
            yield Problem((*path, operator), "never-matches", message)
    if kind == NUMBER and _empty_range(condition):
        yield Problem(path, "never-matches", f"no number of {attribute} is in this range: the slice is empty")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _empty_range(condition: Condition) -> bool:
    """Whether no whole number >= 0 is in the range."""
    low = max(0, math.ceil(condition.gte or 0), 0 if condition.gt is None else math.floor(condition.gt) + 1)
    high = math.inf if condition.lte is None else float(math.floor(condition.lte))
    below = math.inf if condition.lt is None else float(math.ceil(condition.lt) - 1)
    return low > min(high, below)


# Clauses


def _clauses(root: dict[str, Any]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    known = ["all", *_items(root, "slices", dict)]
    for index, raw in enumerate(_items(root, "clauses", list)):
        if not isinstance(raw, dict):
            continue
        at: Path = ("clauses", index)
        id_ = raw.get("id")
        if isinstance(id_, str) and first.setdefault(id_, index) != index:
            message = f"clause id {id_!r} is taken by clause {first[id_] + 1}"
            yield Problem((*at, "id"), "duplicate-id", message)
        yield from _names(raw, at, known)
        metric = METRICS.get(raw["metric"]) if isinstance(raw.get("metric"), str) else None
        clause = part(Clause, raw)
        if metric is not None and clause is not None:
            for problem in _clause(clause, metric, raw, root):
                label = where(at, root)
                yield Problem(
                    (*at, *problem.path), problem.code, f"{label}: {problem.message}", problem.at_key
                )


def _names(raw: dict[str, Any], at: Path, known: list[str]) -> Iterator[Problem]:
    """Metric and slices by name; on the raw values, so that a misspelt key elsewhere hides nothing."""
    metric = raw.get("metric")
    if isinstance(metric, str) and metric not in METRICS:
        message = f"unknown metric {metric!r}{_suggest(metric, [*METRICS])}"
        yield Problem((*at, "metric"), "unknown-metric", message)
    seen = set()
    for position, name in enumerate(_items(raw, "slices", list)):
        if not isinstance(name, str):
            continue
        if name not in known:
            yield Problem(
                (*at, "slices", position), "unknown-slice", f"unknown slice {name!r}{_suggest(name, known)}"
            )
        elif name in seen:
            yield Problem((*at, "slices", position), "duplicate-item", f"slice {name!r} is named twice")
        seen.add(name)
    stages = [stage for stage in _items(raw, "stages", list) if isinstance(stage, str)]
    for position, stage in enumerate(stages):
        if stage in stages[:position]:
            yield Problem((*at, "stages", position), "duplicate-item", f"stage {stage!r} is named twice")


def _suggest(word: str, known: list[str]) -> str:
    return hint(word, known) or f": known are {', '.join(dict.fromkeys(known))}"


def _clause(clause: Clause, metric: Metric, raw: dict[str, Any], root: dict[str, Any]) -> Iterator[Problem]:
    if clause.family != metric.family:
        message = f"{metric.id} is a {metric.family} metric, not a {clause.family} one"
        yield Problem(("family",), "family", message)
    yield from _kind(clause, metric)
    yield from _statistic(clause, metric)
    yield from _per(clause, metric)
    yield from _extras(clause, metric)
    yield from _limit(clause, metric, raw, root)
    for key in ("rl", "reward"):
        if key in metric.needs and key not in root:
            yield Problem(("metric",), f"missing-{key}", f"{metric.id} needs the contract's {key} section")


def _kind(clause: Clause, metric: Metric) -> Iterator[Problem]:
    soft = clause.kind is ClauseKind.SOFT
    if soft and metric.shape is not Shape.DECISION:
        message = f"{metric.id} is one number for a slice, so there is no exceedance: it can only be hard"
        yield Problem(("kind",), "soft", message)
    elif soft and clause.exceedance is None:
        yield Problem(
            ("kind",), "missing-exceedance", "a soft clause says which share may exceed: exceedance: 0.01"
        )
    if not soft and clause.exceedance is not None:
        yield Problem(
            ("exceedance",), "exceedance", "a hard clause has no exceedance; did you mean kind: soft?", True
        )


def _statistic(clause: Clause, metric: Metric) -> Iterator[Problem]:
    if clause.statistic is None:
        if metric.shape is Shape.RUNTIME:
            known = ", ".join(metric.statistics)
            yield Problem(("metric",), "missing-statistic", f"{metric.id} needs a statistic: one of {known}")
        return
    at: Path = ("statistic",)
    if clause.statistic not in metric.statistics:
        known = f"takes {', '.join(metric.statistics)}" if metric.statistics else "takes no statistic"
        yield Problem(at, "statistic", f"{metric.id} {known}, not {clause.statistic}")
    elif metric.shape is Shape.DECISION and clause.kind is ClauseKind.SOFT:
        yield Problem(
            at, "statistic", "a soft clause counts decisions beyond the limit and takes no statistic"
        )
    elif clause.per == "prompt":
        yield Problem(at, "statistic", "a statistic and per: prompt exclude each other", at_key=True)


def _per(clause: Clause, metric: Metric) -> Iterator[Problem]:
    if clause.per == "prompt" and metric.shape is not Shape.DECISION:
        yield Problem(("per",), "per", f"{metric.id} has no decisions to aggregate in a prompt")
    elif clause.per == "prompt" and clause.aggregate is None:
        yield Problem(("per",), "missing-aggregate", "per: prompt needs an aggregate: max, min or mean")
    if clause.per == "decision" and clause.aggregate is not None:
        yield Problem(("aggregate",), "aggregate", "an aggregate needs per: prompt", at_key=True)


def _extras(clause: Clause, metric: Metric) -> Iterator[Problem]:
    own, required = metric.parameter or ("", False)
    for key in ("k", "bins"):
        given = getattr(clause, key) is not None
        if key == own and required and not given:
            yield Problem(("metric",), f"missing-{key}", f"{metric.id} needs {key}: {PARAMETERS[key]}")
        if given and key != own:
            owners = ", ".join(one.id for one in METRICS.values() if (one.parameter or ("",))[0] == key)
            yield Problem(
                (key,), key, f"{key} ({PARAMETERS[key]}) belongs to {owners}, not to {metric.id}", True
            )
    if clause.binning is not None and own != "bins":
        message = f"binning says how confidence bins are made, and {metric.id} has none"
        yield Problem(("binning",), "bins", message, at_key=True)
    if clause.relative_to is not None and metric.shape is not Shape.RUNTIME:
        message = f"only latency, ttft, itl and throughput are measured beside a baseline, not {metric.id}"
        yield Problem(("relative_to",), "relative-to", message, at_key=True)
    if clause.phase is not None and not metric.phased:
        yield Problem(("phase",), "phase", f"{metric.id} is not measured by phase", at_key=True)


def _limit(clause: Clause, metric: Metric, raw: dict[str, Any], root: dict[str, Any]) -> Iterator[Problem]:
    comparator = clause.limit.comparator
    at: Path = ("limit", comparator.value)
    unit = unit_of(raw["limit"].get(comparator.value))
    relative = clause.relative_to is not None and metric.shape is Shape.RUNTIME
    base = "" if relative else metric.unit
    if unit and unit != base and not (unit == "%" and base == ""):
        what = "a ratio to the baseline" if relative else f"in {base}" if base else "a plain number"
        written = raw["limit"][comparator.value]
        yield Problem(at, "unit", f"{metric.id} is {what}: {written!r} is of another dimension")
        return
    low, high = (0.0, math.inf) if relative else possible(metric, part(Reward, root.get("reward")))
    value = clause.limit.value
    out = (comparator is Comparator.LTE and value < low) or (comparator is Comparator.GTE and value > high)
    if out or (comparator is Comparator.ABS_LTE and value < low):
        message = f"can never hold: {metric.id} lies in [{low:g}, {high:g}], limit {comparator} {value:g}"
        yield Problem(at, "impossible-limit", message)


def possible(metric: Metric, reward: Reward | None) -> tuple[float, float]:
    """The closed range of the metric's values; a reward's drift is bounded by its range."""
    if metric.id == "reward_drift" and reward is not None:
        width = reward.range[1] - reward.range[0]
        return -width, width
    return metric.low, metric.high


# Escalation and stages


def _escalation(root: dict[str, Any]) -> Iterator[Problem]:
    policies = _policies(root)
    for written in policies:
        yield from _repeated(written, root)
    told: set[Level] = set()
    for index, raw in enumerate(_items(root, "clauses", list)):
        level: Level | None = part(Level, raw.get("level")) if isinstance(raw, dict) else None
        if level is None or level in told or (level not in policies and _unread(root, level)):
            continue
        path: Path = ("clauses", index, "level")
        stages = part(tuple[Stage, ...], raw.get("stages")) or STAGES
        policy = policies.get(level, LevelActions())
        silent = [stage for stage in stages if not policy.at(stage)]
        if silent:
            told.add(level)
            at = ("escalation", level.value) if level in policies and "escalation" in root else path
            place = "" if len(silent) == len(stages) else f" at {', '.join(silent)}"
            message = f"level {level} is used by {where(path[:2], root)} and has no action{place}"
            yield Problem(at, "level-without-action", message)
        falls = level is Level.L3 or any(Action.FALLBACK in policy.at(stage) for stage in stages)
        if falls and "fallback" not in root:
            told.add(level)
            message = f"level {level} falls back, and the contract names no build: fallback: {{build: NAME}}"
            yield Problem(path, "missing-fallback", message)


def _policies(root: dict[str, Any]) -> dict[Level, LevelActions]:
    """The policy, level by level, so that a mistake in one does not hide the others."""
    if "escalation" not in root:
        return default_escalation()
    found = {}
    for word, raw in _items(root, "escalation", dict).items():
        level, policy = part(Level, word), part(LevelActions, raw)
        if level is not None and policy is not None:
            found[level] = policy
    return found


def _unread(root: dict[str, Any], level: Level) -> bool:
    """Whether the level's actions may be among what does not validate, which is reported already."""
    written = root.get("escalation")
    return not isinstance(written, dict) or level.value in written or not {*written} <= {*Level}


def _repeated(level: Level, root: dict[str, Any]) -> Iterator[Problem]:
    raw = _items(root, "escalation", dict).get(level.value)
    lists = {(): raw} if isinstance(raw, list) else {(key,): v for key, v in (raw or {}).items()}
    for key, actions in lists.items():
        for position, action in enumerate(actions):
            if action in actions[:position]:
                at: Path = ("escalation", level.value, *key, position)
                yield Problem(at, "duplicate-item", f"action {action} is named twice")


def _stages(root: dict[str, Any]) -> Iterator[Problem]:
    for stage, plan in _items(root, "stages", dict).items():
        if not isinstance(plan, dict) or "deadline" not in plan:
            continue
        try:
            shortest, deadline = duration(plan.get("min_duration", 0)), duration(plan["deadline"])
        except ValueError:
            continue
        if deadline <= shortest:
            message = f"stage {stage} can never pass: its deadline is not after its min_duration"
            yield Problem(("stages", stage, "deadline"), "deadline", message)
