"""Contract documents on their way in: read, linted, refused with every diagnostic at its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from app.errors import ContractRefused
from contracts.builds import Fingerprint
from contracts.diagnostics import Diagnostic
from contracts.document import Document, InvalidContract, read
from contracts.lint import lint

FILE = "contract.yaml"  # what diagnostics call a document that came without a name


@lru_cache(maxsize=64)
def accept(text: bytes, file: str = FILE) -> tuple[Document, Sequence[Diagnostic]]:
    """The document and its lint warnings.

    Raises ContractRefused with every diagnostic when it does not read, or reads and judges nothing.
    """
    try:
        document = read(text, file)
    except InvalidContract as error:
        raise refused(error.diagnostics) from None
    return document, tuple(checked(document))


def checked(document: Document, builds: Mapping[str, Fingerprint] | None = None) -> list[Diagnostic]:
    """The lint warnings of a document. Raises ContractRefused when lint finds errors.

    `builds` are registered builds by name; with them guard and fallback are checked too.
    """
    found = lint(document, builds)
    if any(one.severity == "error" for one in found):
        raise refused(found)
    return found


def refused(diagnostics: Iterable[Diagnostic]) -> ContractRefused:
    """The error that tells of all of these; at least one is an error."""
    found = list(diagnostics)
    errors = [one for one in found if one.severity == "error"]
    detail = f"{len(errors)} problem(s), the first one: {errors[0]}"
    return ContractRefused(detail, diagnostics=[row(one) for one in found])


def row(one: Diagnostic) -> dict[str, Any]:
    """One diagnostic as JSON."""
    return {key: getattr(one, key) for key in ("file", "line", "column", "code", "severity", "message")}
