"""The interval drawing stays inside its box and tells the truth about order."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from app.web import chart
from tests.app import rows

numbers = st.floats(-1e9, 1e9, allow_nan=False)


@given(st.lists(numbers, min_size=3, max_size=3), numbers, st.sampled_from(["lte", "gte", "abs_lte"]))
def test_order_is_kept_and_everything_fits(values, limit, comparator) -> None:
    low, observed, high = sorted(values)
    limit = abs(limit) if comparator == "abs_lte" else limit
    drawn = chart.draw(
        rows.verdict(
            kind="hard",
            observed=observed,
            comparator=comparator,
            limit=limit,
            interval={"low": low, "high": high},
        )
    )
    assert drawn is not None
    assert drawn.interval is not None
    assert drawn.observed is not None
    xs = (
        drawn.interval.start,
        drawn.observed,
        drawn.interval.end,
        *drawn.limits,
        drawn.allowed.start,
        drawn.allowed.end,
    )
    assert all(math.isfinite(x) and 0 <= x <= drawn.width for x in xs)
    assert drawn.interval.start <= drawn.observed <= drawn.interval.end
    assert drawn.allowed.start <= drawn.allowed.end
    if comparator != "abs_lte":
        assert (drawn.observed <= drawn.limits[0]) >= (observed <= limit) or math.isclose(observed, limit)


def test_nothing_known_draws_nothing() -> None:
    assert chart.draw(rows.verdict(observed=None, interval={"low": None, "high": None})) is None
    assert chart.draw(rows.verdict(observed=math.nan, interval={"low": None, "high": None})) is None


def test_an_open_end_runs_to_the_edge() -> None:
    drawn = chart.draw(
        rows.verdict(
            kind="hard", comparator="gte", observed=0.3, limit=0.1, interval={"low": 0.2, "high": None}
        )
    )
    assert drawn is not None
    assert drawn.interval is not None
    assert (drawn.interval.open_end, drawn.interval.end) == (True, chart.WIDTH)
    assert drawn.allowed.end == chart.WIDTH
