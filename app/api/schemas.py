"""Requests and answers of the API, version 1."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from contracts.compare import Change
from contracts.model import Name, Stage, StagePlans
from contracts.promotion import Bound, FrozenBy, Passed, Promotion, Status
from contracts.verdicts import Judgement

Item = TypeVar("Item")
Reason = Annotated[str, Field(max_length=2000)]
Given = Annotated[str, Field(min_length=1, max_length=2000)]


class Request(BaseModel):
    """A request body: an unknown key is refused, not ignored."""

    model_config = ConfigDict(extra="forbid")


class Answer(BaseModel):
    """An answer, read from a row or a value."""

    model_config = ConfigDict(from_attributes=True)


class Page(BaseModel, Generic[Item]):
    """Items, and the cursor of the next page where there is one."""

    items: list[Item]
    next: int | None = Field(default=None, description="Pass as `before` for the next page.")


class CheckpointIn(Request):
    """A checkpoint directory the server can read."""

    name: Name
    path: Given


class BuildIn(Request):
    """A kernel build, `engine:key=value,...` or an object with the same keys."""

    name: Name
    spec: Given | dict[str, str | bool | int | float]


class SuiteIn(Request):
    """A JSON Lines suite the server can read."""

    name: Name
    path: Given


class DeploymentIn(Request):
    """A deployment target: the build known good there, and each build's base URL."""

    name: Name
    known_good: Name
    endpoints: dict[Name, str] = {}
    gateway: dict[str, Any] = {}


class PromotionIn(Request):
    """What to promote, by registered names."""

    deployment: Name
    contract: Given = Field(description="`name@version`", examples=["coder-bf16@1.2.0"])
    checkpoint: Name
    train: Name
    inference: Name
    suite: Name
    on_active: Literal["supersede", "refuse"] = "supersede"


class ReasonIn(Request):
    """Why; kept in the audit trail."""

    reason: Given


class MaybeReasonIn(Request):
    """Why, if there is something to say; kept in the audit trail."""

    reason: Reason = ""


class OverrideIn(Request):
    """The one undecided verdict to accept, and why."""

    evidence_digest: Given
    reason: Given


class ContractOut(Answer):
    """A published contract; `yaml` is the text as written."""

    name: str
    version: str
    digest: str
    created_at: datetime


class DiagnosticOut(Answer):
    """One finding in a contract document; lines and columns count from 1."""

    file: str
    line: int
    column: int
    code: str
    severity: Literal["error", "warning"]
    message: str


class ContractRegistered(ContractOut):
    """A published contract and what the linter finds unwise in it."""

    warnings: tuple[DiagnosticOut, ...]


class ContractText(ContractRegistered):
    """A published contract with its text as written."""

    yaml: str


class CheckpointOut(Answer):
    """A registered checkpoint."""

    name: str
    digest: str
    path: str
    weights_digest: str
    tokenizer_digest: str
    chat_template_digest: str
    config_digest: str
    created_at: datetime


class BuildOut(Answer):
    """A registered kernel build."""

    name: str
    digest: str
    spec: str
    created_at: datetime


class SuiteOut(Answer):
    """A registered suite."""

    name: str
    digest: str
    path: str
    prompts: int
    tokenizer_digest: str | None
    created_at: datetime


class DeploymentOut(Answer):
    """A registered deployment target."""

    name: str
    known_good_build: str
    known_good_healthy: bool
    endpoints: dict[str, str]
    gateway: dict[str, Any]
    created_at: datetime
    updated_at: datetime


class ComparisonOut(Answer):
    """What a contract promises beside `against`, the `name@version` before it.

    `loosened` says whether anything was loosened, removed or changed incomparably.
    """

    against: str
    loosened: bool
    changes: tuple[Change, ...]


class PromotionOut(Answer):
    """A promotion: the names it was started with, and its whole state.

    `contract` is `name@version`; `bound` holds the content digests everything is pinned to.
    `undecided` is what an override names. `comparison` is with the contract of the deployment's
    last accepted promotion, else with the version registered before; null where there is none.
    """

    id: str
    deployment: str
    contract: str
    checkpoint: str
    train_build: str
    inference_build: str
    known_good_build: str
    suite: str
    comparison: ComparisonOut | None
    stage: Stage
    step: int
    status: Status
    active: bool
    attempt: int
    version: int
    reason: str
    frozen_by: FrozenBy | None
    pending_approval: Stage | None
    approval_expires_at: datetime | None
    undecided: str | None
    guarded: tuple[str, ...]
    known_good_healthy: bool
    passed: tuple[Passed, ...]
    bound: Bound
    plans: StagePlans
    started_at: datetime
    started_by: str
    stage_started_at: datetime
    deadline_at: datetime | None
    updated_at: datetime


class JobOut(Answer):
    """An evaluation as a worker does it; `progress` is the share done in [0, 1], null when not known.

    `leases` counts how often a worker took it up.
    """

    id: int
    stage: str
    step: int
    attempt: int
    queue: str
    state: Literal["queued", "leased", "done", "failed", "cancelled"]
    leases: int
    progress: float | None
    doing: str | None
    error: str | None
    created_at: datetime
    finished_at: datetime | None


class WaitingOut(Answer):
    """Served requests of the present attempt that no evaluation took up yet.

    The first evaluation of a live stage starts when `dual_evaluated` reaches `min_prompts`.
    """

    requests: int
    dual_evaluated: int
    min_prompts: int


class EvidenceOut(Answer):
    """A piece of evidence: a shard as reported, or the merge that was judged."""

    digest: str
    kind: Literal["shard", "merged"]
    stage: str
    step: int
    attempt: int
    stale: bool
    prompts: int
    at: datetime


class JudgementOut(Judgement):
    """A judgement with its verdicts, and where in the promotion it was made."""

    step: int
    attempt: int
    at: datetime


class TransitionOut(Answer):
    """One step of a promotion, the event and the state it led to."""

    version: int
    event_type: str
    event: dict[str, Any]
    actor: str
    reason: str
    state: Promotion
    at: datetime


class AuditOut(Answer):
    """One entry of the audit trail."""

    seq: int
    at: datetime
    actor: str
    action: str
    subject: str
    detail: dict[str, Any]


class Problem(BaseModel):
    """An error (RFC 9457); some types have further members."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
