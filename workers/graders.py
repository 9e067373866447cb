"""Graders: what a generation is worth, a bounded number [Q12].

A grader is deterministic and says its range. What it cannot grade is NaN, which is unmeasurable and in no
mean; a wrong answer is the lower end of its range.
"""

from __future__ import annotations

import ast
import math
import secrets
import warnings
from dataclasses import dataclass
from typing import Protocol

from contracts.metrics import nearest
from contracts.model import Contract
from workers import sandbox
from workers.draws import InvalidEvaluation, Task


@dataclass(frozen=True, slots=True)
class Generation:
    """Text a kernel generated after `prompt`; `finished` unless it was cut off at its length."""

    prompt: str
    output: str
    finished: bool


class Grader(Protocol):
    """Gives generations rewards in [low, high]."""

    low: float
    high: float

    def applies(self, task: Task, /) -> bool:
        """Whether a task has what this grader needs; one without is no draw."""
        ...

    def grade(self, task: Task, generation: Generation, /) -> float:
        """The reward, or NaN where none can be given."""
        ...


class PythonParses:
    """1 where prompt and output together are Python; of a cut-off output the last line is not looked at."""

    low, high = 0.0, 1.0

    def applies(self, _task: Task) -> bool:
        """Every text can be parsed."""
        return True

    def grade(self, _task: Task, generation: Generation) -> float:
        """0 or 1."""
        text = generation.prompt + generation.output
        whole = parses(text)
        return float(whole or (not generation.finished and parses(text.rpartition("\n")[0])))


class ExactMatch:
    """1 where the output is the reference, white space at both ends aside."""

    low, high = 0.0, 1.0

    def applies(self, task: Task) -> bool:
        """Whether there is a reference."""
        return task.reference is not None

    def grade(self, task: Task, generation: Generation) -> float:
        """0 or 1."""
        return float(task.reference is not None and generation.output.strip() == task.reference.strip())


class UnitTests:
    """1 where prompt, output and the task's tests run to the end as one program, in the sandbox.

    Raises SandboxUnavailable where nothing can be confined.
    """

    low, high = 0.0, 1.0

    def __init__(self, limits: sandbox.Limits | None = None) -> None:
        self._limits = limits or sandbox.Limits()

    def applies(self, task: Task) -> bool:
        """Whether there are tests."""
        return task.tests is not None

    def grade(self, task: Task, generation: Generation) -> float:
        """0 or 1."""
        # Ending early with status 0 is no success: the last line must have been reached.
        reached = secrets.token_hex(16)
        program = f"{generation.prompt}{generation.output}\n{task.tests}\nprint({reached!r})\n"
        outcome = sandbox.run(program, self._limits)
        return float(outcome.status == 0 and outcome.output.rstrip().endswith(reached))


GRADERS: dict[str, Grader] = {
    "python-parses": PythonParses(),
    "exact-match": ExactMatch(),
    "unit-tests": UnitTests(),
}


def grader_of(contract: Contract) -> Grader:
    """The grader a contract names.

    Raises InvalidEvaluation: it has none, an unknown one, or a range the grader leaves.
    """
    if contract.reward is None:
        raise InvalidEvaluation("the contract has no reward section, and its clauses need a grader")
    name = contract.reward.grader
    if name not in GRADERS:
        close = nearest(name, [*GRADERS])
        hint = f"; did you mean {close!r}?" if close else ""
        raise InvalidEvaluation(f"no grader is called {name!r}: use one of {', '.join(GRADERS)}{hint}")
    grader, (low, high) = GRADERS[name], contract.reward.range
    if grader.low < low or grader.high > high:
        raise InvalidEvaluation(
            f"grader {name} gives rewards in [{grader.low:g}, {grader.high:g}], and the contract's range is "
            f"[{low:g}, {high:g}]"
        )
    return grader


def parses(text: str) -> bool:
    """Whether a text is Python; one the parser cannot take is not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the text's own: invalid escapes and the like
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def passed(contract: Contract, reward: float) -> bool | None:
    """Whether a reward is a pass, for `flip_rate`: more than the middle of the range; None of NaN."""
    if contract.reward is None or math.isnan(reward):
        return None
    return reward > sum(contract.reward.range) / 2.0
