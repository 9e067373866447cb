"""The shape of a contract: which keys it has where, and what is wrong with values, in words."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from contracts.diagnostics import Path, Problem
from contracts.metrics import nearest
from contracts.model import Contract
from contracts.yaml_tree import Tree


def keys_at(path: Path) -> list[str]:
    """The keys a mapping at `path` may have, as YAML spells them; empty where any key may stand."""
    kind: Any = Contract
    for step in path:
        kind = _below(_bare(kind), step)
        if kind is None:
            return []
    kind = _bare(kind)
    return [*_fields(kind)] if _is_model(kind) else []


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    return {info.alias or name: info.annotation for name, info in model.model_fields.items()}


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _bare(kind: Any) -> Any:
    """The type without Annotated and without `| None`."""
    while get_origin(kind) in (Annotated, Union, types.UnionType):
        kind = next(arg for arg in get_args(kind) if arg is not type(None))
    return kind


def _below(kind: Any, step: str | int) -> Any:
    if _is_model(kind):
        return _fields(kind).get(str(step))
    arguments = get_args(kind)
    if get_origin(kind) is dict:
        return arguments[1]
    return arguments[0] if get_origin(kind) is tuple else None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def part(kind: Any, value: Any) -> Any:
    """`value` as `kind`, or None when it does not validate (the whole reports it)."""
    try:
        return _adapter(kind).validate_json(json.dumps(value), strict=True, by_alias=True, by_name=False)
    except ValidationError:
        return None


def shape_problems(error: ValidationError, tree: Tree) -> Iterator[Problem]:
    """Each validation error once, at the part of the document it is about."""
    errors = error.errors(include_url=False)
    seen: set[Path] = set()
    for one in errors:
        loc: Path = one["loc"]
        deeper = any(other["loc"][: len(loc)] == loc and other is not one for other in errors)
        if one["type"] == "too_short" and deeper:
            continue  # the items are there, they did not validate
        path = _known(loc, tree)
        alternatives = len(path) < len(loc) and one["type"] not in ("missing", "extra_forbidden")
        if alternatives and path in seen:
            continue  # one problem, told once for each type the value could have had
        seen.add(path)
        yield _in_words(dict(one), loc, path, tree)


def _in_words(error: dict[str, Any], loc: Path, path: Path, tree: Tree) -> Problem:
    kind, value, name = error["type"], error["input"], where(path, tree.root)
    if kind == "missing":
        return Problem(path, "missing-key", f"{where(loc[:-1], tree.root)} lacks the key {loc[-1]!r}")
    if kind == "extra_forbidden":
        return _unknown_key(loc, tree.root)
    if loc[-1] == "[key]":
        rule = _name_rule(path[-1]) if kind == "string_pattern_mismatch" else _unknown_level(path[-1])
        return Problem(path, "name", rule, at_key=True)
    return Problem(path, "value", _value_rule(error, name, path, value, union=len(path) < len(loc)))


def _value_rule(error: dict[str, Any], name: str, path: Path, value: Any, *, union: bool) -> str:
    kind = error["type"]
    if kind in ("enum", "literal_error"):
        words = error["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        return f"{name} must be one of {', '.join(words)}, not {show(value)}{hint(value, words)}"
    if kind == "string_pattern_mismatch" and path[-1] == "version":
        return f"{name} must be a semantic version such as 1.0.0, not {show(value)}"
    if kind == "string_pattern_mismatch":
        return f"{name}: {_name_rule(value)}"
    if kind == "value_error":
        return f"{name}: {error['ctx']['error']}"
    if union:
        return f"{name} must be a word, a number, true or false, not {show(value)}"
    rule = error["msg"].split(" after validation")[0]
    for theirs, ours in _PHRASES:
        rule = rule.replace(theirs, ours)
    return f"{name} {rule}, not {show(value)}"


_PHRASES = (
    ("Input should be", "must be"),
    ("Tuple should have", "must have"),
    ("valid dictionary or object to extract fields from", "mapping"),
    ("valid dictionary", "mapping"),
    ("an object", "a mapping"),
    ("valid array", "list"),
    ("a valid string", "text (in quotes if it looks like a number)"),
    ("valid boolean", "true or false"),
)


def _name_rule(name: Any) -> str:
    rule = "up to 128 letters, digits, dots, dashes and underscores, a letter or digit first"
    return f"{show(name)} is no name: {rule}"


def _unknown_level(word: Any) -> str:
    return f"unknown level {show(word)}: levels are L1, L2, L3"


def _unknown_key(loc: Path, root: Any) -> Problem:
    known = keys_at(loc[:-1])
    known_words = f"; known are {', '.join(known)}" if known else ""
    message = f"{where(loc[:-1], root)} has no key {str(loc[-1])!r}{hint(loc[-1], known) or known_words}"
    return Problem(loc, "unknown-key", message, at_key=True)


def hint(word: Any, known: list[str]) -> str:
    """`; did you mean ...?` with the nearest known word, or nothing."""
    close = nearest(word, known) if isinstance(word, str) else None
    return f"; did you mean {close!r}?" if close else ""


def show(value: Any) -> str:
    """A value as JSON, cut to 60 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def where(path: Path, root: Any) -> str:
    """The path for people; a clause by its id."""
    if not path:
        return "the contract"
    words: list[str] = []
    if path[0] == "clauses" and len(path) > 1:
        clause = root["clauses"][path[1]]
        name = clause.get("id") if isinstance(clause, dict) else None
        words.append(f"clause {name}" if isinstance(name, str) else f"clause {int(path[1]) + 1}")
        path = path[2:]
    dotted = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
    return ": ".join([*words, dotted] if dotted else words)


def _known(loc: Path, tree: Tree) -> Path:
    """The longest part of a validation error's location that is in the document."""
    if loc[0] == "escalation" and loc[2:3] == ("default",) and loc[:3] not in tree.values:
        loc = loc[:2] + loc[3:]  # a level's actions were written as one list
    while loc and loc not in tree.values:
        loc = loc[:-1]
    return loc
