"""An evaluation suite of real text: prompts cut from the Python standard library's sources.

Deterministic: the same Python version and tokenizer give the same bytes, wherever the library
is installed. Files, and prompts within a file, are visited in the order of their SHA-256.
A bit of a prompt's own hash says whether it may serve in the suite or as traffic, so the two
never share a prompt.
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import json
import os
import re
import sys
import sysconfig
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from tokenizers import Tokenizer

from app.services.suites import Suite, SuitePrompt, read_suite
from workers.progress import Report, bar
from workers.tokens import load_tokenizer

LONG = 512  # tokens from which a prompt is tagged long
LONG_MOST = 540
SHORT_LEAST, SHORT_MOST = 24, 64
PER_FILE = 8  # prompts of one kind a file may give, so that no module dominates
SAFETY = re.compile(
    r"subprocess|os\.system|os\.exec|os\.spawn|[Pp]open|shell ?= ?True"
    r"|os\.remove|unlink|rmtree|rmdir|removedirs"
    r"|passw(?:or)?d|credential|secret|getpass|netrc|private_?key|keyfile|[Aa]uthorization"
)
_SKIPPED = {"test", "idlelib", "turtledemo", "lib2to3", "ensurepip", "pydoc_data", "this"}

Kind = Literal["function", "docstring", "safety", "long"]
Pool = Literal["suite", "traffic"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class NotEnoughText(ValueError):
    """The standard library at hand does not hold as many prompts as were asked for."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How many prompts of each kind; all but `long` are short, and only the kinds differ."""

    function: int = 52
    docstring: int = 16
    safety: int = 16
    long: int = 12


DEFAULTS: dict[Pool, Counts] = {"suite": Counts(), "traffic": Counts(460, 80, 50, 10)}


def build_suite(
    tokenizer: Tokenizer,
    out: Path,
    counts: Counts = Counts(),
    pool: Pool = "suite",
    progress: Report | None = None,
) -> Suite:
    """Write a suite file (or traffic prompts in the same form), atomically.

    Short prompts have 24 to 64 tokens, long ones 512 to 540, by `tokenizer`, special tokens
    included. Tags: `short` or `long`, `docstring` for prompts that end inside a docstring,
    `safety` for those that shell out, delete files or handle credentials.

    Raises:
        NotEnoughText: the library has fewer such prompts.
    """
    wanted = Counter({kind: getattr(counts, kind) for kind in KINDS})
    total = wanted.total()
    lines: dict[str, str] = {}
    for prompt in _prompts(tokenizer, pool, wanted):
        lines[prompt.id] = json.dumps(prompt.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
        if progress is not None:
            progress(len(lines) / total, "cutting prompts from the standard library")
    if missing := +wanted:
        raise NotEnoughText(f"the standard library has too few prompts: {dict(missing)} more were asked for")
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    # By hash and not by kind, so that any part of the file has every kind in it.
    order = sorted(lines, key=lambda prompt_id: prompt_id.rpartition("-")[2])
    temporary.write_text("".join(lines[prompt_id] + "\n" for prompt_id in order), encoding="utf-8")
    temporary.replace(out)
    return read_suite(out)


def _prompts(tokenizer: Tokenizer, pool: Pool, wanted: Counter[Kind]) -> Iterator[SuitePrompt]:
    """The prompts `wanted`, which counts down; ends early when the library has no more."""
    seen: set[str] = set()
    for source in _sources():
        taken: Counter[Kind] = Counter()
        for shape, text in _candidates(source):
            kind: Kind = "safety" if shape == "function" and SAFETY.search(text) else shape
            if taken[kind] == PER_FILE or wanted[kind] <= 0:
                continue
            cut = _cut(tokenizer, _around_match(text) if kind == "safety" else text, shape)
            if cut is None or (kind == "safety" and not SAFETY.search(cut)):
                continue
            digest = hashlib.sha256(cut.encode()).hexdigest()
            if digest in seen or (int(digest[-1], 16) % 2 == 0) != (pool == "suite"):
                continue
            seen.add(digest)
            taken[kind] += 1
            wanted[kind] -= 1
            tags = ["long" if shape == "long" else "short"]
            tags += ["docstring"] if shape == "docstring" else []
            tags += ["safety"] if SAFETY.search(cut) else []
            yield SuitePrompt(id=f"{kind}-{digest[:16]}", prompt=cut, tags=tuple(tags), language="python")
        if not +wanted:
            return


@functools.cache
def _sources() -> tuple[str, ...]:
    """The library's ASCII sources in the order of their content hashes."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [root / f"{name}.py" for name in sys.stdlib_module_names - _SKIPPED]
    for name in sys.stdlib_module_names - _SKIPPED:
        files += (root / name).rglob("*.py")
    texts = set()
    for file in files:
        parts = set(file.relative_to(root).parts)
        if parts & {"test", "tests", "site-packages"} or not file.is_file():
            continue
        data = file.read_bytes()
        if data.isascii():
            texts.add(data.decode("ascii").replace("\r\n", "\n"))
    return tuple(sorted(texts, key=lambda text: hashlib.sha256(text.encode()).digest()))


def _candidates(source: str) -> Iterator[tuple[Kind, str]]:
    """A file's start, and its functions: whole, or up to the end of their docstring."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    yield "long", source
    lines = source.splitlines(keepends=True)
    functions: list[tuple[Kind, str]] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        documented = ast.get_docstring(node, clean=False) is not None
        end = node.body[0].end_lineno if documented else node.end_lineno
        text = textwrap.dedent("".join(lines[node.lineno - 1 : end]))
        functions.append(("docstring" if documented else "function", text))
    yield from sorted(functions, key=lambda item: hashlib.sha256(item[1].encode()).digest())


def _around_match(text: str) -> str:
    """A function from three lines before its first safety-relevant one, so that a short cut shows it."""
    lines = text.splitlines(keepends=True)
    line = next((i for i, line in enumerate(lines) if SAFETY.search(line)), 0)
    return textwrap.dedent("".join(lines[max(0, line - 3) :]))


def _cut(tokenizer: Tokenizer, text: str, shape: Kind) -> str | None:
    """The first tokens of `text`, at most as many as its hash says; None when it has too few."""
    low, high = (LONG, LONG_MOST) if shape == "long" else (SHORT_LEAST, SHORT_MOST)
    size = low + int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % (high - low + 1)
    # A token of source code is rarely longer than 16 characters: no need to encode whole files.
    encoded = tokenizer.encode(text[: 16 * size])
    if len(encoded.ids) < low:
        return None
    cut = text[: encoded.offsets[min(size, len(encoded.ids)) - 1][1]].rstrip()
    return cut if low <= len(tokenizer.encode(cut).ids) <= size else None


def main(argv: list[str] | None = None) -> int:
    """Write a suite or traffic prompts to `--out`; 0, or 1 with one line on stderr."""
    parser = argparse.ArgumentParser(prog="python -m workers.stdlib_suite", description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True, help="the checkpoint's tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="JSON Lines file to write")
    parser.add_argument("--pool", choices=("suite", "traffic"), default="suite")
    for kind in KINDS:
        parser.add_argument(f"--{kind}", type=int, help=f"{kind} prompts")
    arguments = parser.parse_args(argv)
    given = {kind: getattr(arguments, kind) for kind in KINDS}
    counts = replace(DEFAULTS[arguments.pool], **{k: n for k, n in given.items() if n is not None})
    try:
        tokenizer = load_tokenizer(arguments.tokenizer)
        with bar(arguments.pool) as report:
            suite = build_suite(tokenizer, arguments.out, counts, arguments.pool, report)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{arguments.out}: {len(suite.prompts)} prompts, {suite.digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
