"""Contracts, checkpoints, kernel builds, suites: registered once, never changed."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request, Response

from app.api.dependencies import Actor, Reading, Writing, problems
from app.api.schemas import (
    BuildIn,
    BuildOut,
    CheckpointIn,
    CheckpointOut,
    ContractOut,
    ContractRegistered,
    ContractText,
    DiagnosticOut,
    Page,
    SuiteIn,
    SuiteOut,
)
from app.db import repositories
from app.db.models import CheckpointRow, KernelBuildRow, SuiteRow
from app.errors import UnsupportedMediaType
from app.services import documents, registry

router = APIRouter(tags=["registry"])
YAML = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/yaml": {"schema": {"type": "string", "description": "A contract document."}}
        },
    }
}


async def _document(request: Request, content_type: Annotated[str, Header()] = "") -> bytes:
    if content_type.partition(";")[0].strip().lower() not in YAML:
        raise UnsupportedMediaType(f"a contract is sent as application/yaml, not {content_type or 'untyped'}")
    return await request.body()


def _said(response: Response, created: bool) -> None:
    response.status_code = 201 if created else 200


def _new(model: type) -> dict[int | str, dict[str, object]]:
    return {
        200: {"model": model, "description": "It was registered before: nothing changed"},
        **problems(409, 413, 415),
    }


@router.post("/contracts", status_code=201, responses=_new(ContractRegistered), openapi_extra=_BODY)
def publish_contract(
    text: Annotated[bytes, Depends(_document)], session: Writing, actor: Actor, response: Response
) -> ContractRegistered:
    """Publish a contract; its name and version are in the document and never change."""
    row, created = registry.register_contract(session, text, actor=actor)
    _said(response, created)
    return ContractRegistered(**dict(ContractOut.model_validate(row)), warnings=_warnings(text))


def _warnings(text: bytes) -> tuple[DiagnosticOut, ...]:
    _, found = documents.accept(text)
    return tuple(DiagnosticOut.model_validate(one) for one in found)


@router.get("/contracts")
def list_contracts(session: Reading, name: str | None = None) -> Page[ContractOut]:
    """Published contracts in order of publication."""
    return Page(items=[ContractOut.model_validate(row) for row in repositories.contracts(session, name)])


@router.get("/contracts/{name}/{version}", responses=problems(404))
def get_contract(session: Reading, name: str, version: str) -> ContractText:
    """One contract, with its text as written and what the linter finds unwise in it."""
    row = registry.get_contract(session, name, version)
    warnings = _warnings(row.yaml.encode())
    return ContractText(**dict(ContractOut.model_validate(row)), warnings=warnings, yaml=row.yaml)


@router.post("/checkpoints", status_code=201, responses=_new(CheckpointOut))
def register_checkpoint(
    body: CheckpointIn, session: Writing, actor: Actor, response: Response
) -> CheckpointOut:
    """Register a checkpoint directory by the digests of its parts."""
    row, created = registry.register_checkpoint(session, body.name, body.path, actor=actor)
    _said(response, created)
    return CheckpointOut.model_validate(row)


@router.get("/checkpoints")
def list_checkpoints(session: Reading) -> Page[CheckpointOut]:
    """Registered checkpoints by name."""
    rows = repositories.all_named(session, CheckpointRow)
    return Page(items=[CheckpointOut.model_validate(row) for row in rows])


@router.get("/checkpoints/{name}", responses=problems(404))
def get_checkpoint(session: Reading, name: str) -> CheckpointOut:
    """One checkpoint."""
    return CheckpointOut.model_validate(registry.get(session, CheckpointRow, name))


@router.post("/kernel-builds", status_code=201, responses=_new(BuildOut))
def register_build(body: BuildIn, session: Writing, actor: Actor, response: Response) -> BuildOut:
    """Register a kernel build."""
    row, created = registry.register_build(session, body.name, body.spec, actor=actor)
    _said(response, created)
    return BuildOut.model_validate(row)


@router.get("/kernel-builds")
def list_builds(session: Reading) -> Page[BuildOut]:
    """Registered kernel builds by name."""
    rows = repositories.all_named(session, KernelBuildRow)
    return Page(items=[BuildOut.model_validate(row) for row in rows])


@router.get("/kernel-builds/{name}", responses=problems(404))
def get_build(session: Reading, name: str) -> BuildOut:
    """One kernel build."""
    return BuildOut.model_validate(registry.get(session, KernelBuildRow, name))


@router.post("/suites", status_code=201, responses=_new(SuiteOut))
def register_suite(body: SuiteIn, session: Writing, actor: Actor, response: Response) -> SuiteOut:
    """Register an evaluation suite."""
    row, created = registry.register_suite(session, body.name, body.path, actor=actor)
    _said(response, created)
    return SuiteOut.model_validate(row)


@router.get("/suites")
def list_suites(session: Reading) -> Page[SuiteOut]:
    """Registered suites by name."""
    rows = repositories.all_named(session, SuiteRow)
    return Page(items=[SuiteOut.model_validate(row) for row in rows])


@router.get("/suites/{name}", responses=problems(404))
def get_suite(session: Reading, name: str) -> SuiteOut:
    """One suite."""
    return SuiteOut.model_validate(registry.get(session, SuiteRow, name))
