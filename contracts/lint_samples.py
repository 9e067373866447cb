"""Lint of sample sizes: clauses that `min_prompts` can never certify, or never violate [S2], [S3]."""

from __future__ import annotations

from collections.abc import Iterator

from contracts.diagnostics import Problem
from contracts.metrics import METRICS, Shape
from contracts.model import Clause, ClauseKind, Contract, Stage
from contracts.sample_sizes import (
    MOST_EXCEEDING,
    can_alarm,
    draws_needed,
    is_census,
    is_exact,
    noun,
    one_violates,
    share_limit,
)


def samples(contract: Contract) -> Iterator[Problem]:
    """Every clause on a share, at every stage that is no census, with the numbers it needs."""
    for index, clause in enumerate(contract.clauses):
        rho = share_limit(clause, contract)
        if rho is None or clause.statistic is not None or not 0.0 < rho < 1.0:
            continue
        # stages that lack the same number are told together
        groups: dict[tuple[str, tuple[int | None, ...]], list[Stage]] = {}
        for stage in clause.stages:
            found = None if is_census(clause, contract, stage) else _shortage(clause, contract, stage)
            if found is not None:
                groups.setdefault(found, []).append(stage)
        for (code, counts), stages in groups.items():
            message = _in_words(code, clause, rho, counts, stages, contract)
            yield Problem(("clauses", index), code, message)


def _shortage(clause: Clause, contract: Contract, stage: Stage) -> tuple[str, tuple[int | None, ...]] | None:
    """The code and the needed draws with 0, 1, 2, 3 of them beyond; None where `min_prompts` will do."""
    have = contract.stages.min_prompts(stage)
    least = draws_needed(clause, contract, stage)
    if least is None:
        return "no-conforming-pair", ()
    if have < least:
        return "too-few-prompts", _table(clause, contract, stage)
    if not can_alarm(clause, contract, stage):
        return "tolerates-all", ()
    # a share of decisions may be beyond in part, and a stream goes on until it is decided
    if one_violates(clause) or not is_exact(clause) or stage is not Stage.OFFLINE_CI:
        return None
    second = draws_needed(clause, contract, stage, 1)
    return (
        ("no-exceedance-allowed", _table(clause, contract, stage))
        if second is None or have < second
        else None
    )


def _table(clause: Clause, contract: Contract, stage: Stage) -> tuple[int | None, ...]:
    most = 0 if one_violates(clause) else MOST_EXCEEDING
    return tuple(draws_needed(clause, contract, stage, k) for k in range(most + 1))


def _in_words(
    code: str,
    clause: Clause,
    rho: float,
    counts: tuple[int | None, ...],
    stages: list[Stage],
    contract: Contract,
) -> str:
    have = ", ".join(f"{stage} {contract.stages.min_prompts(stage)}" for stage in stages)
    certain = f"{_share(clause)} {rho:g} at alpha {contract.certainty.alpha:g}"
    if code == "tolerates-all":
        return (
            f"clause {clause.id} tolerates every failure on min_prompts ({have}): {certain} can be "
            f"certified, and could not be violated were every {noun(clause)} beyond the limit; lower the "
            f"{_share(clause)} or raise min_prompts"
        )
    if code == "no-conforming-pair":
        return (
            f"clause {clause.id} can never be certified at {', '.join(stages)}, so no pair can ever pass: "
            f"{certain} needs more {noun(clause)}s than anyone has"
        )
    table = _numbers(counts, noun(clause))
    if code == "no-exceedance-allowed":
        return (
            f"clause {clause.id} is certified on min_prompts ({have}) only with no exceedance at all: "
            f"{certain} needs {table}"
        )
    return f"clause {clause.id} cannot be certified on min_prompts ({have}): {certain} needs {table}"


def _share(clause: Clause) -> str:
    if METRICS[clause.metric].shape is Shape.DECISION:
        return "exceedance" if clause.kind is ClauseKind.SOFT else "hard_exceedance"
    return clause.metric if clause.limit.value > 0.0 else "hard_exceedance"


def _numbers(counts: tuple[int | None, ...], noun: str) -> str:
    """`299 prompts of each slice with none of them beyond the limit, 473 with 1, ...`."""
    first = f"{counts[0]} {noun}s of each slice, all within the limit"
    more = [f"{n if n is not None else 'too many'} with {k} beyond it" for k, n in enumerate(counts)][1:]
    return ", ".join([first, *more])
