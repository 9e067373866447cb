"""Membership: conjunctions, absent attributes never match, scalars compare as scalars."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.model import Slice
from contracts.slices import Attributes, matches, same

CODE = Attributes(prompt_tokens=512, language="python", tags=frozenset({"safety", "long"}))
BARE = Attributes(prompt_tokens=3)


@pytest.mark.parametrize(
    ("where", "code", "bare"),
    [
        ({}, True, True),
        ({"prompt_tokens": {"gte": 512}}, True, False),
        ({"prompt_tokens": {"gt": 512}}, False, False),
        ({"prompt_tokens": {"gte": 3, "lt": 512}}, False, True),
        ({"prompt_tokens": {"lte": 512}}, True, True),
        ({"prompt_tokens": 3}, False, True),
        ({"prompt_tokens": {"in": [3, 512]}}, True, True),
        ({"language": "python"}, True, False),
        ({"language": "Python"}, False, False),
        ({"language": {"in": ["c", "python"]}}, True, False),
        ({"language": {"gte": 1}}, False, False),
        ({"tags": {"contains": "safety"}}, True, False),
        ({"tags": {"contains": "saf"}}, False, False),
        ({"tags": "safety"}, False, False),
        ({"colour": "red"}, False, False),
        ({"prompt_tokens": {"gte": 512}, "language": "c"}, False, False),
    ],
)
def test_membership(where: dict[str, object], code: bool, bare: bool) -> None:
    part = Slice.model_validate({"where": where})
    assert (matches(part, CODE), matches(part, BARE)) == (code, bare)


def test_true_is_not_one() -> None:
    assert same(1, 1.0)
    assert not same(1, True)
    assert not same("1", 1)


@given(st.integers(0, 2000), st.integers(0, 2000))
def test_a_bound_and_its_complement_partition(tokens: int, bound: int) -> None:
    draw = Attributes(prompt_tokens=tokens)
    low, high = ({"prompt_tokens": {op: bound}} for op in ("lt", "gte"))
    assert matches(Slice.model_validate({"where": low}), draw) != matches(
        Slice.model_validate({"where": high}), draw
    )
