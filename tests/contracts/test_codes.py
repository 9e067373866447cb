"""Every code the sources use is registered, and every registered one is used."""

from __future__ import annotations

import re
from pathlib import Path

import contracts
from contracts.codes import CODES, MEANING, READING, REFUSED, SHAPE, UNWISE
from contracts.semantics import PARAMETERS

SOURCES = Path(contracts.__file__).parent
WHERE = ("yaml_tree", "shape", "semantics", "document", "lint", "lint_limits", "lint_policy", "lint_samples")
# built from a name: missing-k, guard-is-candidate ...
BUILT = {
    *PARAMETERS,
    "missing-k", "missing-rl", "missing-reward", "fallback-is-candidate", "guard-is-candidate",
}  # fmt: skip


def test_codes_and_sources_agree() -> None:
    text = "".join((SOURCES / f"{name}.py").read_text(encoding="utf-8") for name in WHERE)
    quoted = set(re.findall(r'"([a-z0-9]+(?:-[a-z0-9]+)*)"', text))
    assert set(CODES) <= quoted | BUILT
    codes = set(
        re.findall(r'(?:Problem\([^"]*|_note\([^"]*|_refuse\([^"]*|, )"([a-z0-9]+(?:-[a-z0-9]+)+)"', text)
    )
    assert codes - {"kernel-contracts"} <= set(CODES)


def test_a_code_has_one_home() -> None:
    groups = (READING, SHAPE, MEANING, REFUSED, UNWISE)
    assert sum(map(len, groups)) == len(CODES)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code) for code in CODES)
