"""Deployment targets and what routes their traffic."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Response

from app.api.dependencies import Actor, Reading, Writing, problems
from app.api.schemas import DeploymentIn, DeploymentOut, Page
from app.db import repositories
from app.db.models import DeploymentRow
from app.services import registry, routing
from contracts.routing import RoutingTable

router = APIRouter(prefix="/deployments", tags=["deployments"])


@router.post(
    "",
    status_code=201,
    responses={
        200: {"model": DeploymentOut, "description": "It was registered before"},
        **problems(409, 413),
    },
)
def register_deployment(
    body: DeploymentIn, session: Writing, actor: Actor, response: Response
) -> DeploymentOut:
    """Register a deployment target, or replace its endpoints and gateway settings."""
    row, created = registry.register_deployment(
        session, body.name, body.known_good, body.endpoints, gateway=body.gateway, actor=actor
    )
    response.status_code = 201 if created else 200
    return DeploymentOut.model_validate(row)


@router.get("")
def list_deployments(session: Reading) -> Page[DeploymentOut]:
    """Deployment targets by name."""
    rows = repositories.all_named(session, DeploymentRow)
    return Page(items=[DeploymentOut.model_validate(row) for row in rows])


@router.get("/{name}", responses=problems(404))
def get_deployment(session: Reading, name: str) -> DeploymentOut:
    """One deployment target."""
    return DeploymentOut.model_validate(registry.get(session, DeploymentRow, name))


@router.get(
    "/{name}/routing",
    response_model=RoutingTable,
    responses={304: {"description": "The table is still the one named by If-None-Match"}, **problems(404)},
)
def get_routing(
    session: Reading, name: str, response: Response, if_none_match: Annotated[str, Header()] = ""
) -> RoutingTable | Response:
    """The routing table; its version only grows, and is its ETag."""
    table = routing.current(session, name)
    headers = {"etag": f'"{table.version}"', "cache-control": "no-cache"}
    known = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    if headers["etag"] in known:
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return table
