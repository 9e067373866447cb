"""Kernel builds as the command line names them: `engine:key=value,...` or a JSON file."""

from __future__ import annotations

import json
from pathlib import Path

from app.cli.errors import USAGE, CliError
from contracts.builds import InvalidBuild, parse_build


def spec(text: str) -> str:
    """The build in its written form. Raises CliError for an unknown engine, key or value."""
    file = Path(text)
    try:
        if not file.is_file():
            return str(parse_build(text))
        content = json.loads(file.read_bytes())
        if not isinstance(content, dict):
            raise CliError(f"{file}: a kernel build is a JSON object", USAGE)
        return str(parse_build(content))
    except InvalidBuild as error:
        raise CliError(f"kernel build {text}: {error}", USAGE) from None
    except (OSError, ValueError) as error:
        raise CliError(f"{file}: not a JSON file: {error}", USAGE) from None
