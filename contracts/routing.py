"""Which kernel build answers a request: a table derived from the promotion, and a pure choice.

The table is the whole truth for a consumer (the gateway): it is replaced as one value, its
version only grows, and every request it routes is tagged with the promotion, stage, step and
attempt it is evidence of. At most one candidate is in it, so two never serve.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from contracts.model import Contract, Frozen, Share, Slice, Stage
from contracts.promotion import TERMINAL, FrozenBy, Promotion, Status
from contracts.slices import Attributes, matches


class Mode(StrEnum):
    """How requests are split: who serves users, and whether the candidate sees any."""

    KNOWN_GOOD = "known_good"
    SHADOW = "shadow"
    CANARY = "canary"
    FULL = "full"


class RoutingTable(Frozen):
    """One version of a deployment target's routing.

    Attributes:
        known_good, candidate, guard: build names; `candidate` is None in known_good mode.
        share: of requests, in [0, 1], whose users the candidate serves.
        mirror: share of requests copied to the candidate, which no user sees.
        audit_rate: share of the candidate's requests (served or mirrored) to evaluate through
            both kernels: all of them in shadow and canary, the contract's audit_rate in full.
        guard: serves the guarded slices; None means that the known-good build does.
        guarded: slices kept off the candidate, by name, with what belongs to them.
        promotion, stage, step, attempt: what traffic is evidence of; `promotion` is None
            before the target's first one.
    """

    target: str
    version: Annotated[int, Field(ge=1)]
    known_good: str
    candidate: str | None = None
    mode: Mode = Mode.KNOWN_GOOD
    share: Share = 0.0
    mirror: Share = 0.0
    audit_rate: Share = 0.0
    guard: str | None = None
    guarded: dict[str, Slice] = Field(default_factory=dict)
    promotion: str | None = None
    stage: Stage | None = None
    step: Annotated[int, Field(ge=0)] = 0
    attempt: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.candidate is None) != (self.mode is Mode.KNOWN_GOOD):
            raise ValueError(f"mode {self.mode} and candidate {self.candidate} contradict each other")
        if self.share > 0 and self.mode not in (Mode.CANARY, Mode.FULL):
            raise ValueError(f"in mode {self.mode} the candidate serves nobody, not {self.share:g}")
        if self.mirror > 0 and self.mode is not Mode.SHADOW:
            raise ValueError(f"only shadow mirrors, not {self.mode}")
        return self


class Route(Frozen):
    """Where one request goes.

    Attributes:
        serve: build whose answer the user gets.
        mirror: build that gets a copy, its answer being recorded as role `mirror` only.
        dual: whether the candidate's answer (served or mirrored) is to be evaluated through
            both kernels.
        role: of the served answer. `guard` answers are neither the candidate's nor a baseline.
    """

    serve: str
    mirror: str | None = None
    dual: bool = False
    role: Literal["baseline", "candidate", "guard"]


def initial(target: str, known_good: str) -> RoutingTable:
    """The first table of a target: version 1, the known-good build serves everything."""
    return RoutingTable(target=target, version=1, known_good=known_good)


def _mode(promotion: Promotion) -> Mode:
    if promotion.status in TERMINAL or promotion.status is Status.FALLEN_BACK:
        return Mode.KNOWN_GOOD
    match promotion.stage:
        case Stage.OFFLINE_CI:
            return Mode.KNOWN_GOOD
        case Stage.SHADOW:
            stands_still = promotion.status is Status.FROZEN and promotion.frozen_by is not FrozenBy.NO_DATA
            return Mode.KNOWN_GOOD if stands_still else Mode.SHADOW
        case Stage.CANARY:
            return Mode.CANARY
        case Stage.FULL:
            return Mode.FULL


def derive(
    promotion: Promotion, contract: Contract, previous: RoutingTable, *, candidate: str, known_good: str
) -> RoutingTable:
    """The table the promotion asks for, as the version after `previous`.

    A canary or full stage that is frozen or awaits approval keeps the share it had. Frozen
    shadow stops mirroring, except while it waits for data to come back. `candidate` and
    `known_good` are the names of the builds the promotion is bound to.

    Raises:
        ValueError: `previous` belongs to another target.
        KeyError: the contract lacks a guarded slice.
    """
    if previous.target != promotion.target:
        raise ValueError(
            f"the table of {previous.target} cannot follow from a promotion of {promotion.target}"
        )
    mode = _mode(promotion)
    plans = promotion.plans
    serving = mode in (Mode.CANARY, Mode.FULL)
    share = {Mode.CANARY: plans.canary.steps[promotion.step], Mode.FULL: 1.0} if serving else {}
    audit = {Mode.SHADOW: 1.0, Mode.CANARY: 1.0, Mode.FULL: plans.full.audit_rate}
    guard = contract.guard.build if contract.guard and contract.guard.build != candidate else None
    guarded = {name: contract.slice_named(name) for name in promotion.guarded} if serving else {}
    return RoutingTable(
        target=promotion.target,
        version=previous.version + 1,
        known_good=known_good,
        candidate=None if mode is Mode.KNOWN_GOOD else candidate,
        mode=mode,
        share=share.get(mode, 0.0),
        mirror=plans.shadow.mirror if mode is Mode.SHADOW else 0.0,
        audit_rate=audit.get(mode, 0.0),
        guard=guard if guarded else None,
        guarded=guarded,
        promotion=promotion.id,
        stage=promotion.stage,
        step=promotion.step,
        attempt=promotion.attempt,
    )


def accept(current: RoutingTable | None, incoming: RoutingTable) -> RoutingTable:
    """The table a consumer acts on after seeing `incoming`: the newer one, never an older.

    Raises:
        ValueError: `incoming` belongs to another target.
    """
    if current is None:
        return incoming
    if incoming.target != current.target:
        raise ValueError(f"a consumer of {current.target} was handed the table of {incoming.target}")
    return incoming if incoming.version > current.version else current


def _unit(purpose: str, table: RoutingTable, key: str) -> float:
    """A uniform number in [0, 1), the same for the same key; 53 bits of sha256.

    The purpose separates the draws: whether a request is audited must not depend on which
    side of the split it is. Stage and share are no part of it, so that a key the candidate
    serves stays with it as the share grows.
    """
    text = "\x1f".join((purpose, table.target, table.promotion or "", key))
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return float((int.from_bytes(digest[:8], "big") >> 11) / 2**53)


def _may_belong(part: Slice, attributes: Attributes) -> bool:
    """Membership for protection: an unknown language may be the guarded one."""
    if attributes.language is None:
        part = Slice(where={name: asked for name, asked in part.where.items() if name != "language"})
    return matches(part, attributes)


def choose(
    table: RoutingTable, request_key: str, attributes: Attributes, request_id: str | None = None
) -> Route:
    """The route of one request. Sticky: `request_key` (a user or session) decides the side.

    `request_id` (by default the key) decides mirroring and auditing, so that a sample is drawn
    from requests and not from users.

    A request of a guarded slice that would be the candidate's is served by the guard build
    and only mirrored to the candidate, so that evidence of recovery can be gathered.
    """
    candidate = table.candidate
    if candidate is None:
        return Route(serve=table.known_good, role="baseline")
    audited = _unit("audit", table, request_id or request_key) < table.audit_rate
    if table.mode is Mode.SHADOW:
        mirrored = _unit("mirror", table, request_id or request_key) < table.mirror
        return Route(
            serve=table.known_good,
            mirror=candidate if mirrored else None,
            dual=mirrored and audited,
            role="baseline",
        )
    if _unit("split", table, request_key) >= table.share:
        return Route(serve=table.known_good, role="baseline")
    if any(_may_belong(part, attributes) for part in table.guarded.values()):
        return Route(
            serve=table.guard or table.known_good,
            mirror=candidate if audited else None,
            dual=audited,
            role="guard" if table.guard else "baseline",
        )
    return Route(serve=candidate, dual=audited, role="candidate")
