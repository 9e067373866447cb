"""What the command line prints of promotions and judgements, as rich values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from contracts import report
from contracts.verdicts import Judgement

TITLES = {"offline_ci": "Offline CI", "shadow": "Shadow", "canary": "Canary", "full": "Full"}
VERDICTS = {"HOLDS": "green", "VIOLATED": "bold red", "UNMEASURABLE": "bold red"}
STATUSES = {"promoted": "green", "measuring": "cyan", "awaiting_approval": "yellow"}


def judgement_of(answer: dict[str, Any]) -> Judgement:
    """The judgement in an answer of the API, which also says where and when it was made."""
    return Judgement.model_validate({key: answer[key] for key in Judgement.model_fields})


def headline(answer: dict[str, Any]) -> str:
    """The outcome in one sentence: of a violation the clause, slice, observed value and limit."""
    return report.headline(judgement_of(answer))


def judgement_table(answer: dict[str, Any], plans: dict[str, Any] | None = None) -> Table:
    """The verdict table of one judgement: clause × slice × phase. Readable from 80 columns on."""
    table = Table(
        title=_title(answer, plans), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD,
        pad_edge=False, collapse_padding=True,
    )  # fmt: skip
    table.add_column("clause", overflow="fold")
    table.add_column("slice", overflow="fold")
    table.add_column("observed", justify="right", no_wrap=True)
    table.add_column("limit", overflow="fold")
    table.add_column("n", justify="right")
    table.add_column("interval", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    for row in report.rows(judgement_of(answer)):
        place = row.slice if row.phase == report.NOTHING else f"{row.slice}, {row.phase}"
        cells = (f"{row.clause} {row.metric}", place, row.observed, row.limit, row.n, row.interval)
        verdict = Text(row.verdict, VERDICTS.get(row.verdict, "yellow"))
        table.add_row(*map(Text, cells), verdict)
    return table


def _title(answer: dict[str, Any], plans: dict[str, Any] | None) -> str:
    stage, step = answer["stage"], answer["step"]
    shares = plans["canary"]["steps"] if plans and stage == "canary" else ()
    share = f", {shares[step]:.0%} of users" if step < len(shares) else ""
    word = {True: "converged", False: "violated", None: "undecided"}[answer["converged"]]
    return escape(f"{TITLES[stage]}{share}: {word} on {answer['prompts']} prompts")


def promotion_line(promotion: dict[str, Any]) -> str:
    """One promotion in one line of markup: id, stage, status and why."""
    style = STATUSES.get(promotion["status"], "red")
    why = f": {escape(promotion['reason'])}" if promotion["reason"] else ""
    return f"{promotion['id'][:8]}  {TITLES[promotion['stage']]}, [{style}]{_words(promotion)}[/]{why}"


def promotion_list(promotions: Sequence[dict[str, Any]]) -> Table:
    """Promotions, the newest first."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("id", "deployment", "contract", "candidate", "stage", "status"):
        table.add_column(column, overflow="fold")
    for promotion in promotions:
        table.add_row(
            promotion["id"][:8],
            promotion["deployment"],
            promotion["contract"],
            promotion["inference_build"],
            TITLES[promotion["stage"]],
            Text(_words(promotion), STATUSES.get(promotion["status"], "red")),
        )
    return table


def _words(promotion: dict[str, Any]) -> str:
    status = str(promotion["status"]).replace("_", " ")
    pending = promotion.get("pending_approval")
    return f"{status} of {TITLES[pending]}" if pending else status
