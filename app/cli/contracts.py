"""`kc schema`, `explain`, `diff` and `test-contract`: what can be said of contracts without measuring."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.errors import USAGE, CliError
from app.cli.lint import line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from contracts.model import Contract

SAME, LOOSENED = 0, 1
SOUND, UNSOUND = 0, 1


def schema() -> int:
    """Print the JSON Schema of contract documents."""
    from contracts.schema import text

    print(text(), end="")
    return 0


def explain(file: Path, *, as_json: bool) -> int:
    """Print what a contract promises, implies and needs."""
    from contracts.explain import explain as explained
    from contracts.explain import lines

    found = explained(contract(file))
    print(_json(found.model_dump(mode="json")) if as_json else "\n".join(lines(found)))
    return 0


def diff(old: Path, new: Path, *, as_json: bool) -> int:
    """Print what became of every part; LOOSENED when anything was loosened, removed or incomparable."""
    from contracts.compare import compare

    found = compare(contract(old), contract(new))
    if as_json:
        print(_json(found.model_dump(mode="json")))
    else:
        for change in found.changes:
            print(change)
        told = "something is looser" if found.loosened else "nothing is looser"
        print(f"{found.old} → {found.new}: {told}" if found.changes else "no difference", file=sys.stderr)
    return LOOSENED if found.loosened else SAME


def examine(
    file: Path, prompts: int | None, zoo: Mapping[str, object] | None = None, *, as_json: bool
) -> int:
    """Print whether each clause can hold and fail, and its power; UNSOUND when one cannot.

    Raises CliError when one of the options for `--zoo` is given.
    """
    for name, value in (zoo or {}).items():
        if value is not None:
            raise CliError(f"--{name} is for --zoo, which runs faults in a real model", USAGE)
    from contracts.mutation import examine as examined
    from contracts.mutation import lines

    found = examined(contract(file), prompts)
    if as_json:
        print(_json(found.model_dump(mode="json") | {"sound": found.sound}))
    else:
        print("\n".join(lines(found)))
        if found.sound:
            print("every clause can hold and can fail", file=sys.stderr)
    return SOUND if found.sound else UNSOUND


def contract(file: Path) -> Contract:
    """The contract in a file. Raises CliError, exit status 2, with every problem when there is none."""
    from contracts.document import InvalidContract, read

    try:
        return read(file.read_bytes(), str(file)).contract
    except OSError as error:
        raise CliError(f"{file}: {error.strerror or error}", USAGE) from None
    except InvalidContract as error:
        told = "\n".join(line(one) for one in error.diagnostics)
        raise CliError(f"{file} is no contract\n{told}", USAGE) from None


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
