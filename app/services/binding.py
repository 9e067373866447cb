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
from contracts.builds import parse_build
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
            for, the suite was made for another tokenizer, the candidate is known good already.
    """
    contract_row = _contract(session, order.contract)
    contract = Contract.model_validate_json(contract_row.json)
    checkpoint = _find(session, CheckpointRow, order.checkpoint)
    train = _find(session, KernelBuildRow, order.train)
    inference = _find(session, KernelBuildRow, order.inference)
    suite = _find(session, SuiteRow, order.suite)
    known_good = repositories.registered(session, KernelBuildRow, deployment.known_good_build)
    _check_build(train, contract.pair.train, order.contract, "train")
    _check_build(inference, contract.pair.inference, order.contract, "inference")
    for role, ref in (("guard", contract.guard), ("fallback", contract.fallback)):
        if ref is not None and repositories.named(session, KernelBuildRow, ref.build) is None:
            raise Unprocessable(f"the contract's {role} build {ref.build!r} is not registered")
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
    return Binding(order, contract, digests, known_good.name)


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
