"""Commands that become a long-running process, started by module name."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import NoReturn

from app.cli.errors import NOT_MEASURED, CliError


def need_measurement() -> None:
    """Raise CliError unless the measurement's dependencies are installed; imports none of them."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        raise CliError("measuring needs torch: pip install 'kernel-contracts[torch]'", NOT_MEASURED)


def become(module: str, *arguments: str) -> NoReturn:
    """Replace this process by `python -m module arguments...`: signals and exit status are its own."""
    if module.startswith("workers."):
        need_measurement()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606


def serve(host: str, port: int, *, embedded_worker: bool) -> NoReturn:
    """Become the control plane."""
    worker = "--embedded-worker" if embedded_worker else "--no-embedded-worker"
    become("app.main", "--host", host, "--port", str(port), worker)
