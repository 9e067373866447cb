"""Interpreters by name: a build says `python=NAME`, and whoever runs the workers says what that is.

`KC_PYTHONS` holds `NAME=/path/to/bin/python` pairs, separated by commas. A name it lacks is looked for
as `.venv-NAME` beside the environment that runs this. No path ever comes out of a build.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from contracts.builds import BuildSpec, InvalidBuild

SETTING = "KC_PYTHONS"
_OWN = {"vllm": "vllm", "llamacpp": "llamacpp"}  # environments of engines that do not share this one's


class UnknownEnvironment(InvalidBuild):
    """No interpreter has the name a build gives."""


def environment_of(build: BuildSpec) -> str | None:
    """The name of the environment a build runs in; None is the one that runs this."""
    named = build.options.get("python", _OWN.get(build.engine))
    return None if named is None else str(named)


def interpreter(name: str, settings: Mapping[str, str] | None = None, prefix: Path | None = None) -> Path:
    """The interpreter called `name`.

    Args:
        settings: the environment's variables; None is this process's own.
        prefix: the environment that runs this; None is this process's own.

    Raises UnknownEnvironment saying what to set.
    """
    known = pythons((os.environ if settings is None else settings).get(SETTING, ""))
    beside = (prefix or Path(sys.prefix)).parent / f".venv-{name}" / "bin" / "python"
    path = known.get(name, beside)
    if not path.is_file():
        where = f"{SETTING} says {path}, which is no file" if name in known else f"{beside} is not there"
        raise UnknownEnvironment(
            f"no Python environment {name!r}: {where}; set {SETTING}={name}=/path/to/bin/python", name
        )
    return path


def pythons(text: str) -> dict[str, Path]:
    """The interpreters `KC_PYTHONS` names. Raises UnknownEnvironment for what is not NAME=/path."""
    found: dict[str, Path] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, path = part.partition("=")
        if not (equals and name.strip() and Path(path.strip()).is_absolute()):
            raise UnknownEnvironment(f"{SETTING}: {part!r} is not NAME=/path/to/bin/python", part)
        found[name.strip()] = Path(path.strip())
    return found
