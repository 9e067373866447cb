"""Commands that become a long-running process, started by module name."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import NoReturn

from app.cli.errors import CliError


def need_measurement(code: int = 4) -> None:
    """Raise CliError unless the measurement's dependencies are installed; imports none of them."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        raise CliError("measuring needs torch: pip install 'kernel-contracts[torch]'", code)


def become(module: str, *arguments: str) -> NoReturn:
    """Replace this process by `python -m module arguments...`: signals and exit status are its own."""
    if module.startswith("workers."):
        need_measurement()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606
