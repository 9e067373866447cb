"""What a promotion is bound to: names resolved to content, and checked to fit together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from sqlalchemy.orm import Session

from app.db import repositories
from app.db.models import (
    CheckpointRow,
    ContractRow,
    DeploymentRow,
    KernelBuildRow,
    PromotionRow,
    SuiteRow,
)
from app.errors import Unprocessable
from app.services import documents
from app.services.comparison import against_accepted
from contracts.builds import parse_build
from contracts.compare import Comparison
from contracts.diagnostics import Diagnostic
from contracts.document import Document
from contracts.model import Contract, Scalar
from contracts.promotion import Bound, Promotion
from contracts.slices import same

Named = TypeVar("Named", CheckpointRow, KernelBuildRow, SuiteRow)
_KINDS: dict[type, str] = {CheckpointRow: "checkpoint", KernelBuildRow: "kernel build", SuiteRow: "suite"}


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be promoted, by registered names; `contract` is `name@version`."""

    deployment: str
    contract: str
    checkpoint: str
    train: str
    inference: str
    suite: str


@dataclass(frozen=True, slots=True)
class Binding:
    """An order with everything it names found and checked."""

    order: Order
    contract: Contract
    digests: Bound
    known_good_build: str
    comparison: Comparison | None

    def row(self, state: Promotion, *, actor: str, at: datetime) -> PromotionRow:
        """The promotion's row at its start."""
        return PromotionRow(
            id=state.id,
            deployment=self.order.deployment,
            contract=self.digests.contract,
            checkpoint=self.order.checkpoint,
            train_build=self.order.train,
            inference_build=self.order.inference,
            known_good_build=self.known_good_build,
            suite=self.order.suite,
            comparison=self.comparison,
            state=state,
            stage=state.stage.value,
            status=state.status.value,
            version=state.version,
            created_at=at,
            updated_at=at,
            created_by=actor,
        )


def bind(session: Session, deployment: DeploymentRow, order: Order) -> Binding:
    """Resolve an order's names.

    Raises:
        Unprocessable: a name is not registered, a build is not what the contract's `pair` asks
            for, the suite was made for another tokenizer, the candidate is known good already,
            the contract's guard or fallback is not registered or not served at the deployment.
        ContractRefused: the contract's guard or fallback is the candidate.
    """
    contract_row = _contract(session, order.contract)
    document, _ = documents.accept(contract_row.yaml.encode(), order.contract)
    contract = document.contract
    checkpoint = _find(session, CheckpointRow, order.checkpoint)
    train = _find(session, KernelBuildRow, order.train)
    inference = _find(session, KernelBuildRow, order.inference)
    suite = _find(session, SuiteRow, order.suite)
    known_good = repositories.registered(session, KernelBuildRow, deployment.known_good_build)
    _check_build(train, contract.pair.train, order.contract, "train")
    _check_build(inference, contract.pair.inference, order.contract, "inference")
    _check_named(session, document, deployment, inference)
    if suite.tokenizer_digest not in (None, checkpoint.tokenizer_digest):
        raise Unprocessable(
            f"suite {suite.name} was tokenised with {suite.tokenizer_digest}, "
            f"checkpoint {checkpoint.name} has the tokenizer {checkpoint.tokenizer_digest}"
        )
    if known_good.digest == inference.digest:
        raise Unprocessable(
            f"{inference.name} is what {deployment.name} already serves as known good: nothing to promote"
        )
    digests = Bound(
        contract=contract_row.digest,
        checkpoint=checkpoint.digest,
        train_build=train.digest,
        inference_build=inference.digest,
        suite=suite.digest,
        known_good_build=known_good.digest,
    )
    comparison = against_accepted(session, deployment.name, contract_row)
    return Binding(order, contract, digests, known_good.name, comparison)


def _check_named(
    session: Session, document: Document, deployment: DeploymentRow, inference: KernelBuildRow
) -> None:
    """Refuse a guard or fallback that is unknown here, served nowhere, or the candidate."""
    stated = {}
    for role in ("fallback", "guard"):
        ref = getattr(document.contract, role)
        if ref is None:
            continue
        place = document.locate(role, "build")
        where = f"{document.file}:{place[0]}:{place[1]}"
        build = repositories.named(session, KernelBuildRow, ref.build)
        if build is None:
            raise Unprocessable(f"{where}: no kernel build is registered as {ref.build!r}, the {role}")
        if build.digest == inference.digest:
            message = f"{role} build {ref.build!r} is the candidate itself"
            raise documents.refused(
                [Diagnostic(document.file, *place, f"{role}-is-candidate", "error", message)]
            )
        if ref.build not in (deployment.known_good_build, *deployment.endpoints):
            raise Unprocessable(
                f"{where}: the {role} {ref.build!r} is not served at {deployment.name}: it is not known good "
                "there and has no endpoint; register the deployment again with one"
            )
        stated[ref.build] = parse_build(build.spec).stated
    documents.checked(document, stated)


def _contract(session: Session, reference: str) -> ContractRow:
    name, _, version = reference.partition("@")
    row = repositories.contract(session, name, version)
    if row is None:
        raise Unprocessable(f"no contract is registered as {reference!r} (name@version)")
    return row


def _find(session: Session, kind: type[Named], name: str) -> Named:
    row = repositories.named(session, kind, name)
    if row is None:
        raise Unprocessable(f"no {_KINDS[kind]} is registered as {name!r}")
    return row


def _check_build(build: KernelBuildRow, predicate: Mapping[str, Scalar], contract: str, side: str) -> None:
    """Refuse a build whose spec contradicts the predicate; the running kernel is checked when measured."""
    spec = parse_build(build.spec)
    said = {"engine": spec.engine, **spec.options}
    wrong = [
        f"{name} must be {asked!r}, not {said[name]!r}"
        for name, asked in predicate.items()
        if name in said and not same(asked, said[name])
    ]
    if wrong:
        raise Unprocessable(f"build {build.name} cannot be the {side} side of {contract}: {'; '.join(wrong)}")
