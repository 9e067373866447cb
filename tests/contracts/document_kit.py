"""A small contract as text, and where its edits go wrong."""

import pytest

from contracts.document import InvalidContract, read

BASE = """\
apiVersion: kernel-contracts/v1
kind: KernelContract
metadata:
  name: small
  version: 1.0.0
pair:
  train: {engine: torch}
  inference: {engine: torch-serving}
slices:
  long:
    where:
      prompt_tokens: {gte: 512}
clauses:
  - id: S1
    family: statistical
    metric: tv
    limit: {lte: 0.1}
    kind: soft
    exceedance: 0.05
    slices: [all, long]
    level: L1
stages:
  shadow: {deadline: 10m}
"""


def places(text: str | bytes) -> list[tuple[int, int, str]]:
    """(line, column, code) of every diagnostic."""
    raw = text.encode() if isinstance(text, str) else text
    with pytest.raises(InvalidContract) as caught:
        read(raw, "c.yaml")
    assert all(d.file == "c.yaml" and d.severity == "error" and d.message for d in caught.value.diagnostics)
    return [(d.line, d.column, d.code) for d in caught.value.diagnostics]


def changed(old: str, new: str) -> str:
    assert BASE.count(old) == 1, old
    return BASE.replace(old, new)
