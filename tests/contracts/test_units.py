"""Quantities against hand-computed values, exact in float64."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.units import DURATION_UNITS, SIZE_UNITS, duration, quantity, unit_of


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("10m", 600.0),
        ("10 min", 600.0),
        ("300 s", 300.0),
        ("1.5h", 5400.0),
        ("24h", 86_400.0),
        ("1d", 86_400.0),
        ("1.1 ms", 0.0011),
        ("7us", 7e-06),
        ("7 µs", 7e-06),
        ("1e2 s", 100.0),
        (3, 3.0),
        ("3", 3.0),
        (0.5, 0.5),
    ],
)
def test_durations(written: object, seconds: float) -> None:
    assert duration(written) == seconds


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("2 GiB", 2.0**31),
        ("1 kB", 1000.0),
        ("5%", 0.05),
        ("0.07 %", 0.0007),
        ("12 tok/s", 12.0),
        ("-0.5 nats", -0.5),
        ("4 logits", 4.0),
        (0, 0.0),
        ("300 s", 300.0),
        ("1e-400", 0.0),
        ("0e99999999999", 0.0),
    ],
)
def test_quantities(written: object, value: float) -> None:
    assert quantity(written) == value


@pytest.mark.parametrize(
    "written",
    [
        "",
        "ten",
        "1 parsec",
        "1 2",
        "1..2",
        "0x10",
        "1e999999999",
        "١ s",
        None,
        True,
        [1],
        float("nan"),
        1e400,
    ],
)
def test_what_is_no_quantity(written: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        quantity(written)
    with pytest.raises(ValueError, match=r"."):
        duration(written)


@pytest.mark.parametrize("written", ["-1 s", "2 GiB", "5%", -0.5])
def test_what_is_no_duration(written: object) -> None:
    with pytest.raises(ValueError, match=r"duration"):
        duration(written)


@pytest.mark.parametrize(
    ("written", "unit"),
    [("3 ms", "s"), ("2 GiB", "B"), ("5%", "%"), ("3", ""), (3, ""), ("x y z", ""), ("1 nats", "nats")],
)
def test_dimension_of_what_is_written(written: object, unit: str) -> None:
    assert unit_of(written) == unit


@given(st.decimals(0, 1000, places=3), st.sampled_from(sorted(DURATION_UNITS)))
def test_the_product_is_the_correctly_rounded_decimal(number: object, unit: str) -> None:
    from fractions import Fraction

    assert duration(f"{number} {unit}") == float(Fraction(str(number)) * Fraction(DURATION_UNITS[unit]))


def test_units_of_different_dimensions_have_different_names() -> None:
    assert not set(DURATION_UNITS) & set(SIZE_UNITS)
