"""Quantities with units: `10m`, `300 s`, `2 GiB`, `5%`, `0.18`. Base units are seconds and bytes.

Products are taken in decimal and rounded once, so `1.1 ms` is exactly the float64 of 0.0011.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

DURATION_UNITS = {
    "us": "1e-6", "µs": "1e-6", "ms": "1e-3", "s": "1", "m": "60", "min": "60", "h": "3600", "d": "86400",
}  # fmt: skip
SIZE_UNITS = {
    "B": "1", "kB": "1e3", "KB": "1e3", "MB": "1e6", "GB": "1e9", "TB": "1e12",
    "KiB": str(2**10), "MiB": str(2**20), "GiB": str(2**30), "TiB": str(2**40),
}  # fmt: skip
PLAIN_UNITS = {"%": "0.01", "tok/s": "1", "nats": "1", "logits": "1"}
_FACTORS = DURATION_UNITS | SIZE_UNITS | PLAIN_UNITS | {"": "1"}
_NUMBER = r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?"
# as regular expressions of JSON Schema, for editors
DURATION_PATTERN = rf"^\s*\+?{_NUMBER}\s*({'|'.join(DURATION_UNITS)})?\s*$"
QUANTITY_PATTERN = rf"^\s*[+-]?{_NUMBER}\s*({'|'.join(filter(None, _FACTORS))})?\s*$"
_QUANTITY = re.compile(r"\s*([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-zµ%/]*)\s*", re.ASCII)


def _split(text: str) -> tuple[str, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"not a number with an optional unit: {text!r}")
    return match[1], match[2]


def _product(number: str, unit: str) -> float:
    plain = float(number)
    # beyond float64's range the decimal product would cost memory or overflow, and changes nothing
    if plain == 0.0 or not math.isfinite(plain):
        return plain
    return float(Decimal(number) * Decimal(_FACTORS[unit]))


def duration(value: Any) -> float:
    """Seconds from `10m`, `300 s`, `1.5h` or a bare number of seconds. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"a duration such as 10m or 300 s, not {value!r}")
    if isinstance(value, str):
        number, unit = _split(value)
        if unit and unit not in DURATION_UNITS:
            raise ValueError(f"unknown unit {unit!r} of a duration: use one of {', '.join(DURATION_UNITS)}")
        value = _product(number, unit)
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"a duration is finite and not negative, not {value!r}")
    return float(value)


def quantity(value: Any) -> float:
    """A finite float in base units from a number or a string with a unit. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"a number, with a unit where the metric has one, not {value!r}")
    if isinstance(value, str):
        number, unit = _split(value)
        if unit not in _FACTORS:
            raise ValueError(f"unknown unit {unit!r}: use one of {', '.join(filter(None, _FACTORS))}")
        value = _product(number, unit)
    if not math.isfinite(value):
        raise ValueError(f"a limit is finite, not {value!r}")
    return float(value)


def unit_of(value: Any) -> str:
    """The base unit a written quantity is in: `s`, `B`, `tok/s`, `nats`, `logits`, `%`, or "" for none."""
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    unit = match[2] if match else ""
    return "s" if unit in DURATION_UNITS else "B" if unit in SIZE_UNITS else unit
