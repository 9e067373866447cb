"""Contract documents: YAML text to a :class:`Contract`, every problem at its line and column.

Three passes, all of whose problems are reported together: the YAML itself (`yaml_tree`), the
shape of the values (the model, validated strictly so that "96" is never 96), and what the parts
mean together (`semantics`). A document with any problem gives no contract.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from contracts.diagnostics import Diagnostic, InvalidContract, Path, Place, Problem
from contracts.model import STAGES, Contract, Slice
from contracts.semantics import check
from contracts.shape import shape_problems
from contracts.yaml_tree import Tree, read_tree

__all__ = ["Diagnostic", "Document", "InvalidContract", "canonical", "digest", "read"]


@dataclass(frozen=True)
class Document:
    """A contract, as written and as meant.

    Attributes:
        contract: the values.
        text: the document as written, line ends and byte order mark included.
        digest: `sha256:` and the hex digest of :func:`canonical`.
        file: the name used in diagnostics.
        locations: line and column (from 1) of the value at each path, such as
            ("clauses", 0, "limit").
    """

    contract: Contract
    text: str
    digest: str
    file: str
    locations: Mapping[Path, Place]

    def locate(self, *path: str | int) -> Place:
        """Line and column of the value at `path`, or of the nearest enclosing one that is written."""
        return _nearest_place(path, self.locations)


def read(text: bytes, file: str = "<contract>") -> Document:
    """The contract in `text`.

    Raises InvalidContract with every problem found, each at `file`, line and column.
    """
    tree, decoded = read_tree(text)
    found = [Diagnostic(file, *place, code, "error", message) for place, code, message in tree.problems]
    contract = None
    if isinstance(tree.root, dict):
        contract, problems = _contract(tree)
        found += [_placed(problem, tree, file) for problem in problems if not _excused(problem, tree)]
    elif not found:
        found.append(Diagnostic(file, *tree.values[()], "not-a-mapping", "error", "a contract is a mapping"))
    if found or contract is None:
        raise InvalidContract(found)
    return Document(contract, decoded, digest(contract), file, MappingProxyType(tree.values))


def digest(contract: Contract) -> str:
    """`sha256:` and the hex digest of the canonical form: equal for equal meaning."""
    return "sha256:" + hashlib.sha256(canonical(contract)).hexdigest()


def canonical(contract: Contract) -> bytes:
    """The meaning as UTF-8 JSON: defaults filled in, absent values left out, sorted keys, no spaces.

    The order of clauses and of anything that is a set (slices, stages, actions, `in`) is no
    meaning, nor is 1 against 1.0.
    """
    values: dict[str, Any] = contract.model_dump(mode="json", by_alias=True, exclude_none=True)
    values["slices"].setdefault("all", Slice().model_dump(mode="json"))
    for part in values["slices"].values():
        for condition in part["where"].values():
            if "in" in condition:
                condition["in"] = _as_set(condition["in"])
    for clause in values["clauses"]:
        clause["slices"], clause["stages"] = _as_set(clause["slices"]), _as_set(clause["stages"])
    values["clauses"].sort(key=lambda clause: clause["id"])
    values["escalation"] = _escalation(contract)
    return json.dumps(_whole(values), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _escalation(contract: Contract) -> dict[str, Any]:
    """Actions by level: one list where every stage has the same, else one a stage; none is no entry."""
    found: dict[str, Any] = {}
    for level, policy in contract.escalation.items():
        stages = {stage.value: _as_set([a.value for a in policy.at(stage)]) for stage in STAGES}
        different = any(actions != stages["full"] for actions in stages.values())
        if policy.asked:
            found[level.value] = stages if different else stages["full"]
    return found


def _as_set(items: list[Any]) -> list[Any]:
    unique = {json.dumps(_whole(item)): item for item in items}
    return [unique[key] for key in sorted(unique)]


def _whole(value: Any) -> Any:
    """The same value with every whole float as an integer."""
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _contract(tree: Tree) -> tuple[Contract | None, list[Problem]]:
    # Through JSON, because strict JSON takes a list for a tuple and a word for an enum member.
    text = json.dumps(tree.root)
    problems: list[Problem] = []
    contract = None
    try:
        contract = Contract.model_validate_json(text, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        problems += shape_problems(error, tree)
    return contract, problems + list(check(tree.root))


def _nearest_place(path: Path, places: Mapping[Path, Place]) -> Place:
    while path and path not in places:
        path = path[:-1]
    return places.get(path, (1, 1))


def _placed(problem: Problem, tree: Tree, file: str) -> Diagnostic:
    keyed = problem.at_key and problem.path in tree.keys
    place = tree.keys[problem.path] if keyed else _nearest_place(problem.path, tree.values)
    return Diagnostic(file, *place, problem.code, "error", problem.message)


def _excused(problem: Problem, tree: Tree) -> bool:
    """Whether the problem only follows from one the YAML pass already reported."""
    above = {problem.path[:n] for n in range(len(problem.path) + 1)}
    return bool(above & tree.refused) or (problem.code == "missing-key" and problem.path in tree.incomplete)
