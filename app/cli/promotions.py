"""`kc promote`, `kc status` and what people do to a promotion."""

from __future__ import annotations

import json
import time
from typing import Any

from rich.console import Console

from app.cli.client import ControlPlane
from app.cli.errors import INCONCLUSIVE, REFUSED, USAGE, CliError
from app.cli.render import judgement_table, promotion_line, promotion_list

OVER = {"promoted": 0, "frozen": REFUSED, "fallen_back": REFUSED, "aborted": REFUSED, "superseded": REFUSED,
        "expired": REFUSED, "awaiting_approval": INCONCLUSIVE}  # fmt: skip
POLL_S = 1.0


def promote(
    url: str,
    deployment: str,
    contract: str,
    checkpoint: str,
    train: str,
    inference: str,
    suite: str,
    *,
    wait: bool,
    as_json: bool,
) -> int:
    """Start a promotion; with `wait`, follow it until somebody has to act or it is over.

    Returns 0 started or promoted, 1 stopped, 3 awaiting approval.
    """
    with ControlPlane(url) as plane:
        promotion = plane.start(
            deployment=deployment,
            contract=contract,
            checkpoint=checkpoint,
            train=train,
            inference=inference,
            suite=suite,
        )
        if wait:
            promotion = follow(plane, promotion, quiet=as_json)
    if as_json:
        print(json.dumps(promotion, indent=2))
    elif not wait:
        print(promotion["id"])
    return OVER.get(promotion["status"], 0) if wait else 0


def follow(plane: ControlPlane, promotion: Any, *, quiet: bool) -> Any:
    """Print every change of a promotion until it no longer measures; what it is then."""
    told = None
    console = Console()
    while True:
        if (promotion["version"], promotion["status"]) != told and not quiet:
            console.print(promotion_line(promotion), highlight=False)
        told = (promotion["version"], promotion["status"])
        if promotion["status"] in OVER:
            return promotion
        time.sleep(POLL_S)
        promotion = plane.promotion(promotion["id"])


def status(url: str, identity: str | None, *, as_json: bool) -> None:
    """Print all promotions, or one with the verdicts of each of its stages."""
    console = Console()
    with ControlPlane(url) as plane:
        if identity is None:
            promotions = plane.promotions()
            if as_json:
                print(json.dumps(promotions, indent=2))
            else:
                console.print(promotion_list(promotions))
            return
        promotion = plane.promotion(_resolved(plane, identity))
        judgements = plane.judgements(promotion["id"])
    if as_json:
        print(json.dumps({**promotion, "judgements": judgements}, indent=2))
        return
    console.print(promotion_line(promotion), highlight=False)
    newest = {(one["stage"], one["step"]): one for one in judgements}
    for one in newest.values():
        console.print(judgement_table(one, promotion["plans"]))


def act(url: str, identity: str, action: str, reason: str) -> None:
    """Approve, freeze, resume, abort or retry, and print where the promotion stands then."""
    values = {"reason": reason} if reason else {}
    with ControlPlane(url) as plane:
        promotion = plane.act(_resolved(plane, identity), action, **values)
    Console().print(promotion_line(promotion), highlight=False)


def _resolved(plane: ControlPlane, identity: str) -> str:
    """The whole id of the one promotion whose id begins so; anything of full length is left to the server."""
    if len(identity) >= 36:
        return identity
    found = [one["id"] for one in plane.promotions() if one["id"].startswith(identity)]
    if len(found) != 1:
        number = "no promotion's" if not found else f"{len(found)} promotions'"
        raise CliError(f"{number} id begins with {identity!r}; `kc status` lists them", USAGE)
    return str(found[0])
