"""Graders: bounded, deterministic, and never fooled by what ends early."""

from __future__ import annotations

import math

import pytest

from contracts.document import read
from tests.workers.documents import contract_text
from workers.draws import InvalidEvaluation, Task
from workers.graders import GRADERS, Generation, UnitTests, grader_of, parses, passed
from workers.sandbox import Limits, SandboxUnavailable, run

NOTHING = Task()


def generation(output, prompt="", *, finished=True):
    return Generation(prompt, output, finished)


@pytest.mark.parametrize(
    ("prompt", "output", "finished", "reward"),
    [
        ("def f(x):\n", "    return x\n", True, 1),
        ("def f(x):\n", "    return (x\n", True, 0),
        ("def f(x):\n", "    return x\n    if x", False, 1),
        ("def f(x):\n", "    return x\n    if x", True, 0),
        ("", "(" * 10_000, True, 0),
        ("", "x = '\0'", True, 0),
        ("", '"\\d"', True, 1),
    ],
)
def test_python_parses(prompt, output, finished, reward):
    grader = GRADERS["python-parses"]
    assert grader.applies(NOTHING)
    assert grader.grade(NOTHING, generation(output, prompt, finished=finished)) == reward


def test_exact_match():
    grader, task = GRADERS["exact-match"], Task(reference="42")
    assert not grader.applies(NOTHING)
    assert [grader.grade(task, generation(text)) for text in ("42", " 42\n", "43", "")] == [1, 1, 0, 0]


class TestUnitTests:
    TASK = Task(tests="assert f(2) == 4\nassert f(3) == 9")

    @pytest.fixture(autouse=True)
    def _confined(self):
        try:
            run("pass")
        except SandboxUnavailable as error:
            pytest.skip(str(error))

    @pytest.mark.parametrize(
        ("output", "reward"),
        [
            ("    return x * x\n", 1),
            ("    return 2 * x\n", 0),
            ("    return x *\n", 0),
            ("    import sys; sys.exit(0)\n", 0),
            ("    import os; os._exit(0)\n", 0),
            ("    while True: pass\n", 0),
            ("    return x * x\nprint('x' * 10**6)\n", 0),
        ],
    )
    def test_only_what_reaches_the_end(self, output, reward):
        grader = UnitTests(Limits(seconds=5.0, cpu_s=1))
        assert grader.applies(self.TASK)
        assert not grader.applies(NOTHING)
        assert grader.grade(self.TASK, generation(output, "def f(x):\n")) == reward


def contract(grader="python-parses", low=0, high=1):
    text = contract_text() + f"reward: {{range: [{low}, {high}], grader: {grader}}}\n"
    return read(text.encode()).contract


def test_the_contracts_grader():
    assert grader_of(contract()) is GRADERS["python-parses"]
    with pytest.raises(InvalidEvaluation, match="did you mean 'python-parses'"):
        grader_of(contract("python-parse"))
    with pytest.raises(
        InvalidEvaluation, match=r"rewards in \[0, 1\], and the contract's range is \[-1, 0.5\]"
    ):
        grader_of(contract(low=-1, high=0.5))
    with pytest.raises(InvalidEvaluation, match="no reward section"):
        grader_of(read(contract_text().encode()).contract)


def test_a_pass_is_more_than_the_middle():
    assert [passed(contract(), r) for r in (0.0, 0.5, 0.51, 1.0, math.nan)] == [
        False,
        False,
        True,
        True,
        None,
    ]
    assert [passed(contract(low=-3, high=1), r) for r in (-1.0, -0.9)] == [False, True]


def test_what_the_parser_cannot_take_is_not_python():
    assert not parses("if x:\n" * 3)
    assert parses("")
