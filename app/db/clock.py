"""The one clock decisions are made by: the database's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import String

Clock = Callable[[Session], datetime]


class DatabaseNow(FunctionElement[str]):
    """Wall-clock time at the statement, ISO 8601 text in UTC, on any database."""

    type = String()
    inherit_cache = True


@compiles(DatabaseNow, "sqlite")
def _sqlite(_element: DatabaseNow, _compiler: Any, **_options: Any) -> str:
    return "strftime('%Y-%m-%dT%H:%M:%f', 'now')"


@compiles(DatabaseNow, "postgresql")
def _postgresql(_element: DatabaseNow, _compiler: Any, **_options: Any) -> str:
    # Not now(): that is the start of the transaction, which may have waited for a lock.
    return """to_char(clock_timestamp() at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US')"""


def database_clock(session: Session) -> datetime:
    """The database's time as an aware UTC datetime."""
    text = session.execute(select(DatabaseNow())).scalar_one()
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def now(session: Session) -> datetime:
    """Aware UTC time to decide by: the database's, or the clock the session's Database was given."""
    clock: Clock = session.info.get("clock", database_clock)
    return clock(session)
