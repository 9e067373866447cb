"""The shape of the repository: what lies where, how long a file is, that tests mirror the sources."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("app", "contracts", "workers")
LONGEST = 400

SOURCES = sorted(
    path.relative_to(ROOT)
    for room in (*ROOMS, "benchmarks", "migrations", "tests")
    for path in (ROOT / room).rglob("*.py")
)
TESTS = sorted(
    path.relative_to(ROOT) for room in ROOMS for path in (ROOT / "tests" / room).rglob("test_*.py")
)


def test_top_level() -> None:
    expected = {
        "pyproject.toml", "docker-compose.yml", "Makefile", "README.md", "CONTRIBUTING.md", "CHANGELOG.md",
        "LICENSE", "app", "contracts", "workers", "migrations", "deploy", "tests", "benchmarks", "docs",
    }  # fmt: skip
    assert expected <= {path.name for path in ROOT.iterdir()}


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_files_stay_readable(path: Path) -> None:
    lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST, f"{path} has {lines} lines; split it"


@pytest.mark.parametrize("path", TESTS, ids=str)
def test_tests_mirror_the_sources(path: Path) -> None:
    folder = Path(*path.parts[1:-1])
    words = path.stem.removeprefix("test_").split("_")
    # test_judge_streams.py may hold a part of what tests contracts/judge.py.
    names = ["_".join(words[:end]) for end in range(len(words), 0, -1)]
    sources = [ROOT / folder / f"{name}.py" for name in names] + [ROOT / folder / name for name in names]
    assert any(source.exists() for source in sources), f"{path} tests nothing in {folder}/"
