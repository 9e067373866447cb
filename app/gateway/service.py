"""Serving one request: choose, forward, fall back, mirror, observe.

The user waits for the build chosen and, only when it fails, for the known-good one; mirroring
and recording happen afterwards and off the request path.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import httpx2
import structlog

from app.gateway import upstream
from app.gateway.background import Mirrors, Recorder
from app.gateway.metrics import Metrics
from app.gateway.openai import CompletionRequest, Refused
from app.gateway.table import Routes, TableWatch
from app.gateway.upstream import Answer, UpstreamFailed
from app.services.traffic import Role, Served
from contracts.routing import Route
from contracts.slices import Attributes

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Call:
    """One user's request with its route, fixed for as long as it lasts."""

    id: str
    request: CompletionRequest
    body: bytes
    routes: Routes
    route: Route


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one build made of a call: an answer, or the reason why there is none."""

    build: str
    answer: Answer | None
    error: str = ""

    @property
    def completed(self) -> bool:
        """Whether there is a completion to hand out."""
        return self.answer is not None and self.answer.completed

    @property
    def refused(self) -> bool:
        """Whether the build holds the request itself to be at fault."""
        return self.answer is not None and self.answer.refused


@dataclass(frozen=True, slots=True)
class MirrorItem:
    """A copy for the candidate; `prompt_ids` are the ids the user's answer was made from."""

    call: Call
    build: str
    prompt_ids: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Delivered:
    """The answer the user gets."""

    answer: Answer
    build: str
    routing_version: int
    request_id: str


class Gateway:
    """The data plane of one deployment."""

    def __init__(
        self, deployment: str, watch: TableWatch, http: httpx2.AsyncClient, recorder: Recorder[Served],
        metrics: Metrics, *, mirror_capacity: int, mirror_workers: int,
    ) -> None:  # fmt: skip
        self.deployment = deployment
        self.watch = watch
        self.metrics = metrics
        self.recorder = recorder
        self.mirrors: Mirrors[MirrorItem] = Mirrors(
            self._mirror, capacity=mirror_capacity, workers=mirror_workers
        )
        self._http = http

    async def complete(self, request: CompletionRequest, session: str | None) -> Delivered:
        """Serve one request. Raises Refused when there is no answer to hand out."""
        call = self._routed(request, session)
        first = await self._ask(call, call.route.serve, call.route.role, request.prompt_ids)
        known_good = call.routes.table.known_good
        if first.completed or first.build == known_good:
            last = first
            if not first.refused:
                self._observe(call, first, call.route.role, _prompt_ids(call, first), dual=self._dual(call))
        else:
            last = await self._fall_back(call, first, known_good)
        if last.answer is None:
            raise Refused(502, f"The kernel server of {last.build} gave no answer.", code="upstream_failed")
        if last.completed:
            self._offer_mirror(call, _prompt_ids(call, last))
        return Delivered(last.answer, last.build, call.routes.table.version, call.id)

    def _routed(self, request: CompletionRequest, session: str | None) -> Call:
        routes = self.watch.routes
        if routes is None:
            raise Refused(503, f"No routing table of {self.deployment} has been read yet.",
                          code="not_ready", retry_after_s=1)  # fmt: skip
        if request.model != self.deployment:
            raise Refused(404, f"The model {request.model!r} does not exist; this gateway serves "
                          f"{self.deployment!r}.", param="model", code="model_not_found")  # fmt: skip
        call_id = uuid.uuid4().hex
        ids = request.prompt_ids
        attributes = _attributes(request, ids or ())
        route = routes.choose(request.sticky_key(session), call_id, attributes, length_known=ids is not None)
        return Call(call_id, request, request.forwarded(), routes, route)

    def _dual(self, call: Call) -> bool:
        return call.route.dual and call.route.role == "candidate"

    async def _fall_back(self, call: Call, first: Attempt, known_good: str) -> Attempt:
        second = await self._ask(call, known_good, "baseline", call.request.prompt_ids)
        if second.refused and first.refused:
            return second
        self.metrics.fallbacks.inc()
        log.warning("fell back", build=first.build, error=first.error, request=call.id)
        ids = _prompt_ids(call, second)
        self._observe(call, first, call.route.role, ids, dual=self._dual(call))
        if not second.refused:
            self._observe(call, second, "baseline", ids, dual=False)
        return second

    async def _ask(self, call: Call, build: str, role: Role, expected: tuple[int, ...] | None) -> Attempt:
        """Ask one build; whatever goes wrong is in the attempt."""
        attempt = await self._attempt(call, build, expected)
        outcome = "ok" if attempt.completed else "refused" if attempt.refused else "failed"
        self.metrics.answers.labels(build, role, outcome).inc()
        if attempt.answer is not None and attempt.completed:
            self.metrics.latency.labels(build, role).observe(attempt.answer.latency_s)
        return attempt

    async def _attempt(self, call: Call, build: str, expected: tuple[int, ...] | None) -> Attempt:
        endpoint = call.routes.endpoints.get(build)
        if endpoint is None:
            return Attempt(build, None, "no endpoint is registered for this build")
        try:
            answer = await upstream.complete(self._http, endpoint, call.body)
        except UpstreamFailed as error:
            return Attempt(build, None, str(error))
        if expected is not None and answer.prompt_ids not in (None, expected):
            return Attempt(build, None, "the answer is to other prompt token ids than were asked")
        return Attempt(build, answer, "" if answer.completed else f"HTTP {answer.status}")

    def _offer_mirror(self, call: Call, prompt_ids: tuple[int, ...] | None) -> None:
        build = call.route.mirror
        if build is not None and not self.mirrors.offer(MirrorItem(call, build, prompt_ids)):
            self.metrics.mirrors_dropped.inc()

    async def _mirror(self, item: MirrorItem) -> None:
        attempt = await self._ask(item.call, item.build, "mirror", item.prompt_ids)
        # The user's build answered this request, so refusing it is the candidate's failure too.
        ids = item.prompt_ids or (attempt.answer.prompt_ids if attempt.answer else None)
        self._observe(item.call, attempt, "mirror", ids, dual=item.call.route.dual)

    def _observe(
        self, call: Call, attempt: Attempt, role: Role, prompt_ids: tuple[int, ...] | None, *, dual: bool
    ) -> None:
        if not prompt_ids:
            self.metrics.records_dropped.labels("no_token_ids").inc()
            return
        answer = attempt.answer if attempt.completed else None
        table = call.routes.table
        served = Served(
            request_id=call.id,
            deployment=self.deployment,
            served_by=attempt.build,
            role=role,
            prompt_ids=prompt_ids,
            output_ids=(answer.output_ids or ()) if answer else (),
            attributes=_attributes(call.request, prompt_ids),
            latency_s=answer.latency_s if answer else None,
            ttft_s=answer.ttft_s if answer else None,
            ok=answer is not None,
            dual=dual and answer is not None,
            promotion=table.promotion,
            stage=table.stage,
            step=table.step if table.promotion else None,
            attempt=table.attempt if table.promotion else None,
        )
        if not self.recorder.offer(served):
            self.metrics.records_dropped.labels("queue_full").inc()


def _attributes(request: CompletionRequest, prompt_ids: tuple[int, ...]) -> Attributes:
    return Attributes(
        prompt_tokens=len(prompt_ids),
        language=request.metadata.language,
        tags=frozenset(request.metadata.tags),
    )


def _prompt_ids(call: Call, attempt: Attempt) -> tuple[int, ...] | None:
    return call.request.prompt_ids or (attempt.answer.prompt_ids if attempt.answer else None)
