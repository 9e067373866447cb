"""The pages as people get them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from app.db.models import PromotionRow
from contracts.compare import LOOSER, Change, Comparison, Direction
from contracts.model import Stage
from contracts.routing import Mode
from tests.app import rows
from tests.app.web.conftest import Html, Site

VIOLATED = {
    "verdict": "VIOLATED",
    "observed": 0.318,
    "interval": {"low": 0.241, "high": 0.402},
    "reason": "Far beyond <it>.",
}


def _violated(site: Site, **fields) -> None:
    with site.database.unit_of_work() as session:
        value = rows.state(
            stage="canary", step=1, attempt=4, status="fallen_back", reason="N2 is violated.", **fields
        )
        start = rows.state(version=1)
        rows.promotion(session, value.model_copy(update={"version": 2}))
        rows.transition(session, start, "start", "It began.")
        rows.transition(
            session, value.model_copy(update={"version": 2}), "judged", "N2 is violated.", "control-plane"
        )
        holds, broken = rows.verdict("N1", metric="logit_osc"), rows.verdict("N2", **VIOLATED)
        undecided = rows.verdict("S2", verdict="INCONCLUSIVE", needed=300, reason="More prompts.", n=21)
        rows.judgement(session, value, (holds,), converged=True, stage=Stage.OFFLINE_CI, step=0)
        rows.judgement(session, value, (holds, undecided, broken), converged=False)


def test_an_empty_control_plane_says_what_to_do(site: Site) -> None:
    html = site.page("/")
    assert html.all("h2") == ["No promotions yet"]
    assert html.all("code") == ["kc promote", "make demo"]
    assert not html.all("table")


def test_the_list_shows_what_serves_and_where_each_promotion_stands(registered: Site) -> None:
    _violated(registered)
    with registered.database.unit_of_work() as session:
        rows.routed(session, 3, mode=Mode.CANARY, share=0.05, stage=Stage.CANARY, promotion="p1")
    html = registered.page("/")
    assert html.all("p", class_="build") == [rows.STEADY]
    assert f"5% served by {rows.CANDIDATE}, the rest by {rows.STEADY}" in html.all("p", class_="quiet")
    (row,) = html.all("tr", class_="tone-")
    for word in (
        "Fallen back",
        rows.TARGET,
        rows.CANDIDATE,
        "coder-bf16@1.2.0",
        "N2 is violated.",
        "12 min ago",
    ):
        assert word in row
    assert [text.split(": ")[1] for text in html.all("span", class_="hidden") if ": " in text] == [
        "Passed",
        "Passed",
        "Fallen back",
        "Not reached",
    ]


def test_a_violation_comes_first_and_is_told_by_word_icon_and_reason(registered: Site) -> None:
    _violated(registered)
    html = registered.page("/promotions/p1")
    assert html.all("h1") == [rows.CANDIDATE]
    assert html.all("p", class_="why") == ["N2 is violated."]
    bodies = html.all("tbody", class_="tone-")
    assert ["N2" in bodies[0], "S2" in bodies[1], "N1" in bodies[2]] == [True] * 3
    assert bodies[0].startswith("Violated")
    assert "Far beyond <it>." in bodies[0]
    assert "31.8%" in bodies[0]
    assert "abs_log_ratio ≤ 0.18 nats for all but 1% of decisions" in bodies[0]
    assert "21 of 300 needed" in bodies[1].replace("21of", "21 of")
    assert html.attributes("tbody")[0]["class"] == "tone-bad attention"
    assert html.all("summary")[0].startswith(
        "Canary · step 2 of 3, 5% of traffic Violated 1 violated, 1 inconclusive, 1 hold"
    )
    assert html.all("summary")[1].startswith("Offline CI Converged")


def test_charts_have_words_and_timeline_and_digests_are_there(registered: Site) -> None:
    _violated(registered)
    html = registered.page("/promotions/p1")
    labels = [found["aria-label"] for found in html.attributes("svg") if found.get("role") == "img"]
    assert labels[0] == "Observed 31.8%, interval [24.1%, 40.2%], limit ≤ 1% beyond 0.18 nats"
    events = html.all("li", class_="tone-")[-2:]
    assert "Judged by control-plane" in events[0]
    assert "Offline CI, measuring → Canary 2/3, fallen back" in events[0]
    assert "Started by ana" in events[1]
    titles = {found.get("title") for found in html.attributes("code")}
    bound = rows.BOUND
    assert {bound.contract, bound.checkpoint, bound.train_build, bound.inference_build, bound.suite} <= titles
    assert "/v1/promotions/p1/verdicts" in {found.get("href") for found in html.attributes("a")}


def test_a_promotion_not_judged_yet_claims_nothing(registered: Site) -> None:
    with registered.database.unit_of_work() as session:
        rows.promotion(session, rows.state())
    html = registered.page("/promotions/p1")
    assert "until then nothing counts as passed" in " ".join(html.all("p"))
    assert html.all("span", class_="state") == ["Measuring", "Not reached", "Not reached", "Not reached"]


def test_a_deployment_shows_routing_and_its_history_without_secrets(registered: Site) -> None:
    with registered.database.unit_of_work() as session:
        rows.routed(session, 1)
        rows.routed(session, 2, mode=Mode.SHADOW, mirror=0.5, stage=Stage.SHADOW)
    html = registered.page(f"/deployments/{rows.TARGET}")
    assert html.all("code") == ["http://127.0.0.1:9002", "http://127.0.0.1:9001"]
    assert html.all("dd")[:4] == ["2", "Shadow", rows.STEADY, rows.CANDIDATE]
    assert [row[0] for row in html.all("tr")[-2:]] == ["2", "1"]
    assert "Nothing has been promoted" in " ".join(html.all("p"))


@pytest.mark.parametrize("path", ["/promotions/nope", "/deployments/%3Cscript%3E", "/static/nope.css"])
def test_what_is_not_there_is_a_page_too(site: Site, path: str) -> None:
    html = site.page(path, 404)
    assert html.all("h1") == ["Not found"]
    assert not html.all("script")


@pytest.mark.parametrize("path", ["/", "/promotions/p1", f"/deployments/{rows.TARGET}", "/promotions/nope"])
def test_every_page_is_locked_down_and_accessible(registered: Site, path: str) -> None:
    _violated(registered)
    answer = registered.get(path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["cache-control"] == "no-store"
    html = Html()
    html.feed(answer.text)
    tags = [tag for tag, _, _ in html.elements]
    assert {"header", "nav", "main", "footer", "title"} <= set(tags)
    assert tags.count("main") == tags.count("h1") == 1
    assert all(found.get("scope") for found in html.attributes("th"))
    assert not any(
        "style" in found or any(k.startswith("on") for k in found) for _, found, _ in html.elements
    )
    levels = [int(tag[1]) for tag in tags if tag in {"h1", "h2", "h3", "h4"}]
    assert all(after - before <= 1 for before, after in pairwise(levels))
    ids = [found["id"] for _, found, _ in html.elements if found.get("id")]
    assert len(ids) == len(set(ids))
    assert all((found.get("src") or "/").startswith("/") for found in html.attributes("script"))


def test_refreshes_itself_only_while_something_is_active(registered: Site) -> None:
    assert not registered.page("/").attributes("script")
    _violated(registered)
    assert registered.page("/").attributes("script")
    assert [
        found for found in registered.page("/").attributes("meta") if found.get("http-equiv") == "refresh"
    ]


def test_assets_are_immutable_at_their_address(site: Site) -> None:
    (style,) = [found["href"] for found in site.page("/").attributes("link") if found["rel"] == "stylesheet"]
    answer = site.get(style or "")
    assert answer.headers["content-type"].startswith("text/css")
    assert "immutable" in answer.headers["cache-control"]
    assert "url(" not in answer.text
    assert "@import" not in answer.text


def test_hostile_names_are_escaped(registered: Site) -> None:
    with registered.database.unit_of_work() as session:
        rows.promotion(session, rows.state(reason="<script>alert(1)</script>"))
    answer = registered.get("/promotions/p1")
    assert "<script>alert" not in answer.text
    assert "&lt;script&gt;alert(1)" in answer.text


def _compared(site: Site, *changes: Change) -> Html:
    loosened = any(one.direction in LOOSER for one in changes)
    comparison = Comparison(old="coder@1.1.0", new="coder@1.2.0", changes=changes, loosened=loosened)
    with site.database.unit_of_work() as session:
        rows.promotion(session, rows.state())
        session.get_one(PromotionRow, 1).comparison = comparison
    return site.page("/promotions/p1")


def test_what_a_contract_loosened_comes_first_and_what_it_tightened_is_quieter(registered: Site) -> None:
    html = _compared(
        registered,
        Change(part="clause S1", direction=Direction.TIGHTENED, details=("limit abs_lte 0.2 → abs_lte 0.1",)),
        Change(part="clause S2", direction=Direction.LOOSENED, details=("limit lte 0.1 → lte 0.2",)),
        Change(part="clause R1", direction=Direction.REMOVED),
        Change(part="sampling", direction=Direction.INCOMPARABLE, details=("top_k none → 5",)),
        Change(part="clause S9", direction=Direction.ADDED),
    )
    assert html.all("strong")[0] == "Loosened against coder@1.1.0:"
    (block,) = html.all("div", class_="compared")
    for line in (
        "clause S2: limit ≤ 0.1 → ≤ 0.2",
        "clause R1 removed",
        "sampling changed, neither looser nor tighter: top_k none → 5",
    ):
        assert line in html.all("li")
        assert line in block
    tightened = "Tightened against coder@1.1.0: clause S1: limit within ±0.2 → within ±0.1; clause S9 added."
    assert tightened in html.all("p", class_="quiet")


def test_what_is_only_different_is_not_called_loosened(registered: Site) -> None:
    html = _compared(registered, Change(part="slice long", direction=Direction.INCOMPARABLE))
    assert html.all("strong")[0] == "Changed against coder@1.1.0:"


def test_the_same_promise_is_told_and_nothing_to_compare_is_not(registered: Site) -> None:
    assert "Promises the same as coder@1.1.0." in _compared(registered).all("p", class_="quiet")
    with registered.database.unit_of_work() as session:
        session.get_one(PromotionRow, 1).comparison = None
    assert not registered.page("/promotions/p1").all("div", class_="compared")
