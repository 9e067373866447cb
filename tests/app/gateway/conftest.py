"""A gateway in front of two kernel servers that live in the same process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import select

from app.db.models import TrafficRow
from app.db.session import Database
from app.gateway.main import Sizes, create_app
from app.gateway.service import Gateway
from app.settings import Settings
from tests.app import rows

STEADY_URL, CANDIDATE_URL = "http://steady.test", "http://candidate.test"
HOST = "http://127.0.0.1:8322"


def completion(text: str, prompt: Any, output: list[int]) -> httpx2.Response:
    ids = prompt if isinstance(prompt, list) else [len(word) for word in prompt.split()]
    choice = {"index": 0, "text": text, "finish_reason": "stop", "prompt_token_ids": ids, "token_ids": output}
    return httpx2.Response(200, json={"choices": [choice], "timing": {"latency_s": 0.2, "ttft_s": 0.1}})


@dataclass
class Kernels:
    """Kernel servers by host; `behave` decides what one does, `seen` keeps what it was asked."""

    behave: dict[str, Callable[[dict[str, Any]], Any]] = field(default_factory=dict)
    seen: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    requests: list[httpx2.Request] = field(default_factory=list)

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        host = request.url.host.partition(".")[0]
        body = json.loads(request.content)
        self.requests.append(request)
        self.seen.setdefault(host, []).append(body)
        behaviour = self.behave.get(host)
        if behaviour is None:
            return completion(host, body["prompt"], [7, 8, 9] if host == "steady" else [7, 8, 1])
        answer = behaviour(body)
        return await answer if asyncio.iscoroutine(answer) else answer


@dataclass
class World:
    """The database, the kernel servers and the gateway's client."""

    database: Database
    kernels: Kernels
    folder: Path

    def route(self, version: int, **fields: Any) -> None:
        with self.database.unit_of_work() as session:
            rows.routed(session, version, **fields)

    def promoting(self, **fields: Any) -> None:
        with self.database.unit_of_work() as session:
            rows.promotion(session, rows.state(**fields))

    def traffic(self) -> list[TrafficRow]:
        with self.database.reading() as session:
            return list(session.scalars(select(TrafficRow).order_by(TrafficRow.id)))

    @asynccontextmanager
    async def gateway(self, deployment: str = rows.TARGET, **sizes: Any) -> AsyncIterator[Client]:
        app = create_app(
            Settings(home=self.folder, max_body_bytes=4096),
            deployment,
            database=self.database,
            transport=httpx2.MockTransport(self.kernels),
            sizes=Sizes(**{"linger_s": 0.0, "retry_s": 0.005, "drain_s": 0.5, **sizes}),
        )
        async with app.router.lifespan_context(app):
            transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
            async with httpx2.AsyncClient(transport=transport, base_url=HOST) as http:
                yield Client(http, app.state.gateway)


@dataclass
class Client:
    """What a user has, and the gateway for looking inside."""

    http: httpx2.AsyncClient
    gateway: Gateway

    async def ask(
        self, prompt: Any = (1, 2, 3), headers: dict[str, str] | None = None, **body: Any
    ) -> httpx2.Response:
        prompt = list(prompt) if isinstance(prompt, tuple) else prompt
        return await self.http.post(
            "/v1/completions", json={"model": rows.TARGET, "prompt": prompt, **body}, headers=headers
        )

    async def settled(self) -> None:
        """Everything off the request path has been done."""
        await self.gateway.mirrors.drained()
        await self.gateway.recorder.drained()

    async def metric(self, name: str) -> float:
        text = (await self.http.get("/metrics")).text
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    database = rows.database(tmp_path)
    with database.unit_of_work() as session:
        rows.registered(session, {rows.STEADY: STEADY_URL, rows.CANDIDATE: CANDIDATE_URL})
    yield World(database, Kernels(), tmp_path)
    database.dispose()


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop turn until `condition` holds; `run` bounds it."""
    while not condition():  # noqa: ASYNC110 - what sets it knows no event
        await asyncio.sleep(0)


def run(work: Any) -> Any:
    """Run a test's coroutine to its end, or fail after ten seconds."""
    return asyncio.run(asyncio.wait_for(work, 10))
