"""Routes of the status page; every answer carries the security headers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from sqlalchemy.orm import Session

from app.db.session import Database
from app.errors import NotFound
from app.web import pages, words

HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_ASSETS = {
    asset.name: asset.read_bytes()
    for asset in files("app.web").joinpath("static").iterdir()
    if asset.name.rpartition(".")[2] in _TYPES
}
_ADDRESSES = {
    name: f"/static/{name}?v={hashlib.sha256(body).hexdigest()[:12]}" for name, body in _ASSETS.items()
}

router = APIRouter(include_in_schema=False)


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("app.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["static"] = _ADDRESSES.__getitem__
    environment.filters["instant"] = words.instant
    environment.filters["short"] = words.short
    environment.filters["ago"] = words.ago
    return environment


_TEMPLATES = _environment()


def _page(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    shown = {"live": False, "here": "", "now": None, **values}
    html = _TEMPLATES.get_template(template).render(shown)
    return HTMLResponse(html, status, headers={**HEADERS, "cache-control": "no-store"})


def not_found(detail: str = "There is no such page.") -> HTMLResponse:
    """The 404 page."""
    return _page("problem.html", 404, code=404, title="Not found", detail=detail)


def _shown(request: Request, template: str, load: Callable[[Session], dict[str, Any]]) -> HTMLResponse:
    database: Database = request.app.state.database
    try:
        with database.reading() as session:
            return _page(template, **load(session))
    except NotFound as error:
        return not_found(error.detail)


@router.get("/")
def promotions(request: Request) -> HTMLResponse:
    """The list of promotions and what serves now."""
    return _shown(request, "promotions.html", pages.promotions)


@router.get("/promotions/{promotion_id}")
def promotion(request: Request, promotion_id: str) -> HTMLResponse:
    """One promotion."""
    return _shown(request, "promotion.html", partial(pages.promotion, promotion_id=promotion_id))


@router.get("/deployments/{name}")
def deployment(request: Request, name: str) -> HTMLResponse:
    """One deployment."""
    return _shown(request, "deployment.html", partial(pages.deployment, name=name))


@router.get("/static/{name}")
def static(name: str) -> Response:
    """A style sheet, script or icon; its address changes with its content."""
    body = _ASSETS.get(name)
    if body is None:
        return not_found(f"There is no asset {name!r}.")
    headers = {**HEADERS, "cache-control": "public, max-age=31536000, immutable"}
    return Response(body, media_type=_TYPES[name.rpartition(".")[2]], headers=headers)
