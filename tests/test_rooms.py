"""Room rules that import-linter cannot say: what is imported lazily, and who commits."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {
    "alembic", "celery", "fastapi", "httpx2", "jinja2", "numpy", "pyarrow", "scipy", "sqlalchemy",
    "structlog", "torch", "transformers", "uvicorn",
}  # fmt: skip


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def modules(room: str) -> list[str]:
    paths = (path.relative_to(ROOT).with_suffix("") for path in files(room))
    return [".".join(path.parts).removesuffix(".__init__") for path in paths]


def loaded_by(*code: str) -> set[str]:
    """Top-level packages in sys.modules after the code ran in a fresh interpreter."""
    script = "\n".join((*code, "import sys", "print(*{name.partition('.')[0] for name in sys.modules})"))
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT, timeout=60
    )
    assert run.returncode == 0, run.stderr
    return set(run.stdout.splitlines()[-1].split())


def test_contracts_load_nothing_heavy() -> None:
    names = [name for name in modules("contracts") if not name.endswith("__main__")]
    assert not loaded_by(*(f"import {name}" for name in names)) & HEAVY


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from app.cli.main import app",
        "try: app(['--help'])",
        "except SystemExit: pass",
    )
    assert not loaded_by(*code) & (HEAVY | {"pydantic", "rich", "contracts"})


def test_app_loads_no_measurement() -> None:
    code = [f"import {name}" for name in modules("app") if not name.endswith("__main__")]
    assert not loaded_by(*code) & {"torch", "transformers", "workers"}


@pytest.mark.parametrize("path", files("app/services"), ids=lambda path: path.name)
def test_a_service_never_commits(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            assert node.func.attr not in {"commit", "rollback"}, f"{path.name}:{node.lineno}"


@pytest.mark.parametrize("path", files("workers/kernels"), ids=lambda path: path.name)
def test_a_kernel_knows_contracts_only(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: a relative import"
            names = [node.module or ""]
        for name in names:
            inside = name.split(".")[0] in {"app", "workers"}
            assert not inside or name == "workers.kernels" or name.startswith("workers.kernels."), (
                f"{path.name}:{node.lineno} imports {name}"
            )
