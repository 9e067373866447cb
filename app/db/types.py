"""Column types: aware UTC times and pydantic values kept byte for byte."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import DateTime, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC datetime in and out; naive ones are refused."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """What is stored. Raises ValueError for a naive datetime."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a naive datetime has no place in the database")
        value = value.astimezone(UTC)
        # SQLite has no time zones: what is stored there is UTC by convention.
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        """An aware UTC datetime."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Value(TypeDecorator[Any]):
    """A pydantic value as JSON text: what was written is what is read, to the byte."""

    impl = Text
    cache_ok = True

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.of = of
        self._adapter: TypeAdapter[Any] = TypeAdapter(of)

    def process_bind_param(self, value: Any, _dialect: Dialect) -> str | None:
        """Its JSON text."""
        return None if value is None else self._adapter.dump_json(value).decode()

    def process_result_value(self, value: str | None, _dialect: Dialect) -> Any:
        """The value again, validated."""
        return None if value is None else self._adapter.validate_json(value)
