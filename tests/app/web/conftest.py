"""The status page over a database of its own, and its HTML as something to ask questions of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI

from app.db.session import Database
from app.web import router
from tests.app import rows
from tests.app.gateway.conftest import run

VOID = {"meta", "link", "br", "path", "circle", "rect", "input", "img", "hr"}


@dataclass
class Html(HTMLParser):
    """Every element with its attributes and its text; refuses markup that is not nested."""

    elements: list[tuple[str, dict[str, str | None], list[str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[tuple[str, list[str]]] = []

    def handle_starttag(self, tag, attrs) -> None:
        text: list[str] = []
        self.elements.append((tag, dict(attrs), text))
        if tag not in VOID:
            self._open.append((tag, text))

    def handle_startendtag(self, tag, attrs) -> None:
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag) -> None:
        if tag not in VOID:
            assert self._open, f"</{tag}> closes nothing"
            opened, _ = self._open.pop()
            assert opened == tag, f"<{opened}> is closed by </{tag}>"

    def handle_data(self, data) -> None:
        for _, text in self._open:
            text.append(data)

    def all(self, tag: str, **attributes: str) -> list[str]:
        """Texts of the elements with these attributes, spaces folded."""
        return [
            " ".join("".join(text).split())
            for name, found, text in self.elements
            if name == tag
            and all(
                (found.get(k.rstrip("_").replace("_", "-")) or "").find(v) >= 0 for k, v in attributes.items()
            )
        ]

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [found for name, found, _ in self.elements if name == tag]


@dataclass
class Site:
    """The page's routes on a database."""

    database: Database
    app: FastAPI

    def get(self, path: str) -> httpx2.Response:
        async def scenario() -> httpx2.Response:
            transport = httpx2.ASGITransport(app=self.app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
                return await http.get(path)

        return run(scenario())

    def page(self, path: str, status: int = 200) -> Html:
        answer = self.get(path)
        assert answer.status_code == status, answer.text
        html = Html()
        html.feed(answer.text)
        html.close()
        assert not html._open
        return html


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    database = rows.database(tmp_path)
    app = FastAPI()
    app.state.database = database
    app.include_router(router)
    yield Site(database, app)
    database.dispose()


@pytest.fixture
def registered(site: Site) -> Site:
    with site.database.unit_of_work() as session:
        rows.registered(
            session,
            {rows.STEADY: "http://ana:secret@127.0.0.1:9001?key=1", rows.CANDIDATE: "http://127.0.0.1:9002"},
        )
    return site
