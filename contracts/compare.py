"""Two versions of a contract, part by part: tightened, loosened, added, removed, incomparable.

*Tightened* means that whatever keeps the new part kept the old one too, *loosened* the reverse;
what is neither is incomparable, and nothing is called tightened because it looks so. Certainty counts
as part of the promise: a smaller alpha asks for more evidence before anything passes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from contracts import phrases
from contracts.implications import form_implies, further_out
from contracts.metrics import METRICS
from contracts.model import (
    STAGES,
    Action,
    Clause,
    ClauseKind,
    Comparator,
    Contract,
    Level,
    Limit,
    StagePlans,
)
from contracts.reductions import DEFAULT_BINS


class Direction(StrEnum):
    """What became of one part."""

    TIGHTENED = "tightened"
    LOOSENED = "loosened"
    ADDED = "added"
    REMOVED = "removed"
    INCOMPARABLE = "incomparable"


TIGHTENED, LOOSENED, INCOMPARABLE = Direction.TIGHTENED, Direction.LOOSENED, Direction.INCOMPARABLE
LOOSER = frozenset({LOOSENED, Direction.REMOVED, INCOMPARABLE})


class Change(BaseModel):
    """What became of one part of the contract.

    Attributes:
        part: `clause S2`, `slice long`, `certainty`, `stage canary`, `escalation L2` ...
        direction: over all that changed in the part: one way, or incomparable.
        details: what changed, old → new, each in a few words.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    part: str
    direction: Direction
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        told = f": {'; '.join(self.details)}" if self.details else ""
        return f"{self.direction} {self.part}{told}"


class Comparison(BaseModel):
    """All changes between two versions; equal meaning gives none.

    `loosened` says whether anything was loosened, removed, or changed incomparably: what a
    reviewer must see before the new version promotes anything.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    old: str
    new: str
    changes: tuple[Change, ...]
    loosened: bool


def compare(old: Contract, new: Contract) -> Comparison:
    """Compare two versions, clauses by id. Owner and description are no promise and not compared."""
    changes = tuple(_changes(old, new))
    return Comparison(
        old=f"{old.metadata.name}@{old.metadata.version}",
        new=f"{new.metadata.name}@{new.metadata.version}",
        changes=changes,
        loosened=any(change.direction in LOOSER for change in changes),
    )


class _Detail(NamedTuple):
    direction: Direction
    text: str


def _changes(old: Contract, new: Contract) -> Iterator[Change]:
    before, after = ({clause.id: clause for clause in one.clauses} for one in (old, new))
    for name in dict.fromkeys([*before, *after]):
        yield from _part(f"clause {name}", before.get(name), after.get(name), _clause)
    for name in dict.fromkeys([*old.slices_used(), *new.slices_used()]):
        mine, theirs = old.slices_used().get(name), new.slices_used().get(name)
        if mine is not None and theirs is not None and mine != theirs:
            yield Change(part=f"slice {name}", direction=INCOMPARABLE, details=("defined differently",))
    for side in ("train", "inference"):
        yield from _whole(f"pair.{side}", _predicate(getattr(old.pair, side), getattr(new.pair, side)))
    yield from _whole("sampling", _fields(old.sampling, new.sampling))
    yield from _whole("certainty", _certainty(old, new))
    yield from _part("reward", old.reward, new.reward, _fields)
    yield from _part("rl", old.rl, new.rl, _fields)
    for level in Level:
        yield from _whole(f"escalation {level}", _actions(old, new, level))
    for key in ("guard", "fallback"):
        yield from _part(key, getattr(old, key), getattr(new, key), _fields)
    yield from _stages(old.stages, new.stages)


def _part(part: str, old: Any, new: Any, details: Any) -> Iterator[Change]:
    if old is None and new is None:
        return
    if old is None:
        yield Change(part=part, direction=Direction.ADDED)
    elif new is None:
        yield Change(part=part, direction=Direction.REMOVED)
    else:
        yield from _whole(part, details(old, new))


def _whole(part: str, details: Iterable[_Detail]) -> Iterator[Change]:
    found = tuple(details)
    if found:
        ways = {detail.direction for detail in found}
        direction = ways.pop() if len(ways) == 1 else INCOMPARABLE
        yield Change(part=part, direction=direction, details=tuple(detail.text for detail in found))


def _ordered(name: str, old: Any, new: Any, more_is_tighter: int) -> Iterator[_Detail]:
    """A number that tightens as it grows (+1), as it shrinks (-1), or is not ordered (0)."""
    if old == new:
        return
    text = f"{name} {_show(old)} → {_show(new)}"
    if more_is_tighter == 0:
        yield _Detail(INCOMPARABLE, text)
        return
    # None is "never" for a deadline and "not at all" for a duration: the loose end of both
    absent = old is None or new is None
    grew = old is None if absent else new > old
    tighter = grew if absent else grew == (more_is_tighter > 0)
    yield _Detail(TIGHTENED if tighter else LOOSENED, text)


# 1: more asks for more; -1: less does; what is not here is not ordered.
_ORDER = {
    "kernel_budget_share": -1, "return_after": 1, "alpha": -1, "hard_exceedance": -1, "min_prompts": 1,
    "min_duration": 1, "deadline": -1, "mirror": 1, "approval_ttl": -1, "audit_rate": 1,
}  # fmt: skip


def _fields(old: BaseModel, new: BaseModel) -> Iterator[_Detail]:
    for name in type(old).model_fields:
        yield from _ordered(name, getattr(old, name), getattr(new, name), _ORDER.get(name, 0))


def _show(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        return " ".join(f"{key} {_show(one)}" for key, one in value.model_dump(exclude_none=True).items())
    if isinstance(value, tuple | frozenset | set):
        return "[" + ", ".join(_show(one) for one in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


# Clauses


def _clause(old: Clause, new: Clause) -> Iterator[_Detail]:
    for name in ("family", "metric", "relative_to", "k"):
        yield from _ordered(name, getattr(old, name), getattr(new, name), 0)
    yield from _ordered("bins", old.bins or DEFAULT_BINS, new.bins or DEFAULT_BINS, 0)
    yield from _ordered("binning", old.binning or "equal_width", new.binning or "equal_width", 0)
    yield from _statistic(old, new)
    if old.metric == new.metric:
        yield from _limit(old.limit, new.limit, METRICS[old.metric].low >= 0.0, old, new)
    else:
        yield from _ordered("limit", old.limit, new.limit, 0)
    yield from _kind(old, new)
    yield from _sets("slices", set(old.slices), set(new.slices))
    yield from _sets("stages", set(old.stages), set(new.stages))
    if old.phase is not new.phase:
        direction = TIGHTENED if new.phase is None else LOOSENED if old.phase is None else INCOMPARABLE
        yield _Detail(direction, f"phase {old.phase or 'both'} → {new.phase or 'both'}")
    yield from _ordered("level", old.level, new.level, 1)


def _statistic(old: Clause, new: Clause) -> Iterator[_Detail]:
    if old.statistic is new.statistic:
        return
    every = old.metric == new.metric and old.kind is new.kind is ClauseKind.HARD
    if every and None in (old.statistic, new.statistic):
        direction = TIGHTENED if new.statistic is None else LOOSENED  # every decision, or their mean
    elif every and further_out(new, old):
        direction = TIGHTENED
    elif every and further_out(old, new):
        direction = LOOSENED
    else:
        direction = INCOMPARABLE
    yield _Detail(direction, f"statistic {old.statistic or 'none'} → {new.statistic or 'none'}")


def _limit(old: Limit, new: Limit, never_negative: bool, before: Clause, after: Clause) -> Iterator[_Detail]:
    if old == new:
        return
    unit = "" if before.relative_to or after.relative_to else METRICS[before.metric].unit
    words = [f"{one.comparator} {phrases.number(one.value, unit)}" for one in (old, new)]
    text = f"limit {words[0]} → {words[1]}"
    tighter, looser = _within(new, old, never_negative), _within(old, new, never_negative)
    if tighter and looser:
        return  # |m| <= x and m <= x are one limit where m is never negative
    yield _Detail(TIGHTENED if tighter else LOOSENED if looser else INCOMPARABLE, text)


def _within(inner: Limit, outer: Limit, never_negative: bool) -> bool:
    """Whether whatever keeps `inner` keeps `outer`."""
    if Comparator.GTE in (inner.comparator, outer.comparator):
        return inner.comparator is outer.comparator and inner.value >= outer.value
    two_sided = inner.comparator is Comparator.ABS_LTE or never_negative
    return inner.value <= outer.value and (outer.comparator is Comparator.LTE or two_sided)


def _kind(old: Clause, new: Clause) -> Iterator[_Detail]:
    """hard, soft, exceedance, per and aggregate: how much of what is counted may lie beyond."""
    if _form(old) == _form(new):
        yield from _ordered("exceedance", old.exceedance, new.exceedance, -1)
        return
    text = f"{_spell(old)} → {_spell(new)}"
    if old.statistic is None and new.statistic is None and old.kind is not new.kind:
        yield _Detail(TIGHTENED if new.kind is ClauseKind.HARD else LOOSENED, text)
    elif old.kind is new.kind is ClauseKind.SOFT:
        less, more = (old.exceedance or 0.0), (new.exceedance or 0.0)
        if form_implies(new, old) and more <= less:
            yield _Detail(TIGHTENED, text)
        elif form_implies(old, new) and less <= more:
            yield _Detail(LOOSENED, text)
        else:
            yield _Detail(INCOMPARABLE, text)
    else:
        yield _Detail(INCOMPARABLE, text)


def _form(clause: Clause) -> tuple[str, str, str | None]:
    return clause.kind.value, clause.per, clause.aggregate


def _spell(clause: Clause) -> str:
    per = f"per {clause.per}" + (f" ({clause.aggregate})" if clause.aggregate else "")
    share = f" exceedance {clause.exceedance:g}" if clause.exceedance is not None else ""
    return f"{clause.kind}{share} {per}"


def _sets(name: str, old: set[Any], new: set[Any]) -> Iterator[_Detail]:
    """A set of which every member adds a demand."""
    if old == new:
        return
    direction = TIGHTENED if old < new else LOOSENED if new < old else INCOMPARABLE
    gone, come = (", ".join(_show(one) for one in sorted(some)) for some in (old - new, new - old))
    parts = [f"without {gone}"] if gone else []
    parts += [f"with {come}"] if come else []
    yield _Detail(direction, f"{name} {' and '.join(parts)}")


# Everything else


def _predicate(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[_Detail]:
    """Each key narrows the builds a contract is about."""
    mine, theirs = ({f"{key} {json.dumps(value)}" for key, value in one.items()} for one in (old, new))
    yield from _sets("predicate", mine, theirs)


_CORRECTIONS = ("none", "holm", "bonferroni")  # alarms from most to fewest; e-bh is not in the order


def _certainty(old: Contract, new: Contract) -> Iterator[_Detail]:
    mine, theirs = old.certainty, new.certainty
    for name in ("alpha", "hard_exceedance"):
        yield from _ordered(name, getattr(mine, name), getattr(theirs, name), _ORDER[name])
    a, b = mine.alarm_correction, theirs.alarm_correction
    if a != b:
        known = a in _CORRECTIONS and b in _CORRECTIONS
        earlier = known and _CORRECTIONS.index(b) < _CORRECTIONS.index(a)
        direction = INCOMPARABLE if not known else TIGHTENED if earlier else LOOSENED
        yield _Detail(direction, f"alarm_correction {a} → {b}")


def _actions(old: Contract, new: Contract, level: Level) -> Iterator[_Detail]:
    for stage in STAGES:
        mine, theirs = (set(one.actions_at(level, stage)) for one in (old, new))
        if mine != theirs:
            yield from _sets(f"at {stage}", _values(mine), _values(theirs))


def _values(actions: set[Action]) -> set[str]:
    return {action.value for action in actions}


def _stages(old: StagePlans, new: StagePlans) -> Iterator[Change]:
    for stage in STAGES:
        yield from _whole(f"stage {stage}", _plan(getattr(old, stage.value), getattr(new, stage.value)))


def _plan(old: BaseModel, new: BaseModel) -> Iterator[_Detail]:
    for name in type(old).model_fields:
        mine, theirs = getattr(old, name), getattr(new, name)
        if name == "steps":
            yield from _sets("steps", set(mine), set(theirs))
        elif name == "approval" and mine != theirs:
            yield _Detail(TIGHTENED if theirs == "required" else LOOSENED, f"approval {mine} → {theirs}")
        elif name == "census" and mine != theirs:
            yield _Detail(INCOMPARABLE, f"census {mine} → {theirs}")
        else:
            yield from _ordered(name, mine, theirs, _ORDER.get(name, 0))
