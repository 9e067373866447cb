"""A contract against faults of real engines, one after the other, on one checkpoint.

Each fault of `workers.kernels.faults` is put into the serving kernel and the pair is judged by the
contract; what the clean pair violates already catches nothing. Two negative controls, and F6, must pass.
The contract's `pair` is not asked: torch kernels stand in for whichever engine serves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from contracts import report
from contracts.builds import BuildSpec, parse_build
from contracts.evidence import Provenance
from contracts.judge import judge
from contracts.model import ClauseKind, Contract, Family, Pair, Stage
from contracts.verdicts import Outcome, Verdict
from workers.calibrate import Reordered
from workers.draws import Draw
from workers.evaluation import evaluate
from workers.kernels.faults import FAULTS, Expectation, Fault, FaultNotApplicable, Faulty, inject
from workers.kernels.faults.attention import WINDOW
from workers.kernels.loading import load
from workers.kernels.protocol import Kernel
from workers.paired import TokensDiffer
from workers.progress import Report, silent
from workers.replay import Replay

CAUGHT, MISSED, NOT_APPLICABLE = "caught", "missed", "not applicable"
PASSED, ALARMED, CALIBRATED = "passed", "false alarm", "left to kc calibrate"
BAD = frozenset({MISSED, ALARMED})
CLEAN, EAGER, ORDER = "clean pair", "float32 sdpa / eager", "float32, batch order"
STREAM = 256  # draws F15 is watched for at least
CHEAP = 128  # tokens of the prompts that are repeated for it
_MEASURED = frozenset({Family.NUMERICAL, Family.STATISTICAL})  # what requests took says nothing here
_STREAMS = (Stage.SHADOW, Stage.CANARY, Stage.FULL)

Cell = tuple[str, str, str | None]


@dataclass(frozen=True, slots=True)
class Result:
    """What the contract made of one fault or control.

    Attributes:
        id: F1 to F18, or the control's name.
        outcome: caught, missed, not applicable, left to kc calibrate; of what must pass, passed or
            false alarm.
        clause, metric, slice, phase: of the verdict that caught it, or alarmed; empty for none.
        observed, limit: of that verdict, with units.
        clauses: every clause that did, by its id.
        reason: a sentence.
    """

    id: str
    name: str
    outcome: str
    clause: str = ""
    metric: str = ""
    slice: str = ""
    phase: str = ""
    observed: str = ""
    limit: str = ""
    clauses: tuple[str, ...] = ()
    reason: str = ""


class Zoo:
    """A contract on one checkpoint and one set of prompts; kernels are loaded as they are needed.

    Args:
        contract: every clause but its `pair` counts.
        provenance: of what goes in; its stage is not asked.
        train, inference: builds of engines torch and torch-serving.
        draws: prompts; the clean inference kernel generates their outputs once, for all.
    """

    def __init__(
        self,
        contract: Contract,
        provenance: Provenance,
        checkpoint: Path,
        train: BuildSpec,
        inference: BuildSpec,
        draws: Sequence[Draw],
    ) -> None:
        self.contract = contract.model_copy(update={"pair": Pair(train={}, inference={})})
        self._provenance, self._checkpoint = provenance, checkpoint
        self._train, self._inference = train, inference
        self.train = Replay(load(train, checkpoint))
        self.sound = Replay(load(inference, checkpoint))
        self._asked = list(draws)
        traces = self.sound.trace([draw.request for draw in draws], contract.sampling)
        self._given = [
            replace(draw, request=replace(draw.request, output_ids=tuple(t.token_ids[t.prompt_tokens :])))
            for draw, t in zip(draws, traces, strict=True)
        ]
        self._excused: dict[Stage, set[Cell]] = {}

    def close(self) -> None:
        """Release the kernels."""
        self.train.close()
        self.sound.close()

    def controls(self) -> Iterator[Result]:
        """The clean pair, and two that must pass any sane contract."""
        yield self._control(CLEAN, self.train, self.sound)
        plain = parse_build("torch:dtype=float32,attn=sdpa")
        reference = self.train if self._train == parse_build("torch:dtype=float32") else None
        reference = reference or Replay(load(plain, self._checkpoint))
        eager = load(parse_build("torch:dtype=float32,attn=eager"), self._checkpoint)
        yield self._control(EAGER, reference, eager)
        eager.close()
        other = load(plain, self._checkpoint)
        yield self._control(ORDER, reference, Reordered(other, "alone"))
        other.close()

    def fault(self, fault: Fault) -> Result:
        """Put a fault into the inference kernel and judge."""
        if why := self._pointless(fault):
            return Result(fault.id, fault.name, NOT_APPLICABLE, reason=why)
        try:
            with self.broken(fault) as kernel:
                return self._judged(fault, kernel)
        except FaultNotApplicable as error:
            return Result(fault.id, fault.name, NOT_APPLICABLE, reason=str(error))
        except TokensDiffer as error:
            return Result(
                fault.id, fault.name, CAUGHT, "provenance", "token ids", "all", reason=f"refused: {error}"
            )

    @contextmanager
    def broken(self, fault: Fault) -> Iterator[Kernel]:
        """The inference kernel with the fault in it. Raises FaultNotApplicable."""
        if fault.weights is None and fault.attend is None:
            yield Faulty(self.sound, [fault.id])  # of what it hands out: nothing need be loaded
            return
        kernel = inject(load(self._inference, self._checkpoint), [fault.id])
        try:
            yield kernel
        finally:
            kernel.close()

    def _pointless(self, fault: Fault) -> str | None:
        longest = max(len(draw.request.prompt_ids) for draw in self._asked)
        chunk = self.sound.fingerprint().flags.get("chunk")
        if fault.id == "F3" and self.contract.sampling.temperature == 1.0:
            return "F3 needs a contract that samples at another temperature than 1: there it changes nothing"
        if fault.id == "F9" and longest <= WINDOW:
            return f"F9 needs prompts of more than {WINDOW} tokens; the suite's longest has {longest}"
        if fault.id == "F11" and isinstance(chunk, int) and longest <= chunk:
            return f"F11 needs prompts longer than a chunk of {chunk}; the suite's longest has {longest}"
        if fault.expected is Expectation.STREAM and self._stream() is None:
            return f"{fault.id} needs a clause on drift in shadow, canary or full"
        return None

    def _judged(self, fault: Fault, kernel: Kernel) -> Result:
        stage, draws = Stage.OFFLINE_CI, self._asked if fault.id == "F4" else self._given
        if fault.expected is Expectation.STREAM:
            stage, draws = self._stream() or stage, self._repeated()
        verdicts = self._verdicts(self.train, kernel, draws, stage)
        excused = self._excuses(stage, draws)
        found = [v for v in verdicts if _alarms(v) and _cell(v) not in excused]
        if found:
            passes = fault.expected is Expectation.PASSES
            return _result(
                fault.id, fault.name, ALARMED if passes else CAUGHT, _foremost(found, fault), found
            )
        if fault.expected is Expectation.PASSES:
            return Result(fault.id, fault.name, PASSED, reason="under every limit, as it must be")
        if fault.expected is Expectation.CALIBRATED:
            return Result(
                fault.id, fault.name, CALIBRATED, reason="a kernel against itself, alone and in a batch"
            )
        return Result(fault.id, fault.name, MISSED, reason=_advice(fault, verdicts))

    def _control(self, name: str, one: Kernel, other: Kernel) -> Result:
        found = [v for v in self._verdicts(one, other, self._given, Stage.OFFLINE_CI) if _alarms(v)]
        if name == CLEAN:
            self._excused[Stage.OFFLINE_CI] = {_cell(v) for v in found}
        if found:
            return _result(name, "must pass", ALARMED, max(found, key=lambda v: v.level), found)
        return Result(name, "must pass", PASSED)

    def _excuses(self, stage: Stage, draws: Sequence[Draw]) -> set[Cell]:
        """What the clean pair violates."""
        if stage not in self._excused:
            judged = self._verdicts(self.train, self.sound, draws, stage)
            self._excused[stage] = {_cell(v) for v in judged if _alarms(v)}
        return self._excused[stage]

    def _stream(self) -> Stage | None:
        for stage in _STREAMS:
            if any(clause.family in _MEASURED for clause in self.contract.clauses_at(stage)):
                return stage
        return None

    def _repeated(self) -> list[Draw]:
        shortest = min(len(draw.request.prompt_ids) for draw in self._given)
        cheap = [d for d in self._given if len(d.request.prompt_ids) <= max(CHEAP, shortest)]
        rounds = -(-STREAM // len(cheap))
        return [
            replace(draw, request=replace(draw.request, id=f"{draw.request.id}~{n}"))
            for n in range(rounds)
            for draw in cheap
        ]

    def _verdicts(
        self, train: Kernel, inference: Kernel, draws: Sequence[Draw], stage: Stage
    ) -> tuple[Verdict, ...]:
        kernels = iter((inference, train))  # in the order an evaluation opens them

        @contextmanager
        def opened(*_: object) -> Iterator[Kernel]:
            yield next(kernels)

        provenance = self._provenance.model_copy(update={"stage": stage})
        evidence = evaluate(
            self.contract, provenance, self._checkpoint, self._train, self._inference, draws,
            shard="zoo", opened=opened,
        )  # fmt: skip
        judged = judge(self.contract, evidence, contract_digest=provenance.contract).verdicts
        return tuple(v for v in judged if v.family in _MEASURED)


def _cell(verdict: Verdict) -> Cell:
    return verdict.clause, verdict.slice, verdict.phase


def _alarms(verdict: Verdict) -> bool:
    unmeasurable = verdict.verdict is Outcome.UNMEASURABLE and verdict.kind is ClauseKind.HARD
    return verdict.verdict is Outcome.VIOLATED or unmeasurable


def _foremost(found: Sequence[Verdict], fault: Fault) -> Verdict:
    """The verdict that says most of the fault: of the metric that must catch it, on the narrowest slice."""
    named = fault.metric.replace(",", " ").split()
    return max(
        found, key=lambda v: (v.metric in named, v.slice != "all", str(v.phase) in fault.phase, v.level)
    )


def _result(id_: str, name: str, outcome: str, verdict: Verdict, found: Sequence[Verdict]) -> Result:
    unit = report.shown_unit(verdict)
    return Result(
        id=id_,
        name=name,
        outcome=outcome,
        clause=verdict.clause,
        metric=report.metric_name(verdict),
        slice=verdict.slice,
        phase=str(verdict.phase or ""),
        observed="" if verdict.observed is None else report.number(verdict.observed, unit),
        limit=report.limit_of(verdict),
        clauses=tuple(dict.fromkeys(v.clause for v in found)),
        reason=verdict.reason,
    )


def _advice(fault: Fault, verdicts: Sequence[Verdict]) -> str:
    where = f"{fault.metric} ({fault.slice}; {fault.phase})"
    beyond = [
        v for v in verdicts
        if v.verdict is Outcome.INCONCLUSIVE and v.observed is not None and _beyond(v)
    ]  # fmt: skip
    if beyond:
        first = _foremost(beyond, fault)
        place = f"{first.clause} on {first.slice}" + (f", {first.phase}" if first.phase else "")
        return f"undecided, not caught: {place} is beyond its limit on {first.n} prompts: {first.reason}"
    return f"every clause lets it pass; a clause on {where} sees it"


def _beyond(verdict: Verdict) -> bool:
    observed = verdict.observed or 0.0
    if verdict.comparator == "gte":
        return observed < verdict.limit
    return (abs(observed) if verdict.comparator == "abs_lte" else observed) > verdict.limit


def examine(zoo: Zoo, faults: Sequence[str], progress: Report = silent) -> list[Result]:
    """Controls first, then every fault asked for, in order."""
    results: list[Result] = []
    steps = len(faults) + 3
    for result in zoo.controls():
        results.append(result)
        progress(len(results) / steps, result.id)
    for name in faults:
        results.append(zoo.fault(FAULTS[name]))
        progress(len(results) / steps, name)
    return results
