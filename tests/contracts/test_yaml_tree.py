"""Reading YAML: every corner has one defined answer (docs/contract-language.md lists them)."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from contracts.yaml_tree import MAX_BYTES, MAX_DEPTH, MAX_VALUES, read_tree


def value(text: str) -> Any:
    """The value of the only key, `a`."""
    tree, _ = read_tree(f"a: {text}\n".encode())
    assert tree.problems == []
    return tree.root["a"]


def problems(raw: bytes | str) -> list[tuple[int, int, str]]:
    tree, _ = read_tree(raw.encode() if isinstance(raw, str) else raw)
    return [(*place, code) for place, code, _ in tree.problems]


SCALARS = [
    ("NO", "NO"), ("no", "no"), ("yes", "yes"), ("on", "on"), ("Off", "Off"), ("y", "y"),
    ("true", True), ("True", True), ("FALSE", False), ("tRUE", "tRUE"),
    ("010", 10), ("0o10", 8), ("0x1F", 31), ("0b1", "0b1"), ("1_000", "1_000"), ("+5", 5), ("-5", -5),
    ("1e3", 1000.0), ("1E+3", 1000.0), ("1.", 1.0), (".5", 0.5), ("1e400", math.inf), ("-.inf", -math.inf),
    ("1:30", "1:30"), ("2026-01-02", "2026-01-02"), ("10m", "10m"), ("300 s", "300 s"), ("5%", "5%"),
    ("'010'", "010"), ('"true"', "true"), ("|\n  x\n  y", "x\ny\n"), (">\n  x\n  y", "x y\n"),
    ("=", "="), ("<<", "<<"), ("null_", "null_"), ("ÿ∞", "ÿ∞"), ('"\\u00e9"', "é"),
    ("9" * 400, math.inf), ("0x" + "f" * 400, math.inf),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), SCALARS, ids=lambda v: repr(v)[:20])
def test_core_schema(text: str, expected: Any) -> None:
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


def test_not_a_number_is_a_number_to_yaml() -> None:
    assert math.isnan(value(".nan"))


REFUSED = [
    ("a: 1\na: 2\n", [(2, 1, "duplicate-key")]),
    ("a: {b: 1, 'b': 2}\n", [(1, 11, "duplicate-key")]),
    ("a: &x 1\nb: *x\n", [(1, 4, "anchor"), (2, 4, "alias")]),
    ("a: *x\n", [(1, 4, "alias")]),
    ("a: &x\n  <<: *x\n", [(1, 4, "anchor"), (2, 3, "merge-key")]),
    ("<<: {b: 1}\n", [(1, 1, "merge-key")]),
    ("a: !!int '1'\n", [(1, 4, "tag")]),
    ("a: !mine {}\n", [(1, 4, "tag")]),
    ("%TAG ! tag:x,2000:\n---\na: !y 1\n", [(3, 4, "tag")]),
    ("a:\n", [(1, 1, "no-value")]),
    ("a: [~, null]\n", [(1, 5, "no-value"), (1, 8, "no-value")]),
    ("a: 1\n\tb: 2\n", [(2, 1, "tab")]),
    ("a:\n\t- 1\n", [(2, 1, "tab")]),
    ("a:\t1\n", [(1, 3, "tab")]),
    ("a: 1\t# comment\n", [(1, 5, "tab")]),
    ("true: 1\n", [(1, 1, "key")]),
    ("3: 1\n", [(1, 1, "key")]),
    ("? {a: 1}\n: 1\n", [(1, 3, "key")]),
    ("a: 1\n--- \nb: 2\n", [(2, 1, "several-documents")]),
    ("a: 1\n...\n---\nb: 2\n", [(3, 1, "several-documents")]),
    ("%YAML 1.1\n---\na: 1\n", [(1, 1, "yaml-version")]),
    ("# x\n%YAML 1.1\n---\na: 1\n", [(2, 1, "yaml-version")]),
    ("a: 'x\n", [(2, 1, "syntax")]),
    ("a: [1\nb: 2\n", [(2, 2, "syntax")]),
    ("a: {b: 1}}\n", [(1, 10, "syntax")]),
    ("a: \x01\n", [(1, 4, "character")]),
    ('a: "\\0"\n', [(1, 4, "character")]),
    ("", [(1, 1, "empty")]),
    ("\ufeff", [(1, 1, "empty")]),
    ("# only a comment", [(1, 1, "empty")]),
]


@pytest.mark.parametrize(("text", "expected"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_is_refused_and_where(text: str, expected: list[tuple[int, int, str]]) -> None:
    assert problems(text) == expected


ACCEPTED = [
    "%YAML 1.2\n---\na: 1\n",
    "---\na: 1\n...\n",
    "\ufeffa: 1\n",
    "\ufeff---\r\na: 1\r\n",
    "a: 1 #\tcomment\n",
    "a: 1\r\n",
    "a: 1\r",
    "a: 1",
    "# \u2028\na: 1\n",
    "{a: 1}",
    '{"a": 1}',
    "a:\n  1\n",
]


@pytest.mark.parametrize("text", ACCEPTED, ids=repr)
def test_what_is_one_and_the_same(text: str) -> None:
    tree, decoded = read_tree(text.encode())
    assert (tree.problems, tree.root) == ([], {"a": 1})
    assert decoded == text


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        (b"a: \xe9\n", (1, 4)),
        (b"a: 1\r\nb: \xff\n", (2, 4)),
        ("a: 1\n".encode("utf-16"), (1, 1)),
        (b"\xed\xa0\x80", (1, 1)),
        (b"a: \xc3", (1, 4)),
    ],
)
def test_not_utf8(raw: bytes, place: tuple[int, int]) -> None:
    assert problems(raw) == [(*place, "not-utf8")]


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_line_ends_count_alike(ends: str) -> None:
    text = "a: 1\nb:\n  - 2\n  - *x\n".replace("\n", ends)
    assert problems(text) == [(4, 5, "alias")]
    assert problems(text.replace("*x", "\x01")) == [(4, 5, "character")]


def test_caps() -> None:
    assert problems(b"a: " + b"x" * (MAX_BYTES - 3)) == []
    assert problems(b"a: " + b"x" * (MAX_BYTES - 2)) == [(1, 1, "too-large")]
    nested = "a: " + "[" * (MAX_DEPTH - 1) + "1" + "]" * (MAX_DEPTH - 1)
    assert problems(nested) == []
    assert [code for *_, code in problems("a: [[" + nested[3:] + "]]")] == ["too-complex"]
    assert problems("a: [" + "1," * (MAX_VALUES - 2) + "]") == []
    assert [code for *_, code in problems("a: [" + "1," * MAX_VALUES + "]")] == ["too-complex"]


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


BOMBS = {
    "aliases": bomb(40),
    "open brackets": "a: " + "[" * 500_000,
    "open braces": "{a: " * 100_000,
    "nested keys": "? " * 100_000,
    "dashes": "- " * 100_000 + "x",
    "anchors": "a: " + "&x " * 100_000,
    "long key": "k" * 500_000 + ": 1",
    "quotes": "a: '" + "''" * 400_000 + "'",
    "directives": "%FOO bar\n" * 50_000 + "---\na: 1\n",
    "digits": "a: " + "9" * 1_000_000,
    "comments": "#\n" * 400_000 + "a: 1\n",
}


@pytest.mark.parametrize("name", [*BOMBS])
def test_bombs_are_defused_in_seconds_and_without_recursion(name: str) -> None:
    began = time.process_time()
    tree, _ = read_tree(BOMBS[name].encode())
    assert time.process_time() - began < 10.0
    assert tree.problems or tree.root is not None
    if name == "aliases":
        codes = {code for _, code, _ in tree.problems}
        assert codes == {"anchor", "alias"}
