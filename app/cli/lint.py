"""`kc lint`: what is wrong with contracts, file by file, all at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contracts.document import Diagnostic

CLEAN, ERRORS, UNREADABLE = 0, 1, 2


def run(files: list[Path], *, as_json: bool) -> int:
    """Print the findings of every file; the exit status is the worst of CLEAN, ERRORS, UNREADABLE.

    Warnings alone are CLEAN. A file that cannot be opened is named on stderr and the rest
    are still checked.
    """
    found: list[Diagnostic] = []
    status = CLEAN
    for file in files:
        try:
            text = file.read_bytes()
        except OSError as error:
            print(f"kc: {file}: {error.strerror or error}", file=sys.stderr)
            status = UNREADABLE
            continue
        found += findings(text, str(file))
    if as_json:
        print(json.dumps([row(one) for one in found], indent=2, ensure_ascii=False))
    else:
        for one in found:
            print(line(one))
        print(_summary(found, len(files)), file=sys.stderr)
    return max(status, ERRORS if any(one.severity == "error" for one in found) else CLEAN)


def findings(text: bytes, file: str) -> list[Diagnostic]:
    """Everything the reader and the linter have to say of one contract, in order of place."""
    from contracts.document import InvalidContract, read
    from contracts.lint import lint

    try:
        found = lint(read(text, file))
    except InvalidContract as error:
        found = list(error.diagnostics)
    return sorted(found, key=lambda one: (one.line, one.column, one.code))


def line(one: Diagnostic) -> str:
    """`file:line:column: severity: message [code]`, the form editors and CI systems read."""
    return f"{one.file}:{one.line}:{one.column}: {one.severity}: {one.message} [{one.code}]"


def row(one: Diagnostic) -> dict[str, str | int]:
    """One finding as JSON."""
    return {
        "file": one.file,
        "line": one.line,
        "column": one.column,
        "code": str(one.code),
        "severity": str(one.severity),
        "message": one.message,
    }


def _summary(found: list[Diagnostic], files: int) -> str:
    errors = sum(one.severity == "error" for one in found)
    counts = [_count(errors, "error"), _count(len(found) - errors, "warning")]
    return f"{_count(files, 'contract')}: {', '.join(counts)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
