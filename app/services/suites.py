"""Evaluation suites: JSON Lines, one prompt a line, checked whole before any is used.

A line is `{"id": ..., "prompt": ... or "token_ids": [...], "tags": [...], "language": ...}`;
with token ids, `"tokenizer_digest"` says whose they are.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StrictInt, StrictStr, ValidationError, model_validator

from contracts.metrics import nearest
from contracts.model import Frozen

SHOWN = 20  # problems spelled out in a message; the rest are counted


@dataclass(frozen=True, slots=True)
class SuiteProblem:
    """One thing wrong with a suite; `line` counts from 1, 0 is the file itself."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.message}"


class InvalidSuite(ValueError):
    """The suite cannot be used; `problems` are all of them, in file order."""

    def __init__(self, problems: list[SuiteProblem]) -> None:
        rest = f"\n... and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        super().__init__("\n".join(map(str, problems[:SHOWN])) + rest)
        self.problems = tuple(problems)


TokenId = Annotated[StrictInt, Field(ge=0)]


class SuitePrompt(Frozen):
    """One prompt: text, token ids, or both, and what a grader needs.

    Token ids beside the text pin it: a tokenizer that makes other ids of the text is refused.

    Attributes:
        reference: the right answer, for grader `exact-match`.
        tests: Python that raises unless the answer is right, for grader `unit-tests`.
        max_new_tokens: how many tokens to generate at most; the evaluation's default when left out.
    """

    id: Annotated[StrictStr, Field(min_length=1, max_length=256)]
    prompt: Annotated[StrictStr, Field(min_length=1)] | None = None
    token_ids: Annotated[tuple[TokenId, ...], Field(min_length=1)] | None = None
    tags: tuple[Annotated[StrictStr, Field(min_length=1)], ...] = ()
    language: StrictStr = ""
    tokenizer_digest: StrictStr | None = None
    reference: StrictStr | None = None
    tests: Annotated[StrictStr, Field(min_length=1)] | None = None
    max_new_tokens: Annotated[StrictInt, Field(ge=1, le=65_536)] | None = None

    @model_validator(mode="after")
    def _text_or_ids(self) -> SuitePrompt:
        if self.prompt is None and self.token_ids is None:
            raise ValueError("a prompt has prompt, token_ids or both")
        if self.prompt is not None and self.token_ids is not None and self.tokenizer_digest is None:
            raise ValueError("token_ids beside a prompt need tokenizer_digest: whose ids they are")
        if self.tokenizer_digest is not None and self.token_ids is None:
            raise ValueError("tokenizer_digest belongs to token_ids, and there are none")
        return self


class Suite(Frozen):
    """A suite as read. The order of prompts is part of its identity: batches depend on it."""

    prompts: Annotated[tuple[SuitePrompt, ...], Field(min_length=1)]

    @property
    def digest(self) -> str:
        """Content digest: `sha256:` over the canonical lines, in order."""
        hasher = hashlib.sha256()
        for prompt in self.prompts:
            value = prompt.model_dump(mode="json", exclude_defaults=True)
            hasher.update(json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n")
        return "sha256:" + hasher.hexdigest()

    @property
    def tokenizer_digest(self) -> str | None:
        """Whose token ids it holds; None when they do not say, or there are none."""
        return next((p.tokenizer_digest for p in self.prompts if p.tokenizer_digest), None)


def read_suite(path: Path | str, tokenizer_digest: str | None = None) -> Suite:
    """Read and check a suite file.

    Args:
        path: UTF-8 JSON Lines; blank lines are skipped.
        tokenizer_digest: the checkpoint's; token ids of another tokenizer are then refused.

    Raises:
        InvalidSuite: with every problem found, each with its line.
    """
    file = str(path)
    try:
        lines = Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise InvalidSuite([SuiteProblem(file, 0, f"cannot be read: {error.strerror}")]) from None
    prompts: dict[str, tuple[int, SuitePrompt]] = {}
    problems: list[SuiteProblem] = []
    expected = tokenizer_digest
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            prompt = _prompt(line)
        except ValueError as error:
            problems += [SuiteProblem(file, number, message) for message in _messages(error)]
            continue
        if prompt.id in prompts:
            message = f"id {prompt.id!r} is already used on line {prompts[prompt.id][0]}"
            problems.append(SuiteProblem(file, number, message))
        if prompt.tokenizer_digest is not None:
            expected = expected or prompt.tokenizer_digest
            if prompt.tokenizer_digest != expected:
                message = f"token ids of tokenizer {prompt.tokenizer_digest}, expected {expected}"
                problems.append(SuiteProblem(file, number, message))
        prompts.setdefault(prompt.id, (number, prompt))
    if not prompts and not problems:
        problems.append(SuiteProblem(file, 0, "the suite is empty: it has no prompt"))
    if problems:
        raise InvalidSuite(problems)
    return Suite(prompts=tuple(prompt for _, prompt in prompts.values()))


def _prompt(line: bytes) -> SuitePrompt:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    try:
        value = json.loads(text, object_pairs_hook=_no_duplicates)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return SuitePrompt.model_validate(value)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(k for k in keys if keys.count(k) > 1)!r} is given twice")
    return value


def _messages(error: ValueError) -> list[str]:
    if not isinstance(error, ValidationError):
        return [str(error)]
    messages = []
    first = {(*detail["loc"], "")[0]: detail for detail in reversed(error.errors(include_url=False))}
    for detail in reversed(first.values()):  # one a key: the rest follow from it
        where = ".".join(map(str, detail["loc"]))
        if detail["type"] == "extra_forbidden":
            close = nearest(where, list(SuitePrompt.model_fields))
            hint = f"; did you mean {close!r}?" if close else ""
            messages.append(f"unknown key {where!r}{hint}")
        else:
            text = detail["msg"].removeprefix("Value error, ")
            messages.append(f"{where}: {text}" if where else text)
    return messages
