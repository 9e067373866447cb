"""What an evaluation job is asked to do: everything by content, nothing to look up.

The worker gets this from the job's row; the message on the queue carries the job id only.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, FiniteFloat, model_validator

from contracts.evidence import Provenance
from contracts.model import Frozen, Stage
from contracts.slices import Attributes

EVALUATE = "workers.tasks.evaluate"  # the task's name, as the app enqueues it

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
TokenId = Annotated[int, Field(ge=0)]
Elapsed = Annotated[FiniteFloat, Field(ge=0)]


class TrafficRequest(Frozen):
    """One served request, as the gateway recorded it.

    Attributes:
        output_ids: what the serving kernel generated; empty when the request failed.
        role: `baseline` was served by the known-good build, `candidate` by the candidate,
            `mirror` is a copy the candidate answered and no user saw.
        latency_s, ttft_s: seconds; None when the request failed before.
        dual: whether its ids are to be run through both kernels.
    """

    id: Annotated[str, Field(min_length=1)]
    prompt_ids: Annotated[tuple[TokenId, ...], Field(min_length=1)]
    output_ids: tuple[TokenId, ...] = ()
    attributes: Attributes
    role: Literal["baseline", "candidate", "mirror"]
    latency_s: Elapsed | None = None
    ttft_s: Elapsed | None = None
    ok: bool
    dual: bool = False


class EvaluationSpec(Frozen):
    """One evaluation: a suite in offline CI, served requests in the live stages.

    Builds are given as `engine:key=value,...` with the digests of their registered
    fingerprints; the digests are what evidence is bound to.
    """

    contract: str
    contract_digest: Digest
    promotion: Annotated[str, Field(min_length=1)]
    stage: Stage
    step: Annotated[int, Field(ge=0)] = 0
    attempt: Annotated[int, Field(ge=1)] = 1
    checkpoint: str
    checkpoint_digest: Digest
    train: str
    train_build: Digest
    inference: str
    inference_build: Digest
    baseline: str | None = None
    baseline_build: Digest | None = None
    suite: str | None = None
    suite_digest: Digest
    requests: tuple[TrafficRequest, ...] | None = None

    @model_validator(mode="after")
    def _suite_or_requests(self) -> EvaluationSpec:
        if (self.stage is Stage.OFFLINE_CI) != (self.suite is not None):
            raise ValueError("offline_ci measures a suite, the other stages served requests")
        if (self.suite is None) == (self.requests is None):
            raise ValueError("an evaluation has exactly one of suite, requests")
        return self

    @property
    def provenance(self) -> Provenance:
        """What the evidence is bound to; the same for every shard of one attempt."""
        return Provenance(
            contract=self.contract_digest,
            checkpoint=self.checkpoint_digest,
            train_build=self.train_build,
            inference_build=self.inference_build,
            suite=self.suite_digest,
            baseline_build=self.baseline_build,
            stage=self.stage,
            attempt=f"{self.promotion}/{self.stage}/{self.step}/{self.attempt}",
        )
