"""What is wrong with a contract document, and exactly where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Path = tuple[str | int, ...]  # from the document's root: ("clauses", 0, "limit")
Place = tuple[int, int]  # line and column, both from 1, columns in characters


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """A finding before it has a file: the path it is about, and whether the key or the value is meant."""

    path: Path
    code: str
    message: str
    at_key: bool = False


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. Lines and columns count from 1, columns in characters; `code` is stable."""

    file: str
    line: int
    column: int
    code: str
    severity: Literal["error", "warning"]
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message}"


class InvalidContract(ValueError):
    """The document is not a contract. `diagnostics` holds every problem, in order of place."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = in_order(diagnostics)
        super().__init__("\n".join(str(one) for one in self.diagnostics))


def in_order(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """By place, each once."""
    return tuple(sorted(dict.fromkeys(diagnostics), key=lambda d: (d.line, d.column, d.code, d.message)))
