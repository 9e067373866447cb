"""Verdicts in words: units, three significant digits, absence shown as absence."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.model import ClauseKind, Comparator, Family, Level, Phase, Stage
from contracts.report import headline, number, rows
from contracts.verdicts import Interval, Judgement, Outcome, Verdict


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "", "0"),
        (0.012345, "nats", "0.0123 nats"),
        (-0.5, "", "−0.5"),
        (999.6, "", "1,000"),
        (123456.0, "", "123,000"),
        (0.00001234, "", "1.23e-5"),
        (1e20, "", "1e20"),
        (300.0, "s", "300 s"),
        (0.0123, "s", "12.3 ms"),
        (4.5e-6, "s", "4.5 µs"),
        (1e-9, "s", "0.001 µs"),
        (0.0, "s", "0 s"),
        (2.0**31, "B", "2 GiB"),
        (1536.0, "B", "1.5 KiB"),
        (0.0, "B", "0 B"),
        (0.05, "%", "5%"),
        (0.012345, "%", "1.23%"),
        (1.2, "×", "1.2×"),
        (math.nan, "s", "not a number"),
        (math.inf, "%", "∞"),
        (-math.inf, "", "−∞"),
        (41.26, "tok/s", "41.3 tok/s"),
    ],
)
def test_numbers(value: float, unit: str, text: str) -> None:
    assert number(value, unit) == text


@given(st.floats(1e-12, 1e12))
def test_three_digits_are_within_half_a_percent(value: float) -> None:
    text = number(value).replace(",", "")
    assert float(text) == pytest.approx(value, rel=5.1e-3)


def verdict(**changes: Any) -> Verdict:
    values: dict[str, Any] = {
        "clause": "N1",
        "family": Family.NUMERICAL,
        "metric": "abs_log_ratio",
        "statistic": "exceedance",
        "unit": "nats",
        "kind": ClauseKind.SOFT,
        "level": Level.L2,
        "slice": "long",
        "phase": Phase.DECODE,
        "verdict": Outcome.VIOLATED,
        "observed": 0.3124,
        "comparator": Comparator.LTE,
        "limit": 0.05,
        "threshold": 0.25,
        "n": 96,
        "needed": None,
        "interval": Interval(low=0.22, high=0.41),
        "alpha": 0.05,
        "method": "betting",
        "reason": "because.",
        "evidence_digest": "sha256:e",
    }
    return Verdict(**(values | changes))


def judgement(
    *verdicts: Verdict, converged: bool | None = False, reason: str = "nothing was measured."
) -> Judgement:
    return Judgement(
        judge_version="1",
        contract_digest="sha256:c",
        evidence_digest="sha256:e",
        stage=Stage.OFFLINE_CI,
        prompts=96,
        converged=converged,
        level=None,
        reason=reason,
        verdicts=verdicts,
    )


def test_a_soft_clause_is_shown_in_shares() -> None:
    (row,) = rows(judgement(verdict()))
    assert (row.clause, row.metric, row.slice, row.phase) == ("N1", "abs_log_ratio", "long", "decode")
    assert (row.observed, row.limit) == ("31.2%", "≤ 5% beyond 0.25 nats")
    assert (row.n, row.interval, row.verdict, row.reason) == ("96", "[22%, 41%]", "VIOLATED", "because.")


def test_hard_clauses_are_shown_in_their_unit() -> None:
    common = {"kind": ClauseKind.HARD, "threshold": None, "phase": None, "family": Family.RUNTIME, "unit": ""}
    ratio = verdict(metric="latency", statistic="p90", observed=1.234, limit=2.0, **common)
    absolute = verdict(
        metric="latency", statistic="p90", observed=0.01234, limit=0.1, **(common | {"unit": "s"})
    )
    rate = verdict(
        metric="failure_rate", observed=0.0, limit=0.05, interval=Interval(low=None, high=0.03), **common
    )
    shown = rows(judgement(ratio, absolute, rate))
    assert [(r.metric, r.observed, r.limit) for r in shown] == [
        ("p90 latency", "1.23×", "≤ 2×"),
        ("p90 latency", "12.3 ms", "≤ 100 ms"),
        ("failure_rate", "0%", "≤ 5%"),
    ]
    assert shown[2].interval == "[−∞, 3%]"
    assert shown[0].phase == "–"


def test_absence_is_shown_as_absence() -> None:
    empty = verdict(
        verdict=Outcome.NO_DATA, observed=None, n=0, needed=59, interval=Interval(low=None, high=None)
    )
    (row,) = rows(judgement(empty, converged=None))
    assert (row.observed, row.interval, row.n, row.verdict) == ("–", "–", "0 of 59", "NO_DATA")
    assert headline(judgement(empty, converged=None)) == (
        "Undecided in offline ci on 96 prompts: N1 abs_log_ratio on slice long, decode has no data."
    )


def test_headlines() -> None:
    holds = verdict(verdict=Outcome.HOLDS, observed=0.0)
    assert (
        headline(judgement(holds, holds, converged=True))
        == "Converged in offline ci: 2 verdicts hold on 96 prompts."
    )
    worse = verdict(clause="S3", level=Level.L3)
    assert headline(judgement(verdict(), worse, holds)) == (
        "Violated in offline ci on 96 prompts: S3 abs_log_ratio on slice long, decode is 31.2%, "
        "limit ≤ 5% beyond 0.25 nats (1 more of 3)."
    )
    met = verdict(verdict=Outcome.UNMEASURABLE, observed=None)
    assert "could not be measured" in headline(judgement(met, holds))
    assert headline(judgement(converged=None)) == "Undecided in offline ci: nothing was measured."
