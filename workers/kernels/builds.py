"""Kernel builds as command lines name them."""

from __future__ import annotations

import json
from pathlib import Path

from contracts.builds import BuildSpec, InvalidBuild, parse_build


def read_build(text: str) -> BuildSpec:
    """A build written as `engine:key=value,...`, or in a JSON file. Raises InvalidBuild."""
    if not Path(text).is_file():
        return parse_build(text)
    try:
        content = json.loads(Path(text).read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidBuild(f"{text}: not a JSON file: {error}", text) from None
    if not isinstance(content, dict):
        raise InvalidBuild(f"{text}: a kernel build is a JSON object", text)
    return parse_build(content)
