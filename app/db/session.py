"""Engines and units of work: SQLite embedded, PostgreSQL in production, one code path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.orm import Session

from app.db.clock import Clock, database_clock

BUSY_TIMEOUT_S = 30.0
_READING = {"kc_reading": True}


class Database:
    """One engine and the units of work on it.

    `clock` stands in for the database's in tests.
    """

    def __init__(self, url: str, *, clock: Clock = database_clock) -> None:
        self.url = url
        self.engine = _engine(url)
        self._reader = self.engine.execution_options(**_READING)
        self._info = {"clock": clock}

    @contextmanager
    def unit_of_work(self) -> Iterator[Session]:
        """A session in one transaction: committed at the end, rolled back on any exception.

        On SQLite the transaction takes the write lock at once, so a read-modify-write sees
        nothing change under it; keep it short. Raises what the block or the commit raises.
        """
        with Session(self.engine, info=dict(self._info), expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session on one consistent snapshot that waits for no writer and never commits."""
        with Session(self._reader, info=dict(self._info), expire_on_commit=False, autoflush=False) as session:
            yield session

    def dispose(self) -> None:
        """Close every connection; the database can be opened anew."""
        self.engine.dispose()


def _engine(url: str) -> Engine:
    if make_url(url).get_backend_name() != "sqlite":
        return create_engine(url, pool_pre_ping=True)
    # A request thread waits for a writer, never for a connection.
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S}, max_overflow=-1)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # The driver begins transactions late and only before writes, which loses concurrent
    # read-modify-writes; with its own handling off, _begin_sqlite says when they begin.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    reading = connection.get_execution_options().get("kc_reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
