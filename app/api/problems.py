"""Every error as an RFC 9457 problem document, `application/problem+json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException

from app.errors import DomainError

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:kernel-contracts:problem:"

log = structlog.get_logger(__name__)


def problem(
    status: int,
    slug: str,
    title: str,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    **extra: Any,
) -> JSONResponse:
    """A problem document; `extra` are its extension members."""
    body = {**extra, "type": TYPE_PREFIX + slug, "title": title, "status": status, "detail": detail}
    return JSONResponse(body, status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Make every error of `app` a problem document."""
    app.add_exception_handler(DomainError, _domain)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(OperationalError, _database)
    app.add_exception_handler(Exception, _unexpected)


def _domain(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, DomainError)  # noqa: S101 - registered for this class
    return problem(error.status, error.slug, error.title, error.detail, **error.extra)


def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this class
    errors = _findings(error.errors())
    detail = "; ".join(f"{e['pointer'] or e['in']}: {e['detail']}" for e in errors)
    return problem(422, "invalid-request", "The request does not fit its schema", detail, errors=errors)


def _findings(errors: Sequence[Any]) -> list[dict[str, str]]:
    # The offending input itself is left out: it may be large, or secret.
    return [
        {
            "in": str(error["loc"][0]) if error["loc"] else "body",
            "pointer": "".join(f"/{_escape(part)}" for part in error["loc"][1:]),
            "detail": str(error["msg"]),
        }
        for error in errors
    ]


def _escape(part: object) -> str:
    return str(part).replace("~", "~0").replace("/", "~1")


def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this class
    phrase = HTTPStatus(error.status_code).phrase
    slug = phrase.lower().replace(" ", "-")
    detail = {
        404: f"There is nothing at {request.url.path}.",
        405: f"{request.url.path} does not answer {request.method}.",
    }.get(error.status_code, str(error.detail))
    return problem(error.status_code, slug, phrase, detail, headers=error.headers)


def _database(request: Request, error: Exception) -> JSONResponse:
    log.error("database unavailable", path=request.url.path, exc_info=error)
    return problem(
        503,
        "database-unavailable",
        "The database does not answer",
        "Nothing was changed. Try again; /readyz says when it is back.",
        headers={"retry-after": "1"},
    )


def _unexpected(request: Request, error: Exception) -> JSONResponse:
    log.error("unexpected error", path=request.url.path, exc_info=error)
    return problem(
        500, "internal-error", "An error of ours", "Nothing was changed. The server's log has the reason."
    )
