"""How long the parts that must start quickly take: the contract package, and the command line's help.

    python -m benchmarks.startup [--write]

Each is a fresh interpreter, best of ten, next to an interpreter that does nothing and to one that
imports pydantic alone. Wall-clock seconds; to reach: under 0.3 s.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
from pathlib import Path

RESULT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks" / "startup.md"
TARGET, RUNS = 0.3, 10
STARTS = {
    "python, doing nothing": ["-c", ""],
    "python, importing pydantic": ["-c", "import pydantic"],
    "contracts: document, lint, judge, lifecycle": [
        "-c",
        "import contracts.document, contracts.lint, contracts.judge, contracts.lifecycle",
    ],
    "kc --help": ["-m", "app.cli.main", "--help"],
}


def best(arguments: list[str]) -> float:
    """Seconds of the fastest run."""
    times = []
    for _ in range(RUNS):
        started = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    given = parser.parse_args()
    found = {name: best(arguments) for name, arguments in STARTS.items()}
    idle = found["python, doing nothing"]
    rows = [f"| {name} | {seconds:.3f} | {seconds / idle:.1f} |" for name, seconds in found.items()]
    lines = [
        "# Start-up", "",
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}; "
        f"best of {RUNS} fresh interpreters, to stay under {TARGET} s.", "",
        "| what | seconds | times an idle start |", "|---|---:|---:|", *rows, "",
        "Again: `python -m benchmarks.startup --write`.", "",
    ]  # fmt: skip
    text = "\n".join(lines)
    print(text)
    if given.write:
        RESULT.parent.mkdir(parents=True, exist_ok=True)
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
