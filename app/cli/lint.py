"""`kc lint`: what is wrong with contracts, file by file, all at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.errors import USAGE, CliError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from contracts.builds import Fingerprint
    from contracts.diagnostics import Diagnostic

CLEAN, ERRORS, UNREADABLE = 0, 1, 2


def run(files: list[Path], form: str, named: list[str]) -> int:
    """Print the findings of every file; the exit status is the worst of CLEAN, ERRORS, UNREADABLE.

    Warnings alone are CLEAN. A file that cannot be opened is named on stderr and the rest
    are still checked. `form` is text, json or sarif; `named` are registered builds as NAME=BUILD.
    """
    builds = fingerprints(named)
    found: list[Diagnostic] = []
    status = CLEAN
    read = []
    for file in files:
        try:
            text = file.read_bytes()
        except OSError as error:
            print(f"kc: {file}: {error.strerror or error}", file=sys.stderr)
            status = UNREADABLE
            continue
        read.append(str(file))
        found += findings(text, str(file), builds)
    if form == "text":
        for one in found:
            print(line(one))
        if read:
            print(_summary(found, len(read)), file=sys.stderr)
    else:
        print(json.dumps(_report(found, read, form), indent=2, ensure_ascii=False))
    return max(status, ERRORS if any(one.severity == "error" for one in found) else CLEAN)


def findings(text: bytes, file: str, builds: Mapping[str, Fingerprint] | None = None) -> list[Diagnostic]:
    """Everything the reader and the linter have to say of one contract, in order of place."""
    from contracts.document import InvalidContract, read
    from contracts.lint import lint

    try:
        found = lint(read(text, file), builds)
    except InvalidContract as error:
        found = list(error.diagnostics)
    return sorted(found, key=lambda one: (one.line, one.column, one.code))


def fingerprints(named: list[str]) -> dict[str, Fingerprint]:
    """What the builds of NAME=BUILD will say they are. Raises CliError for one that cannot be."""
    from app.cli.builds import spec
    from contracts.builds import parse_build

    found = {}
    for one in named:
        name, equals, text = one.partition("=")
        if not (name and equals and text):
            raise CliError(f"--build takes NAME=BUILD, such as safe=torch:dtype=float32, not {one!r}", USAGE)
        found[name] = parse_build(spec(text)).stated
    return found


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


def _report(found: list[Diagnostic], files: list[str], form: str) -> Any:
    if form == "json":
        return [row(one) for one in found]
    from contracts.sarif import sarif

    return sarif(found, files)


def _summary(found: list[Diagnostic], files: int) -> str:
    errors = sum(one.severity == "error" for one in found)
    counts = [_count(errors, "error"), _count(len(found) - errors, "warning")]
    return f"{_count(files, 'contract')}: {', '.join(counts)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
