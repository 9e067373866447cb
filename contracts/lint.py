"""What reads as a contract and is refused or unwise all the same.

Errors are clauses and contracts that judge nothing: no pair could keep them, or none could break
them. Warnings are limits that say little, and parts that are missing. Codes: :mod:`contracts.codes`.
"""

from __future__ import annotations

from collections.abc import Mapping

from contracts.builds import Fingerprint
from contracts.codes import severity
from contracts.diagnostics import Diagnostic, in_order
from contracts.document import Document
from contracts.lint_limits import limits
from contracts.lint_policy import builds_named, policy
from contracts.lint_samples import samples


def lint(document: Document, builds: Mapping[str, Fingerprint] | None = None) -> list[Diagnostic]:
    """Warnings and errors about a contract that reads, in order of place.

    `builds` are the fingerprints of registered builds by name, where they are known; with
    them the guard and fallback builds are checked too.
    """
    contract = document.contract
    problems = [
        *samples(contract),
        *limits(contract),
        *policy(contract),
        *builds_named(contract, builds or {}),
    ]
    return list(
        in_order(
            Diagnostic(document.file, *document.locate(*one.path), one.code, severity(one.code), one.message)
            for one in problems
        )
    )
