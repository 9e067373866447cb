from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from app.cli import render
from contracts.model import StagePlans
from contracts.verdicts import Judgement
from tests.app import rows


def printed(value: object, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(value)
    return console.file.getvalue()  # type: ignore[attr-defined]


def answer(**fields: Any) -> dict[str, Any]:
    verdicts = (
        rows.verdict("N1", verdict="HOLDS"),
        rows.verdict("S1", verdict="VIOLATED", observed=0.312, limit=0.05, slice="long[1]"),
    )
    judged = Judgement(
        judge_version="1",
        contract_digest=rows.digest("a"), evidence_digest=rows.digest("b"), stage="offline_ci",
        prompts=96, converged=False, level="L2", reason="S1 is violated", verdicts=verdicts,
    )  # fmt: skip
    return {**judged.model_dump(mode="json"), "step": 0, "attempt": 1, "at": "2026-12-01T09:30:05Z", **fields}


def test_a_verdict_table_has_a_row_a_verdict() -> None:
    text = printed(render.judgement_table(answer()))
    assert "Offline CI: violated on 96 prompts" in text
    assert "HOLDS" in text
    assert "long[1]" in text  # names are no markup
    assert "31.2%" in text


def test_a_canary_says_its_share() -> None:
    plans = StagePlans().model_dump(mode="json")
    text = printed(render.judgement_table(answer(stage="canary", step=1, converged=None), plans))
    assert "Canary, 5% of users: undecided" in text


def test_the_headline_names_clause_slice_observed_and_limit() -> None:
    text = render.headline(answer())
    assert all(word in text for word in ("S1", "slice long[1]", "31.2%", "5%"))


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_verdict_is_whole_at_any_width(width: int) -> None:
    assert "VIOLATED" in printed(render.judgement_table(answer()), width)


def test_a_promotion_in_one_line() -> None:
    promotion = {
        "id": "0123456789abcdef", "stage": "shadow", "status": "awaiting_approval",
        "pending_approval": "canary",
        "reason": "shadow passed [really]",
    }  # fmt: skip
    console = Console(file=io.StringIO(), width=200)
    console.print(render.promotion_line(promotion))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text == "01234567  Shadow, awaiting approval of Canary: shadow passed [really]\n"
