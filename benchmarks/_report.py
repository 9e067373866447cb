"""What the benchmarks' pages have in common."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from pathlib import Path

import numpy as np


def table(head: list[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def machine() -> str:
    """The processor and what ran on it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = models[0] if models else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}"
