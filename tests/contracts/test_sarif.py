"""SARIF 2.1.0: the parts of the standard's schema that the output uses, closed to anything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from contracts.codes import CODES
from contracts.diagnostics import Diagnostic
from contracts.sarif import sarif


def closed(required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


TEXT = {"type": "string", "minLength": 1}
LOCATION = closed("uri", uri=TEXT | {"format": "uri-reference"})
LEVEL = {"enum": ["none", "note", "warning", "error"]}
# after sarif-schema-2.1.0.json (OASIS)
SCHEMA = closed(
    "version runs",
    **{"$schema": TEXT},
    version={"const": "2.1.0"},
    runs={
        "type": "array",
        "items": closed(
            "tool results",
            tool=closed(
                "driver",
                driver=closed(
                    "name",
                    name=TEXT,
                    rules={
                        "type": "array",
                        "uniqueItems": True,
                        "items": closed(
                            "id",
                            id=TEXT,
                            shortDescription=closed("text", text=TEXT),
                            defaultConfiguration=closed("", level=LEVEL) | {"required": []},
                        ),
                    },
                ),
            ),
            columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
            artifacts={
                "type": "array",
                "uniqueItems": True,
                "items": closed("location", location=LOCATION),
            },
            results={
                "type": "array",
                "items": closed(
                    "message",
                    ruleId=TEXT,
                    ruleIndex={"type": "integer", "minimum": -1},
                    level=LEVEL,
                    message=closed("text", text=TEXT),
                    locations={
                        "type": "array",
                        "uniqueItems": True,
                        "items": closed(
                            "physicalLocation",
                            physicalLocation=closed(
                                "artifactLocation",
                                artifactLocation=LOCATION,
                                region=closed(
                                    "startLine",
                                    startLine={"type": "integer", "minimum": 1},
                                    startColumn={"type": "integer", "minimum": 1},
                                ),
                            ),
                        ),
                    },
                ),
            },
        ),
    },
)
VALIDATOR = Draft202012Validator(SCHEMA)
FOUND = [
    Diagnostic("a/c.yaml", 3, 5, "unknown-key", "error", "no key 'x'"),
    Diagnostic("b c.yaml", 9, 1, "implied", "warning", "says nothing new"),
    Diagnostic("a/c.yaml", 4, 5, "unknown-key", "error", "no key 'y'"),
]


@pytest.mark.parametrize("diagnostics", [[], FOUND])
def test_valid(diagnostics: list[Diagnostic]) -> None:
    made = json.loads(json.dumps(sarif(diagnostics, ["clean.yaml"])))
    assert [error.message for error in VALIDATOR.iter_errors(made)] == []


def test_results_name_their_rules_and_places() -> None:
    (run,) = sarif(FOUND, ["clean.yaml"])["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["unknown-key", "implied"]
    assert [rule["shortDescription"]["text"] for rule in rules] == [CODES["unknown-key"], CODES["implied"]]
    for one, result in zip(FOUND, run["results"], strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == one.code
        (place,) = result["locations"]
        assert place["physicalLocation"]["region"] == {"startLine": one.line, "startColumn": one.column}
        assert result["level"] == one.severity
    uris = [artifact["location"]["uri"] for artifact in run["artifacts"]]
    assert uris == ["clean.yaml", "a/c.yaml", "b%20c.yaml"]


@pytest.mark.parametrize(
    ("file", "uri"), [("c:d.yaml", "./c:d.yaml"), ("/x/µ.yaml", "/x/%C2%B5.yaml"), ("a\\b.yaml", "a/b.yaml")]
)
def test_paths_are_uri_references(file: str, uri: str) -> None:
    (run,) = sarif([], [file])["runs"]
    assert run["artifacts"] == [{"location": {"uri": uri}}]
