"""Π: what a judgement sets in motion."""

from __future__ import annotations

from contracts.model import Action, ClauseKind, Contract, Level
from contracts.verdicts import Judgement, Outcome, Verdict


def violations(judgement: Judgement) -> tuple[Verdict, ...]:
    """The verdicts that escalate: violated, or a hard clause that met an unmeasurable decision."""
    return tuple(
        v
        for v in judgement.verdicts
        if v.verdict is Outcome.VIOLATED or (v.verdict is Outcome.UNMEASURABLE and v.kind is ClauseKind.HARD)
    )


def actions(contract: Contract, judgement: Judgement) -> tuple[Action, ...]:
    """The actions, at the judgement's stage, of every level violated; each once, in the order of `Action`.

    A contract that gives a level no action gets none for it; nothing violated means no action.
    """
    levels = {v.level for v in violations(judgement)}
    asked = {action for level in levels for action in contract.actions_at(level, judgement.stage)}
    return tuple(action for action in Action if action in asked)


def violated_slices(judgement: Judgement, level: Level | None = None) -> tuple[str, ...]:
    """Names of the slices with a violation, of `level` only where given, sorted."""
    return tuple(sorted({v.slice for v in violations(judgement) if level is None or v.level == level}))
