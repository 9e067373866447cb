"""YAML 1.2 text to plain values that know where they stand.

Works on the parser's events, so nothing is built from what the contract language does not have:
anchors, aliases, merge keys, tags and further documents are refused where they stand, and size,
depth and the number of values are capped. Scalars follow the YAML 1.2 core schema: `NO` is a
word, `010` is ten, `1e3` is a number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

from contracts.diagnostics import Path, Place

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_VALUES = 20_000

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEAN = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_RADIX = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"([-+]?)\.(inf|Inf|INF)")
_NAN = frozenset({".nan", ".NaN", ".NAN"})
_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")  # as the parser counts lines
_FORBIDDEN = re.compile("[\x00\ud800-\udfff]")
_LONGEST_INTEGER = 300  # more digits leave float64's range anyway


@dataclass
class Tree:
    """What was read.

    Attributes:
        root: nested dicts, lists and scalars; None when nothing could be read.
        keys, values: where the key and the value of a path stand.
        problems: (place, code, message) of what the language refuses.
        refused: paths whose value was refused; nothing more is to be said about them.
        incomplete: mappings that lost an entry; keys may be missing only because of that.
    """

    root: Any = None
    keys: dict[Path, Place] = field(default_factory=dict)
    values: dict[Path, Place] = field(default_factory=dict)
    problems: list[tuple[Place, str, str]] = field(default_factory=list)
    refused: set[Path] = field(default_factory=set)
    incomplete: set[Path] = field(default_factory=set)


class _Stop(Exception):
    """Reading cannot go on; the problem is already noted."""


def read_tree(raw: bytes) -> tuple[Tree, str]:
    """The tree and the decoded text of a document; never raises, problems are in the tree."""
    tree = Tree()
    if len(raw) > MAX_BYTES:
        tree.problems.append(((1, 1), "too-large", f"{len(raw)} bytes; a contract has at most {MAX_BYTES}"))
        return tree, ""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        tree.problems.append((_place_in(raw, error.start), "not-utf8", _encoding(raw, error.start)))
        return tree, ""
    body = text.removeprefix("\ufeff")
    try:
        _Builder(tree, body).build()
    except _Stop:
        tree.root = None
    except ReaderError as error:
        place = _place_in(body.encode(), len(body[: error.position].encode()))
        message = f"character U+{ord(body[error.position]):04X} is not allowed in YAML"
        tree.problems.append((place, "character", message))
        tree.root = None
    except YAMLError as error:
        tree.problems.append(_syntax(error, body))
        tree.root = None
    return tree, text


def _place_in(raw: bytes, offset: int) -> Place:
    lines = _BREAK.split(raw[:offset].decode("utf-8", "replace").removeprefix("\ufeff"))
    return len(lines), len(lines[-1]) + 1


def _encoding(raw: bytes, start: int) -> str:
    wide = " (this looks like UTF-16)" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
    return f"byte 0x{raw[start]:02X} is not UTF-8{wide}: save the file as UTF-8"


def _syntax(error: YAMLError, text: str) -> tuple[Place, str, str]:
    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        return (1, 1), "syntax", str(error).splitlines()[0]
    mark = error.problem_mark
    place = (mark.line + 1, mark.column + 1)
    if text[mark.index : mark.index + 1] == "\t":
        return place, "tab", "a tab: contracts are written with spaces"
    began = error.context_mark
    where = f", {error.context} that began at line {began.line + 1}" if error.context and began else ""
    return place, "syntax", f"not YAML: {error.problem}{where}"


class _Builder:
    """One pass over the events of one document."""

    def __init__(self, tree: Tree, text: str) -> None:
        self._tree = tree
        self._text = text
        self._events: Iterator[Event] = YAML(typ="safe", pure=True).parse(text)
        self._count = 0

    def build(self) -> None:
        """Read the first document; a second one is a problem, an empty one too."""
        documents = 0
        for event in self._events:
            if not isinstance(event, DocumentStartEvent):
                continue
            documents += 1
            if documents > 1:
                self._note(_place(event), "several-documents", "a second document: one file is one contract")
                return
            self._directives(event)
            self._tree.root = self._node(next(self._events), (), 0)
        if documents == 0:
            self._note((1, 1), "empty", "the document is empty")

    def _directives(self, event: DocumentStartEvent) -> None:
        if event.version in (None, (1, 2)):
            return
        lines = self._text.splitlines()
        number = next((n for n, line in enumerate(lines, 1) if line.startswith("%YAML")), 1)
        self._note(
            (number, 1), "yaml-version", "contracts are YAML 1.2: remove the directive or write %YAML 1.2"
        )

    def _note(self, place: Place, code: str, message: str) -> None:
        self._tree.problems.append((place, code, message))

    def _refuse(self, path: Path, place: Place, code: str, message: str) -> None:
        self._note(place, code, message)
        self._tree.refused.add(path)

    def _node(self, event: Any, path: Path, depth: int) -> Any:
        place = _place(event)
        if isinstance(event, ScalarEvent) and not event.value and _plain(event):
            place = self._tree.keys.get(path, place)  # the parser puts an absent value at the next token
        self._tree.values[path] = place
        self._count += 1
        if depth > MAX_DEPTH or self._count > MAX_VALUES:
            what = (
                f"nested more than {MAX_DEPTH} deep"
                if depth > MAX_DEPTH
                else f"more than {MAX_VALUES} values"
            )
            self._note(place, "too-complex", f"{what}: this is no contract")
            raise _Stop
        if isinstance(event, AliasEvent):
            return self._refuse(path, place, "alias", f"alias *{event.anchor}: write the value out")
        if event.anchor is not None:
            self._refuse(
                path, place, "anchor", f"anchor &{event.anchor}: contracts have no anchors and aliases"
            )
        if event.tag is not None and not _implicit(event):
            self._refuse(path, place, "tag", f"tag {event.tag}: contracts have no tags")
        if isinstance(event, MappingStartEvent):
            return self._mapping(path, depth)
        if isinstance(event, SequenceStartEvent):
            return self._sequence(path, depth)
        return self._scalar(event, path, place)

    def _sequence(self, path: Path, depth: int) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), SequenceEndEvent):
            items.append(self._node(event, (*path, len(items)), depth + 1))
        return items

    def _mapping(self, path: Path, depth: int) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        while not isinstance(event := next(self._events), MappingEndEvent):
            key = self._key(event, path, depth, entries)
            if key is None:
                self._tree.incomplete.add(path)
                self._discard(depth)
                continue
            self._tree.keys[(*path, key)] = _place(event)
            entries[key] = self._node(next(self._events), (*path, key), depth + 1)
        return entries

    def _key(self, event: Event, path: Path, depth: int, entries: dict[str, Any]) -> str | None:
        """The key as a word, or None when it is refused."""
        place = _place(event)
        if not isinstance(event, ScalarEvent):
            self._discard(depth, event)
            self._note(place, "key", "a key is a plain word")
            return None
        key: str = event.value
        if key == "<<" and _plain(event):
            self._note(place, "merge-key", "merge key <<: write the keys out")
        elif event.anchor is not None or not _implicit(event):
            self._note(place, "key", f"key {key!r} has an anchor or a tag: contracts have none")
        elif _plain(event) and not isinstance(_resolve(key), str):
            self._note(place, "key", f"key {key!r} is not a word to YAML: put it in quotes")
        elif _FORBIDDEN.search(key):
            self._note(place, "character", "a key with a NUL or half a surrogate pair")
        elif key in entries:
            first = self._tree.keys[(*path, key)]
            self._note(place, "duplicate-key", f"key {key!r} is given twice; first at line {first[0]}")
        else:
            return key
        return None

    def _discard(self, depth: int, event: Event | None = None) -> None:
        """Read past a value without keeping it; its own problems are not of interest."""
        shadow = _Builder(Tree(), self._text)
        shadow._events, shadow._count = self._events, self._count
        try:
            shadow._node(event or next(self._events), (), depth + 1)
        except _Stop:
            self._tree.problems += shadow._tree.problems[-1:]
            raise
        self._count = shadow._count

    def _scalar(self, event: ScalarEvent, path: Path, place: Place) -> Any:
        text: str = event.value
        value = _resolve(text) if _plain(event) else text
        if value is None:
            return self._refuse(path, place, "no-value", "no value here: give one or remove the key")
        if isinstance(value, str) and _FORBIDDEN.search(value):
            return self._refuse(path, place, "character", "text with a NUL or half a surrogate pair")
        return value


def _place(event: Event) -> Place:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _plain(event: ScalarEvent) -> bool:
    return bool(event.implicit[0]) and event.style is None


def _implicit(event: Any) -> bool:
    return any(event.implicit) if isinstance(event, ScalarEvent) else bool(event.implicit)


def _resolve(text: str) -> str | bool | int | float | None:
    """A plain scalar's value by the YAML 1.2 core schema."""
    if text in _NULL:
        return None
    if text in _BOOLEAN:
        return _BOOLEAN[text]
    if _INTEGER.fullmatch(text):
        return int(text) if len(text) <= _LONGEST_INTEGER else float(text)
    if _RADIX.fullmatch(text):
        return int(text, 0) if len(text) <= _LONGEST_INTEGER else math.inf
    if _FLOAT.fullmatch(text):
        return float(text)
    if sign := _INFINITE.fullmatch(text):
        return -math.inf if sign[1] == "-" else math.inf
    return math.nan if text in _NAN else text
