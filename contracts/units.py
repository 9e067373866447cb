"""Quantities with units: `10m`, `300 s`, `2 GiB`, `0.18`. Base units are seconds and bytes."""

from __future__ import annotations

import math
import re
from typing import Any

DURATION_UNITS = {
    "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0,
}  # fmt: skip
SIZE_UNITS = {
    "B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40,
}  # fmt: skip
_QUANTITY = re.compile(r"^\s*([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-zµ%/]*)\s*$")


def _split(text: str) -> tuple[float, str]:
    match = _QUANTITY.match(text)
    if match is None:
        raise ValueError(f"not a number with an optional unit: {text!r}")
    return float(match[1]), match[2]


def duration(value: Any) -> float:
    """Seconds from `10m`, `300 s`, `1.5h` or a bare number of seconds. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"a duration such as 10m or 300 s, not {value!r}")
    if isinstance(value, str):
        number, unit = _split(value)
        if unit and unit not in DURATION_UNITS:
            raise ValueError(f"unknown unit {unit!r} of a duration: use one of {', '.join(DURATION_UNITS)}")
        value = number * DURATION_UNITS.get(unit, 1.0)
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"a duration is finite and not negative, not {value!r}")
    return float(value)


def quantity(value: Any) -> float:
    """A finite float in base units from a number or a string with a unit. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"a number, with a unit where the metric has one, not {value!r}")
    if isinstance(value, str):
        number, unit = _split(value)
        factors = DURATION_UNITS | SIZE_UNITS | {"": 1.0, "%": 0.01, "tok/s": 1.0}
        if unit not in factors:
            raise ValueError(f"unknown unit {unit!r}: use one of {', '.join(filter(None, factors))}")
        value = number * factors[unit]
    if not math.isfinite(value):
        raise ValueError(f"a limit is finite, not {value!r}")
    return float(value)
