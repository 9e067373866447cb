"""Diagnostics as SARIF 2.1.0, the form code-scanning services and editors read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from contracts.codes import CODES, severity
from contracts.diagnostics import Diagnostic

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
TOOL = "kernel-contracts"


def sarif(diagnostics: Sequence[Diagnostic], files: Sequence[str] = ()) -> dict[str, Any]:
    """One run with every diagnostic; `files` are those that were looked at, findings or not.

    Columns count characters (`unicodeCodePoints`). Paths are written as URI references, relative
    ones as they were given.
    """
    used = list(dict.fromkeys(one.code for one in diagnostics))
    rules = [
        {
            "id": code,
            "shortDescription": {"text": CODES.get(code, code)},
            "defaultConfiguration": {"level": severity(code)},
        }
        for code in used
    ]
    artifacts = dict.fromkeys([*files, *(one.file for one in diagnostics)])
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": TOOL, "rules": rules}},
                "columnKind": "unicodeCodePoints",
                "artifacts": [{"location": {"uri": _uri(file)}} for file in artifacts],
                "results": [_result(one, used) for one in diagnostics],
            }
        ],
    }


def _result(one: Diagnostic, used: list[str]) -> dict[str, Any]:
    return {
        "ruleId": one.code,
        "ruleIndex": used.index(one.code),
        "level": one.severity,
        "message": {"text": one.message},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(one.file)},
                    "region": {"startLine": one.line, "startColumn": one.column},
                }
            }
        ],
    }


def _uri(file: str) -> str:
    path = quote(file.replace("\\", "/"), safe="/:~@!$&'()*+,;=")
    # a first segment with a colon would be read as a scheme
    return f"./{path}" if ":" in path.partition("/")[0] else path
