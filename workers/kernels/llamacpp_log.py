"""What llama.cpp says of itself while it loads: the only place where it tells some of what it runs."""

from __future__ import annotations

import ctypes
import functools
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

log = logging.getLogger(__name__)

_WARNING, _ERROR, _CONTINUED = 3, 4, 5  # ggml's levels; a continued line has the level of the one before

Lines = Sequence[tuple[int, str]]


class _Listener:
    """llama.cpp has one log for the whole process; this is where it goes."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, str]] | None = None
        self._level = 0

    def heard(self, level: int, text: bytes, _data: Any) -> None:
        self._level = self._level if level == _CONTINUED else level
        line = text.decode(errors="replace").rstrip("\n")
        if self.kept is not None:
            self.kept.append((self._level, line))
        elif self._level in (_WARNING, _ERROR) and line:
            log.warning("llama.cpp: %s", line)


_listener = _Listener()


@functools.cache
def _callback() -> Any:
    import llama_cpp

    return llama_cpp.llama_log_callback(_listener.heard)


@contextmanager
def captured() -> Iterator[list[tuple[int, str]]]:
    """The lines llama.cpp logs while open, as (level, text); afterwards its warnings go to this log."""
    import llama_cpp

    llama_cpp.llama_log_set(_callback(), ctypes.c_void_p(0))
    _listener.kept = found = []
    try:
        yield found
    finally:
        _listener.kept = None


def reason(lines: Lines) -> str:
    """The last error in words."""
    errors = [text.strip() for level, text in lines if level == _ERROR and text.strip()]
    return errors[-1] if errors else "llama.cpp cannot load it and does not say why"


def _found(pattern: str, lines: Lines) -> list[tuple[str, ...]]:
    return [match.groups() for _, text in lines if (match := re.search(pattern, text))]


def cache_types(lines: Lines) -> tuple[str | None, str | None]:
    """GGUF types of the cache's keys and values, or None twice where it has not said."""
    found = set(_found(r"K \((\w+)\):.*V \((\w+)\):", lines))
    if len(found) != 1:
        return None, None
    keys, values = found.pop()
    return keys, values


def attention(lines: Lines) -> str | None:
    """`flash` or `graph`, which is attention as separate operations; None where it has not said."""
    found = {word for (word,) in _found(r"flash_attn\s+= (\w+)", lines)}
    return {"enabled": "flash", "disabled": "graph"}.get(found.pop()) if len(found) == 1 else None


def devices(lines: Lines) -> str:
    """The accelerators in use, by name and description; `cpu` without any."""
    found = dict.fromkeys(f"{name} {what}" for name, what in _found(r"using device (\S+) \(([^)]*)\)", lines))
    return ", ".join(found) or "cpu"


def features(system: str) -> str:
    """The instruction sets and code paths compiled in, from the line of system information."""
    return ",".join(sorted(dict.fromkeys(re.findall(r"(\w+) = 1\b", system))))
