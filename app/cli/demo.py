"""`kc demo`: a real model through all four stages, and a faulty build of it stopped.

Everything runs as it would in production, on the embedded default: a control plane with its
worker, a kernel server for each build, a gateway, and users.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from app.cli.demo_plan import FULL, SHORT, on_vllm
from app.cli.demo_processes import Processes
from app.cli.demo_story import Story
from app.cli.errors import CliError
from app.cli.processes import need_measurement


def run(*, short: bool, vllm: bool = False) -> int:
    """Play the demo in `$KC_HOME/demo`; 0 when everything went as it should.

    With `vllm` the engine that is to serve is vLLM.

    Raises CliError when a step fails. Whatever it started is stopped in every case.
    """
    need_measurement()
    home = Path(os.environ.get("KC_HOME", ".kc")).absolute() / "demo"
    environment = {
        "KC_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # Worker and kernel servers share the machine: a thread that waits must not keep a core busy.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    with _alone(home), Processes(home / "logs", environment) as processes:
        plan = SHORT if short else FULL
        Story(_console(), processes, home, on_vllm(plan) if vllm else plan).play()
    return 0


def _console() -> Console:
    # A log has no width of its own: give the tables room.
    console = Console()
    return console if console.is_terminal else Console(width=120)


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Hold the demo's directory for this process; the lock goes when the process does."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "demo.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CliError(f"another demo is running in {home}") from None
        yield
