"""`kc worst`: finds the records of a run, then reads them as `python -m workers.worst`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from app.cli.errors import USAGE, CliError
from app.cli.processes import need_measurement

_RUN = "run.json"


def run(name: str, checkpoint: Path | None, options: dict[str, str | int | None], *, as_json: bool) -> int:
    """Exit status of the search: 0 found, 2 bad usage.

    Args:
        name: what `kc evaluate --out` was given, a records file, or a promotion's id in `$KC_HOME` or
            its beginning.
        checkpoint: whose tokenizer gives the text; by default the one the run names.
        options: further options of the search by name; None leaves the default.

    Raises CliError when there is no such run or tokenizer.
    """
    need_measurement()
    records = _records(name, Path(os.environ.get("KC_HOME", ".kc")))
    arguments = [str(records)]
    tokenizer = _tokenizer(records, checkpoint)
    for option, value in {**options, "tokenizer": tokenizer}.items():
        if value is not None:
            arguments += [f"--{option}", str(value)]
    if as_json:
        arguments.append("--json")
    return subprocess.run([sys.executable, "-m", "workers.worst", *arguments], check=False).returncode


def _records(name: str, home: Path) -> Path:
    given = Path(name)
    if given.exists():
        return given
    kept = home / "artifacts" / "records"
    # An id, or its beginning, names a directory there and nothing else.
    ids = {entry.name for entry in kept.iterdir()} if kept.is_dir() else set()
    found = [name] if name in ids else [one for one in ids if one.startswith(name)]
    if len(found) == 1:
        return kept / found[0]
    if found:
        raise CliError(f"{name}: more than one promotion's id begins so; write more of it", USAGE)
    raise CliError(f"{name}: no such directory or file, and no promotion with records in {kept}", USAGE)


def _tokenizer(records: Path, checkpoint: Path | None) -> str | None:
    if checkpoint is not None:
        file = checkpoint / "tokenizer.json"
        if not file.is_file():
            raise CliError(f"{file}: no such tokenizer", USAGE)
        return str(file)
    note = (records if records.is_dir() else records.parent) / _RUN
    try:
        named = Path(json.loads(note.read_bytes())["checkpoint"]) / "tokenizer.json"
    except (OSError, ValueError, KeyError, TypeError):
        return None  # the numbers are shown without their text
    return str(named) if named.is_file() else None
