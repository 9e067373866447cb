"""Whether two kernels are the pair a contract is about, and whether it can be measured as asked."""

from __future__ import annotations

from collections.abc import Sequence

from contracts.builds import BuildSpec, Fingerprint, matches
from contracts.model import Contract, Scalar, Stage
from workers.draws import InvalidEvaluation

RATIOS = frozenset({"log_ratio", "abs_log_ratio", "clip_fraction_at_zero", "ess"})


class PairMismatch(InvalidEvaluation):
    """The kernels are not the ones the contract's `pair` is about; `mismatches` says why."""

    def __init__(self, mismatches: Sequence[str]) -> None:
        super().__init__("the kernels are not the contract's pair: " + "; ".join(mismatches))
        self.mismatches = tuple(mismatches)


class TruncatedRatio(InvalidEvaluation):
    """Ratios of truncated distributions are shifted by the kept mass, hence refused [S8]."""


def refuse_truncated_ratios(contract: Contract, stage: Stage) -> None:
    """Raise TruncatedRatio when a clause of the stage needs what truncation censors [S8]."""
    wanting = [clause for clause in contract.clauses_at(stage) if clause.metric in RATIOS]
    if contract.sampling.truncated and wanting:
        names = ", ".join(f"{clause.id} ({clause.metric})" for clause in wanting)
        raise TruncatedRatio(
            f"clauses {names} need importance ratios, which top_p, top_k and min_p shift by the log of the "
            "kept mass; measure them without truncation"
        )


def refuse_other_builds(contract: Contract, train: BuildSpec, inference: BuildSpec) -> None:
    """Raise PairMismatch for what a build says of itself before it is loaded: engine and options."""

    def asked(predicate: dict[str, Scalar], build: BuildSpec) -> list[str]:
        known = {name: predicate[name] for name in predicate.keys() & {"engine", "dtype"} & _said(build)}
        return matches(known, Fingerprint(engine=build.engine, dtype=str(build.options.get("dtype"))))

    _refuse(asked(contract.pair.train, train), asked(contract.pair.inference, inference))


def refuse_other_kernels(contract: Contract, train: Fingerprint, inference: Fingerprint) -> None:
    """Raise PairMismatch when a running kernel is not what the contract's `pair` asks."""
    _refuse(matches(contract.pair.train, train), matches(contract.pair.inference, inference))


def _said(build: BuildSpec) -> set[str]:
    return {"engine", *build.options}


def _refuse(train: Sequence[str], inference: Sequence[str]) -> None:
    found = [f"train: {text}" for text in train] + [f"inference: {text}" for text in inference]
    if found:
        raise PairMismatch(found)
