"""Membership of a draw in a slice of D_eval: predicates over what is known of the request."""

from __future__ import annotations

from dataclasses import dataclass

from contracts.model import Condition, Scalar, Slice

NUMBER, WORD, WORDS = "number", "word", "words"

# What a predicate may ask about, and the kind of value each attribute has.
ATTRIBUTES: dict[str, str] = {"prompt_tokens": NUMBER, "language": WORD, "tags": WORDS}
OPERATORS: dict[str, tuple[str, ...]] = {
    NUMBER: ("eq", "gt", "gte", "lt", "lte", "in"),
    WORD: ("eq", "in"),
    WORDS: ("contains",),
}


@dataclass(frozen=True, slots=True)
class Attributes:
    """What is known of one draw.

    Attributes:
        prompt_tokens: length of the prompt in tokens, >= 0.
        language: programming or natural language, None when unknown.
        tags: free labels of the suite or of the request.
    """

    prompt_tokens: int
    language: str | None = None
    tags: frozenset[str] = frozenset()


def matches(slice: Slice, attributes: Attributes) -> bool:
    """Whether the draw belongs to the slice: every condition holds.

    `{}` is everything. An attribute the draw lacks, or one no draw has, never matches, so
    a slice is only ever tested with draws known to belong to it.
    """
    return all(_holds(condition, getattr(attributes, name, None)) for name, condition in slice.where.items())


def same(left: object, right: object) -> bool:
    """Equality of scalars: case-sensitive, 1 equals 1.0, and true is not 1."""
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def _holds(condition: Condition, value: Scalar | frozenset[str] | None) -> bool:
    if value is None:
        return False
    if isinstance(value, frozenset):
        asked = condition.model_dump(exclude_none=True, by_alias=True)
        return set(asked) == {"contains"} and condition.contains in value
    tests = [
        condition.contains is None,
        condition.eq is None or same(value, condition.eq),
        condition.one_of is None or any(same(value, one) for one in condition.one_of),
    ]
    return all(tests) and _in_range(condition, value)


def _in_range(condition: Condition, value: Scalar) -> bool:
    bounds = (condition.gt, condition.gte, condition.lt, condition.lte)
    if all(bound is None for bound in bounds):
        return True
    if isinstance(value, bool | str):
        return False
    gt, gte, lt, lte = bounds
    return (
        (gt is None or value > gt)
        and (gte is None or value >= gte)
        and (lt is None or value < lt)
        and (lte is None or value <= lte)
    )
