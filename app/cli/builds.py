"""Kernel builds as the command line names them: `engine:key=value,...` or a JSON file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from app.cli.errors import USAGE, CliError
from contracts.builds import InvalidBuild, parse_build, with_faults


def spec(text: str, faults: Sequence[str] = ()) -> str:
    """The build in its written form, with `faults` of the zoo in it.

    Raises CliError for an unknown engine, key, value or fault.
    """
    file = Path(text)
    try:
        if not file.is_file():
            return str(with_faults(parse_build(text), faults))
        content = json.loads(file.read_bytes())
        if not isinstance(content, dict):
            raise CliError(f"{file}: a kernel build is a JSON object", USAGE)
        return str(with_faults(parse_build(content), faults))
    except InvalidBuild as error:
        raise CliError(f"kernel build {text}: {error}", USAGE) from None
    except (OSError, ValueError) as error:
        raise CliError(f"{file}: not a JSON file: {error}", USAGE) from None
