"""The routing table as the gateway knows it: refreshed off the request path, never going back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from app.db import repositories
from app.db.models import DeploymentRow
from app.db.session import Database
from app.errors import NotFound
from app.services import routing
from contracts.model import Slice
from contracts.routing import Route, RoutingTable, accept, choose
from contracts.slices import Attributes

REFRESH_S = 0.05  # a fallback reaches users within 100 ms, reading included
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Routes:
    """A routing table and where each build answers."""

    table: RoutingTable
    endpoints: Mapping[str, str]

    def choose(self, key: str, request_id: str, attributes: Attributes, *, length_known: bool) -> Route:
        """The route of one request.

        The length of a text in tokens is not known before a kernel server has read it. Every
        guarded slice it may belong to then keeps it off the candidate.
        """
        table = self.table
        if table.guarded and not length_known:
            table = table.model_copy(
                update={"guarded": {n: _any_length(s) for n, s in table.guarded.items()}}
            )
        return choose(table, key, attributes, request_id)


def _any_length(part: Slice) -> Slice:
    return Slice(where={name: c for name, c in part.where.items() if name != "prompt_tokens"})


def reader(database: Database, deployment: str) -> Callable[[], Routes]:
    """Reads the deployment's newest table and endpoints. The function raises NotFound."""

    def read() -> Routes:
        with database.reading() as session:
            row = repositories.named(session, DeploymentRow, deployment)
            if row is None:
                raise NotFound(f"no deployment is named {deployment!r}; register it first")
            return Routes(routing.current(session, deployment), dict(row.endpoints))

    return read


class TableWatch:
    """Keeps the newest routes seen; while the database is away the last ones stay in force."""

    def __init__(self, read: Callable[[], Routes]) -> None:
        self._read = read
        self.routes: Routes | None = None
        self.error: str | None = None

    async def refresh(self) -> None:
        """Read once; never raises, never goes back in version."""
        try:
            fresh = await asyncio.to_thread(self._read)
            seen = self.routes
            table = accept(seen.table if seen else None, fresh.table)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the database, serving goes on
            if self.error is None:
                # Our own words may be told; a driver's may hold the database's address.
                told = {"detail": str(error)} if isinstance(error, NotFound) else {}
                log.error(
                    "routing table cannot be read; the last one stays", error=type(error).__name__, **told
                )
            self.error = f"{type(error).__name__}: the routing table cannot be read"
            return
        self.error = None
        if seen is not None and table is seen.table and fresh.table.version < table.version:
            return
        if seen is None or table.version != seen.table.version:
            log.info("routing table", version=table.version, mode=table.mode.value, candidate=table.candidate)
        self.routes = Routes(table, fresh.endpoints)

    async def run(self) -> None:
        """Refresh until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(REFRESH_S)
