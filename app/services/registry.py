"""What exists: contracts, checkpoints, kernel builds, suites, deployments.

Content is checked whole before anything is stored. Registering the same thing again is a
no-op; other content under a name that is taken is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.db import repositories
from app.db.clock import now
from app.db.models import (
    Base,
    CheckpointRow,
    ContractRow,
    DeploymentRow,
    KernelBuildRow,
    SuiteRow,
)
from app.errors import ContentConflict, Contention, NotFound, Unprocessable
from app.services import audit, documents, routing
from app.services.checkpoints import InvalidCheckpoint, checkpoint_digests
from app.services.suites import InvalidSuite, read_suite
from contracts.builds import InvalidBuild, parse_build
from contracts.model import Name

Row = TypeVar("Row", bound=Base)
Named = TypeVar("Named", CheckpointRow, KernelBuildRow, SuiteRow)
Found = TypeVar("Found", CheckpointRow, KernelBuildRow, SuiteRow, DeploymentRow)
Registered = tuple[Row, bool]  # the row, and whether it is new
_NAME: TypeAdapter[str] = TypeAdapter(Name)


def register_contract(
    session: Session, yaml: bytes, *, file: str = documents.FILE, actor: str = audit.SYSTEM
) -> Registered[ContractRow]:
    """Publish a contract. `file` is what diagnostics call it.

    Raises:
        ContractRefused: with every diagnostic of reader and linter, each with line and column.
        ContentConflict: its name and version are published with other content.
    """
    read, _ = documents.accept(yaml, file)
    metadata = read.contract.metadata
    row = repositories.contract(session, metadata.name, metadata.version)
    if row is not None:
        if row.digest != read.digest:
            raise ContentConflict(
                f"{metadata.name}@{metadata.version} is published as {row.digest}, this is {read.digest}: "
                "raise metadata.version",
                digest=row.digest,
            )
        return row, False
    row = ContractRow(
        name=metadata.name,
        version=metadata.version,
        digest=read.digest,
        yaml=read.text,
        json=read.contract.model_dump_json(by_alias=True, exclude_none=True),
        created_at=now(session),
    )
    return _insert(session, row, "contract", f"{row.name}@{row.version}", row.digest, actor)


def register_checkpoint(
    session: Session, name: str, path: Path | str, *, actor: str = audit.SYSTEM
) -> Registered[CheckpointRow]:
    """Register a checkpoint directory by the digests of its parts.

    Raises:
        Unprocessable: it is not a complete, consistent checkpoint.
        ContentConflict: the name is another checkpoint's.
    """
    try:
        digests = checkpoint_digests(path)
    except InvalidCheckpoint as error:
        raise Unprocessable(str(error)) from None
    row = CheckpointRow(
        name=_name(name),
        digest=digests.digest,
        path=str(Path(path).resolve()),
        weights_digest=digests.weights,
        tokenizer_digest=digests.tokenizer,
        chat_template_digest=digests.chat_template,
        config_digest=digests.config,
        created_at=now(session),
    )
    return _register(session, row, "checkpoint", actor)


def register_build(
    session: Session, name: str, spec: str | Mapping[str, object], *, actor: str = audit.SYSTEM
) -> Registered[KernelBuildRow]:
    """Register a kernel build: `engine:key=value,...`, or a mapping with the same keys.

    Raises:
        Unprocessable: no such engine, key or value.
        ContentConflict: the name is another build's.
    """
    try:
        build = parse_build(spec)
    except InvalidBuild as error:
        raise Unprocessable(str(error), suggestion=error.suggestion) from None
    row = KernelBuildRow(name=_name(name), digest=build.digest, spec=str(build), created_at=now(session))
    return _register(session, row, "kernel_build", actor)


def register_suite(
    session: Session, name: str, path: Path | str, *, actor: str = audit.SYSTEM
) -> Registered[SuiteRow]:
    """Register an evaluation suite.

    Raises:
        Unprocessable: with every problem of the file, each with its line.
        ContentConflict: the name is another suite's.
    """
    try:
        suite = read_suite(path)
    except InvalidSuite as error:
        raise Unprocessable(str(error)) from None
    row = SuiteRow(
        name=_name(name),
        digest=suite.digest,
        path=str(Path(path).resolve()),
        prompts=len(suite.prompts),
        tokenizer_digest=next((p.tokenizer_digest for p in suite.prompts if p.tokenizer_digest), None),
        created_at=now(session),
    )
    return _register(session, row, "suite", actor)


def register_deployment(
    session: Session,
    name: str,
    known_good: str,
    endpoints: Mapping[str, str],
    *,
    gateway: Mapping[str, Any] | None = None,
    actor: str = audit.SYSTEM,
) -> Registered[DeploymentRow]:
    """Register a deployment target; its known-good build serves everything from then on.

    Registered again with the same known-good build, its endpoints and gateway settings are
    replaced. What is known good afterwards is for promotions to change.

    Raises:
        Unprocessable: a build is not registered, or an endpoint is not an http(s) URL.
        ContentConflict: it was registered with another known-good build.
    """
    for build in (known_good, *endpoints):
        if repositories.named(session, KernelBuildRow, build) is None:
            raise Unprocessable(f"no kernel build is registered as {build!r}")
    for build, url in endpoints.items():
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise Unprocessable(f"the endpoint of {build} is not an http:// or https:// URL: {url!r}")
    settings = {"endpoints": dict(endpoints), "gateway": dict(gateway or {})}
    row = repositories.named(session, DeploymentRow, name)
    if row is None:
        row = DeploymentRow(
            name=_name(name),
            declared_known_good=known_good,
            known_good_build=known_good,
            known_good_healthy=True,
            created_at=now(session),
            updated_at=now(session),
            **settings,
        )
        registered = _insert(session, row, "deployment", name, known_good, actor)
        routing.begin(session, row)
        return registered
    if row.declared_known_good != known_good:
        raise ContentConflict(
            f"deployment {name} was registered with {row.declared_known_good} as known good, "
            f"not {known_good}: what is known good changes by promotion"
        )
    if {"endpoints": row.endpoints, "gateway": row.gateway} != settings:
        row.endpoints, row.gateway, row.updated_at = dict(endpoints), dict(gateway or {}), now(session)
        session.flush()
        audit.record(
            session, actor=actor, action="deployment.changed", subject=f"deployment/{name}", detail=settings
        )
    return row, False


def get(session: Session, kind: type[Found], name: str) -> Found:
    """What is registered under a name. Raises NotFound."""
    row = repositories.named(session, kind, name)
    if row is None:
        raise NotFound(f"nothing is registered as {name!r} in {kind.__tablename__}")
    return row


def get_contract(session: Session, name: str, version: str) -> ContractRow:
    """A published contract. Raises NotFound."""
    row = repositories.contract(session, name, version)
    if row is None:
        raise NotFound(f"no contract is published as {name}@{version}")
    return row


def _name(name: str) -> str:
    try:
        return _NAME.validate_python(name)
    except ValidationError:
        raise Unprocessable(
            f"{name!r} is not a name: 1 to 128 letters, digits, '.', '_', '-', the first a letter or digit"
        ) from None


def _register(session: Session, row: Named, kind: str, actor: str) -> Registered[Named]:
    known = repositories.named(session, type(row), row.name)
    if known is None:
        return _insert(session, row, kind, row.name, row.digest, actor)
    if known.digest != row.digest:
        raise ContentConflict(
            f"{kind} {row.name} is registered as {known.digest}, this is {row.digest}: give it another name",
            digest=known.digest,
        )
    _follow(session, known, row, kind, actor)
    return known, False


def _follow(session: Session, known: Named, again: Named, kind: str, actor: str) -> None:
    """The same content at another path: that is where it is from now on."""
    if isinstance(known, KernelBuildRow) or isinstance(again, KernelBuildRow) or known.path == again.path:
        return
    known.path = again.path
    session.flush()
    subject = f"{kind}/{known.name}"
    audit.record(session, actor=actor, action=f"{kind}.moved", subject=subject, detail={"path": known.path})


def _insert(session: Session, row: Row, kind: str, name: str, identity: str, actor: str) -> Registered[Row]:
    try:
        repositories.add(session, row)
    except IntegrityError:
        raise Contention(f"{kind} {name} was registered by someone else at this moment") from None
    audit.record(
        session, actor=actor, action=f"{kind}.registered", subject=f"{kind}/{name}", detail={"is": identity}
    )
    return row, True
