"""One progress bar on stderr for whatever takes long; stdout is for results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[float, str], None]


@contextmanager
def bar(what: str) -> Iterator[Report]:
    """A bar that follows calls with the share done in [0, 1] and what is being done."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=1.0)
        yield lambda share, doing: progress.update(task, completed=share, description=f"{what}: {doing}")


def silent(_share: float, _what: str) -> None:
    """Nobody watches."""
