"""What reads as a contract but is unwise: clauses no evidence could certify, bounds that say nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Literal

from contracts import bounds
from contracts.builds import FINGERPRINT_FIELDS, Fingerprint, matches
from contracts.diagnostics import Diagnostic, Path, in_order
from contracts.document import Document
from contracts.metrics import METRICS, Shape, nearest
from contracts.model import (
    STAGES,
    Action,
    Clause,
    ClauseKind,
    Comparator,
    Contract,
    RlBudget,
    Stage,
)
from contracts.semantics import possible

VACUOUS_TV = 0.5  # theory.md, Vacuity
VACUOUS_RATIO = 10.0

NEEDS_TRAFFIC = frozenset({"dual_evaluation_coverage", "logprob_capture_rate", "telemetry_age"})

Severity = Literal["error", "warning"]
Finding = tuple[Path, str, Severity, str]


def lint(document: Document, builds: Mapping[str, Fingerprint] | None = None) -> list[Diagnostic]:
    """Warnings and errors about a contract that reads, in order of place.

    `builds` are the fingerprints of registered builds by name, where they are known; with
    them the guard and fallback builds are checked too.
    """
    contract = document.contract
    findings = [
        *_sample_sizes(contract),
        *_vacuous(contract),
        *_limits(contract),
        *_rl_budget(contract),
        *_stages(contract),
        *_actions(contract),
        *_names(contract),
        *_builds(contract, builds or {}),
    ]
    return list(
        in_order(
            Diagnostic(document.file, *document.locate(*path), code, severity, message)
            for path, code, severity, message in findings
        )
    )


# Sample sizes


def _sample_sizes(contract: Contract) -> Iterator[Finding]:
    """min_prompts on which a clause can never be certified, not even without any exceedance [S2]."""
    for index, clause in enumerate(contract.clauses):
        rho = _exceedance(clause, contract)
        if rho is None:
            continue
        short: dict[int, list[Stage]] = {}
        for stage in (s for s in STAGES if s in clause.stages):
            if stage is Stage.OFFLINE_CI and contract.stages.offline_ci.census:
                continue
            needed = prompts_needed(clause, rho, contract.certainty.alpha, stage)
            if needed is None or contract.stages.min_prompts(stage) < needed:
                short.setdefault(needed or 0, []).append(stage)
        for needed, stages in short.items():
            yield (
                ("clauses", index),
                "too-few-prompts",
                "warning",
                _too_few(clause, rho, needed, stages, contract),
            )


def _too_few(clause: Clause, rho: float, needed: int, stages: list[Stage], contract: Contract) -> str:
    have = ", ".join(f"{stage} {contract.stages.min_prompts(stage)}" for stage in stages)
    least = f"{needed} prompts of each slice" if needed else "more prompts than anyone has"
    return (
        f"clause {clause.id} cannot be certified on min_prompts ({have}): exceedance {rho:g} at alpha "
        f"{contract.certainty.alpha:g} needs {least}, all within the limit"
    )


def _exceedance(clause: Clause, contract: Contract) -> float | None:
    """The exceedance probability the clause is certified against; None where it is no share."""
    if METRICS[clause.metric].shape is not Shape.DECISION or clause.statistic is not None:
        return None
    return clause.exceedance if clause.kind is ClauseKind.SOFT else contract.certainty.hard_exceedance


def prompts_needed(clause: Clause, rho: float, alpha: float, stage: Stage) -> int | None:
    """Fewest prompts, none exceeding, that certify the clause at `stage`; None when out of reach.

    A hard clause, and a fixed sample of one indicator a prompt, need ln(alpha)/ln(1 − rho) [S2];
    per-prompt shares and streams pay for their bounds' generality [S3] [S5].
    """
    from contracts import intervals, sequential

    fixed = stage is Stage.OFFLINE_CI and clause.per == "prompt"
    if clause.kind is ClauseKind.HARD or fixed:
        return intervals.prompts_needed(rho, alpha)
    return sequential.prompts_needed(rho, alpha)


# Limits that say nothing


def _vacuous(contract: Contract) -> Iterator[Finding]:
    """Logit clauses whose bound on total variation [B1] says nothing, or nothing beside a tv clause."""
    measured = [
        c.limit.value for c in contract.clauses if c.metric == "tv" and c.limit.comparator is Comparator.LTE
    ]
    for index, clause in enumerate(contract.clauses):
        implied = _implied_tv(clause, contract.sampling.temperature)
        at: Path = ("clauses", index, "limit")
        if implied is None:
            continue
        if implied >= VACUOUS_TV:
            message = (
                f"clause {clause.id} implies no more than total variation <= {implied:.3g} [B1]: as a bound "
                "on behaviour it is vacuous; state a tv or kl clause for that"
            )
            yield at, "vacuous-bound", "warning", message
        elif measured and implied > VACUOUS_RATIO * min(measured):
            message = (
                f"clause {clause.id} implies total variation <= {implied:.3g} [B1], more than "
                f"{VACUOUS_RATIO:g} times the tv clause's {min(measured):g}: it cannot stand in for it"
            )
            yield at, "vacuous-bound", "warning", message


def _implied_tv(clause: Clause, temperature: float) -> float | None:
    """The total variation a logit clause's limit implies for one decision [B1]; None for other metrics."""
    limit = clause.limit.value
    if clause.limit.comparator is Comparator.GTE:
        return None
    match clause.metric:
        case "logit_osc":
            return bounds.tv_from_osc(limit / temperature)
        case "logit_linf":
            return bounds.tv_from_osc(bounds.osc_from_linf(limit) / temperature)
        case "logit_l2" | "logit_l2_centered":
            return bounds.tv_from_l2(limit, temperature)
        case _:
            return None


def _limits(contract: Contract) -> Iterator[Finding]:
    """Limits nothing can break, and limits on the harmless side."""
    for index, clause in enumerate(contract.clauses):
        metric, limit = METRICS[clause.metric], clause.limit
        at: Path = ("clauses", index, "limit", limit.comparator.value)
        low, high = (0.0, math.inf) if clause.relative_to else possible(metric, contract.reward)
        always = {
            Comparator.LTE: limit.value >= high,
            Comparator.GTE: limit.value <= low,
            Comparator.ABS_LTE: limit.value >= max(abs(low), abs(high)),
        }
        if always[limit.comparator]:
            message = f"clause {clause.id} can never fail: {metric.id} lies in [{low:g}, {high:g}]"
            yield at, "cannot-fail", "warning", message
        elif metric.worse == "up" and limit.comparator is Comparator.GTE and math.isfinite(metric.low):
            message = (
                f"clause {clause.id} asks for {metric.id} of at least {limit.value:g}: did you mean lte?"
            )
            yield at, "direction", "warning", message
        elif metric.worse == "down" and limit.comparator is not Comparator.GTE:
            message = f"clause {clause.id} asks for {metric.id} of at most {limit.value:g}: did you mean gte?"
            yield at, "direction", "warning", message


def _rl_budget(contract: Contract) -> Iterator[Finding]:
    """Log-ratio limits against the clip range the update needs [R4]."""
    if contract.rl is None:
        return
    room = clip_room(contract.rl)
    for index, clause in enumerate(contract.clauses):
        if clause.metric not in ("abs_log_ratio", "log_ratio") or clause.limit.comparator is Comparator.GTE:
            continue
        at: Path = ("clauses", index, "limit")
        share = abs(clause.limit.value) / room
        if share >= 1.0:
            message = (
                f"clause {clause.id} lets the kernel pair use the whole clip range [R4]: the limit must be "
                f"below {room:.3g} nats"
            )
            yield at, "beyond-clip", "error", message
        elif share > contract.rl.kernel_budget_share:
            budget = contract.rl.kernel_budget_share
            message = (
                f"clause {clause.id} lets the kernel pair use {share:.0%} of the clip range [R4], the budget "
                f"is {budget:.0%}: at most {budget * room:.3g} nats"
            )
            yield at, "beyond-budget", "warning", message


def clip_room(rl: RlBudget) -> float:
    """min(−log(1 − ε_lo), log(1 + ε_hi)) in nats: log-ratio drift at which no update is left [R4]."""
    return min(-math.log1p(-rl.clip.low), math.log1p(rl.clip.high))


# Stages, actions, names


def _stages(contract: Contract) -> Iterator[Finding]:
    for index, clause in enumerate(contract.clauses):
        if clause.metric in NEEDS_TRAFFIC and Stage.OFFLINE_CI in clause.stages:
            message = (
                f"clause {clause.id}: {clause.metric} is about served traffic, of which offline_ci has "
                "none, so it cannot pass there; name its stages"
            )
            yield ("clauses", index), "no-traffic", "warning", message
    for stage in STAGES:
        if not contract.clauses_at(stage):
            yield (
                ("clauses",),
                "empty-stage",
                "warning",
                f"no clause is judged at {stage}: nothing can pass it",
            )


def _actions(contract: Contract) -> Iterator[Finding]:
    for index, clause in enumerate(contract.clauses):
        guards = any(Action.GUARD in contract.actions_at(clause.level, stage) for stage in clause.stages)
        if guards and contract.guard is None:
            message = f"level {clause.level} guards slices, and no build is named: guard: {{build: NAME}}"
            yield ("clauses", index, "level"), "missing-guard", "warning", message
            return


def _names(contract: Contract) -> Iterator[Finding]:
    used = contract.slices_used()
    for name in contract.slices:
        if name not in used and name != "all":
            yield ("slices", name), "unused-slice", "warning", f"slice {name!r} is in no clause"
    for side, predicate in (("train", contract.pair.train), ("inference", contract.pair.inference)):
        if not predicate:
            yield (
                ("pair", side),
                "empty-predicate",
                "warning",
                f"pair.{side} asks for nothing: any build is it",
            )
        for key in predicate:
            close = nearest(key, FINGERPRINT_FIELDS)
            if key not in FINGERPRINT_FIELDS and close:
                message = f"no fingerprint field is called {key!r}; did you mean {close!r}?"
                yield ("pair", side, key), "unknown-attribute", "warning", message


def _builds(contract: Contract, builds: Mapping[str, Fingerprint]) -> Iterator[Finding]:
    for key, ref in (("fallback", contract.fallback), ("guard", contract.guard)):
        if ref is None or ref.build not in builds:
            continue
        if not matches(contract.pair.inference, builds[ref.build]):
            message = f"{key} build {ref.build!r} is the candidate itself: it matches pair.inference"
            yield (key, "build"), f"{key}-is-candidate", "error", message
