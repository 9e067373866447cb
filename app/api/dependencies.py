"""What routes ask for: a session, settings, and who is asking."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import Depends, Header, Query, Request
from sqlalchemy.orm import Session

from app.api.schemas import Problem
from app.db.session import Database


def database(request: Request) -> Database:
    """The database of this application."""
    found: Database = request.app.state.database
    return found


def _reading(db: Annotated[Database, Depends(database)]) -> Iterator[Session]:
    with db.reading() as session:
        yield session


def _writing(db: Annotated[Database, Depends(database)]) -> Iterator[Session]:
    with db.unit_of_work() as session:
        yield session


def _actor(x_kc_actor: Annotated[str, Header(max_length=200, pattern=r"^[\x21-\x7e]+$")] = "local") -> str:
    """Who acts, as they say; the one place where identity is established."""
    return x_kc_actor


# Scope "function": committed before the answer is sent, so that an answer is never a lie.
Reading = Annotated[Session, Depends(_reading, scope="function")]
Writing = Annotated[Session, Depends(_writing, scope="function")]
Actor = Annotated[str, Depends(_actor)]
Limit = Annotated[int, Query(ge=1, le=500)]
Before = Annotated[int | None, Query(ge=1, description="`next` of the page before.")]


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The documented problem answers of a route."""
    content = {"application/problem+json": {"schema": Problem.model_json_schema()}}
    names = {
        404: "There is no such thing",
        409: "It conflicts with what is there",
        413: "The body is too large",
        415: "The body's media type is not supported",
        422: "The request or its content cannot be used",
    }
    return {status: {"description": names[status], "content": content} for status in (*statuses, 422)}
