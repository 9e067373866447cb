"""Lint of everything around the clauses: stages, actions, observability, names, builds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from contracts.builds import FINGERPRINT_FIELDS, Fingerprint, matches
from contracts.diagnostics import Problem
from contracts.metrics import METRICS, nearest
from contracts.model import STAGES, Action, Contract, Family, Level, Stage

SERVING = (Stage.CANARY, Stage.FULL)  # the stages at which users meet the candidate
DRIFT = (Family.NUMERICAL, Family.STATISTICAL)


def policy(contract: Contract) -> Iterator[Problem]:
    """Every finding about the parts of a contract that are not limits."""
    yield from _stages(contract)
    yield from _actions(contract)
    yield from _observability(contract)
    yield from _names(contract)


def _stages(contract: Contract) -> Iterator[Problem]:
    for index, clause in enumerate(contract.clauses):
        if "traffic" in METRICS[clause.metric].needs and Stage.OFFLINE_CI in clause.stages:
            rest = ", ".join(stage for stage in clause.stages if stage is not Stage.OFFLINE_CI)
            message = (
                f"clause {clause.id}: {clause.metric} is about served traffic, of which offline_ci has "
                f"none, so no pair can pass it there; name its stages: [{rest or 'canary, full'}]"
            )
            yield Problem(("clauses", index), "no-traffic", message)
    for stage in STAGES:
        if not contract.clauses_at(stage):
            message = f"no clause is judged at {stage}: nothing can pass it"
            yield Problem(("clauses",), "empty-stage", message)


def _actions(contract: Contract) -> Iterator[Problem]:
    told: set[str] = set()
    for index, clause in enumerate(contract.clauses):
        level = clause.level
        asked = {stage: frozenset(contract.actions_at(level, stage)) for stage in clause.stages}
        if any(Action.GUARD in actions for actions in asked.values()) and contract.guard is None:
            missing = [name for name in clause.slices if f"guard {name}" not in told]
            told |= {f"guard {name}" for name in missing}
            if missing:
                message = (
                    f"level {level} guards slices, and no build is named for {_listed('slice', missing)}: "
                    "guard: {build: NAME}"
                )
                yield Problem(("clauses", index, "level"), "missing-guard", message)
        own = {Level.L2: {Action.GUARD, Action.FREEZE, Action.FALLBACK}, Level.L3: {Action.FALLBACK}}
        mild = [stage for stage, actions in asked.items() if level in own and not actions & own[level]]
        if mild and level not in told:
            told.add(level)
            kept = "freezes" if level is Level.L2 else "falls back"
            message = f"level {level} {kept} all the same at {', '.join(mild)}: it names no action that does"
            yield Problem(("escalation", level.value), "milder-than-level", message)


def _observability(contract: Contract) -> Iterator[Problem]:
    """Slices that are judged on users' traffic with nothing that watches the measurement of it."""
    for stage in SERVING:
        at_stage = contract.clauses_at(stage)
        watched = {name for c in at_stage if c.family is Family.OBSERVABILITY for name in c.slices}
        judged = {
            name: index
            for index, c in reversed([*enumerate(contract.clauses)])
            if c.family in DRIFT and stage in c.stages
            for name in c.slices
        }
        missing = [] if "all" in watched else [name for name in judged if name not in watched]
        if missing:
            message = (
                f"no observability clause at {stage} covers {_listed('slice', sorted(missing))}: without "
                "dual_evaluation_coverage or telemetry_age nothing says that drift there is still measured"
            )
            yield Problem(("clauses", min(judged[name] for name in missing)), "unobserved-slice", message)


def _listed(noun: str, names: list[str]) -> str:
    return f"{noun} {names[0]}" if len(names) == 1 else f"{noun}s {', '.join(names)}"


def _names(contract: Contract) -> Iterator[Problem]:
    used = contract.slices_used()
    for name in contract.slices:
        if name not in used and name != "all":
            yield Problem(("slices", name), "unused-slice", f"slice {name!r} is in no clause")
    for side, predicate in (("train", contract.pair.train), ("inference", contract.pair.inference)):
        if not predicate:
            message = f"pair.{side} asks for nothing: any build is it"
            yield Problem(("pair", side), "empty-predicate", message)
        for key in predicate:
            close = nearest(key, FINGERPRINT_FIELDS)
            if key not in FINGERPRINT_FIELDS and close:
                message = f"no fingerprint field is called {key!r}; did you mean {close!r}?"
                yield Problem(("pair", side, key), "unknown-attribute", message)


def builds_named(contract: Contract, builds: Mapping[str, Fingerprint]) -> Iterator[Problem]:
    """Guard and fallback builds that are the candidate itself."""
    for key, ref in (("fallback", contract.fallback), ("guard", contract.guard)):
        if ref is None or ref.build not in builds:
            continue
        if not matches(contract.pair.inference, builds[ref.build]):  # no mismatch
            message = f"{key} build {ref.build!r} is the candidate itself: it matches pair.inference"
            yield Problem((key, "build"), f"{key}-is-candidate", message)
