"""One word for one state, everywhere."""

from __future__ import annotations

from datetime import timedelta

import pytest

from app.web import words
from contracts.model import Clause
from contracts.promotion import Event, Status
from contracts.verdicts import Outcome
from tests.app import rows


def test_every_state_outcome_and_event_has_a_word() -> None:
    assert set(words.STATUSES) == set(Status)
    assert set(words.OUTCOMES) == set(Outcome)
    union = Event.__origin__.__args__
    assert set(words.EVENTS) == {member.model_fields["type"].default for member in union}


@pytest.mark.parametrize(
    ("clause", "says"),
    [
        (
            {"metric": "abs_log_ratio", "limit": {"lte": 0.18}, "kind": "soft", "exceedance": 0.01},
            "abs_log_ratio ≤ 0.18 nats for all but 1% of decisions",
        ),
        (
            {
                "metric": "topk_agreement",
                "limit": {"gte": 0.8},
                "kind": "soft",
                "exceedance": 0.02,
                "per": "prompt",
                "aggregate": "min",
            },
            "min topk_agreement ≥ 0.8 for all but 2% of prompts",
        ),
        (
            {"metric": "kl", "statistic": "mean", "limit": {"lte": 0.01}, "kind": "hard"},
            "mean kl ≤ 0.01 nats",
        ),
        (
            {
                "metric": "latency",
                "statistic": "p99",
                "limit": {"lte": 1.2},
                "kind": "hard",
                "relative_to": "baseline",
            },
            "p99 latency ≤ 1.2× the baseline’s",
        ),
        (
            {"metric": "reward_drift", "limit": {"abs_lte": 0.03}, "kind": "hard"},
            "reward_drift within ± 0.03 reward",
        ),
    ],
)
def test_promises_in_one_line(clause, says) -> None:
    assert (
        words.promise(Clause.model_validate({"id": "X", "family": "numerical", "level": "L1", **clause}))
        == says
    )


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (-5, "just now"),
        (0, "just now"),
        (59, "59 s ago"),
        (60, "1 min ago"),
        (7199, "1 h ago"),
        (172800, "2 d ago"),
    ],
)
def test_ago(seconds, says) -> None:
    assert words.ago(rows.NOW - timedelta(seconds=seconds), rows.NOW) == says


def test_digests_are_shortened_and_names_are_not() -> None:
    assert words.short("sha256:" + "ab" * 32) == "abababababab…"
    assert words.short("known-good") == "known-good"
