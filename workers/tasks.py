"""What workers do with a leased job; the same functions whether polled for or sent by Celery."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Self

import structlog

from app.services import evidence as evidence_service
from app.services import jobs
from app.services.checkpoints import checkpoint_digests
from app.services.database import Database
from app.services.jobs import Lease, LeaseLost
from app.services.specs import EVALUATE, EvaluationSpec
from app.services.suites import read_suite
from contracts.builds import BuildSpec, parse_build
from contracts.document import read
from contracts.evidence import Evidence
from workers.draws import Draw, InvalidEvaluation, suite_draws, traffic_draws
from workers.progress import Report

if TYPE_CHECKING:
    from workers.kept import KeptKernels

log = structlog.get_logger(__name__)
HEARTBEAT_SECONDS = 2.0  # as old as what people see of its progress may be


class Interrupted(BaseException):
    """The process was told to stop in the middle of a measurement."""


class Stop:
    """A signal handler: ends a measurement at once, and lets everything else finish first."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._measuring = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:  # noqa: D102 - see the class
        self.event.set()
        if self._measuring:
            raise Interrupted

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """The block may be interrupted. Raises Interrupted at once when told to stop before."""
        if self.event.is_set():
            raise Interrupted
        self._measuring = True
        try:
            yield
        finally:
            self._measuring = False


class Heartbeat:
    """Renews a lease in a thread of its own while the block runs, and tells how far it is.

    :meth:`report` raises LeaseLost once the lease is lost: what is being measured is void then.
    """

    def __init__(self, database: Database, lease: Lease, seconds: float = HEARTBEAT_SECONDS) -> None:
        self._database, self._lease, self._seconds = database, lease, seconds
        self._done = threading.Event()
        self._lost: LeaseLost | None = None
        self._progress: tuple[float | None, str | None] = (None, None)
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def report(self, share: float, what: str) -> None:
        """Note the share done in [0, 1] and what is being done, for the next renewal."""
        self._progress = (share, what)
        self.check()

    def check(self) -> None:
        """Raise LeaseLost when the lease is no longer held."""
        if self._lost is not None:
            raise self._lost

    def _beat(self) -> None:
        while not self._done.wait(self._seconds):
            try:
                with self._database.unit_of_work() as session:
                    progress, doing = self._progress
                    jobs.renew(session, self._lease, progress=progress, doing=doing)
            except LeaseLost as error:
                self._lost = error
                return
            except Exception:  # the database may be back before the lease runs out
                log.exception("lease not renewed", job=self._lease.job)


def run_job(database: Database, lease: Lease, artifacts: Path, stop: Stop | None = None) -> None:
    """Do a leased job and report what came of it, evidence or the reason why there is none.

    Returns with nothing reported when the lease is lost: someone else does the job by then.
    Raises Interrupted, with the job given back, when told to stop while measuring.
    """
    bound = {"job": lease.job, "promotion": lease.spec.promotion, "stage": lease.spec.stage.value}
    stop = stop or Stop()
    try:
        with Heartbeat(database, lease) as heartbeat, stop.measuring():
            found = TASKS[lease.task](lease, artifacts, heartbeat.report)
            heartbeat.check()
        with database.unit_of_work() as session:
            evidence_service.record(session, lease, found)
        log.info("job done", prompts=found.prompts, evidence=found.digest, **bound)
    except LeaseLost as error:
        log.warning("lease lost", detail=str(error), **bound)
    except Interrupted:
        _give_back(database, lease)
        raise
    except Exception as error:
        log.exception("job failed", **bound)
        _report_failure(database, lease, error)


def evaluate(lease: Lease, artifacts: Path, progress: Report) -> Evidence:
    """Run the evaluation a job asks for, on exactly the content it names.

    Raises InvalidEvaluation when a file is not what was registered, and what reading the
    inputs and measuring raise.
    """
    from workers.evaluation import evaluate as measure

    spec = lease.spec
    document = read(spec.contract.encode(), "<contract>")
    _same("contract", "the job's", document.digest, spec.contract_digest)
    checkpoint = Path(spec.checkpoint)
    digests = checkpoint_digests(checkpoint)
    _same("checkpoint", spec.checkpoint, digests.digest, spec.checkpoint_digest)
    return measure(
        document.contract,
        spec.provenance,
        checkpoint,
        _build(spec.train, spec.train_build),
        _build(spec.inference, spec.inference_build),
        _draws(spec, checkpoint, digests.tokenizer),
        served=spec.requests or (),
        baseline=_build(spec.baseline, spec.baseline_build) if spec.baseline else None,
        shard=lease.shard,
        records=artifacts / "records" / spec.promotion / f"{lease.shard}-{lease.token}.parquet",
        progress=progress,
        opened=_kept(),
    )


@functools.cache
def _kept() -> KeptKernels:
    from workers.kept import KeptKernels

    return KeptKernels()


TASKS: dict[str, Callable[[Lease, Path, Report], Evidence]] = {EVALUATE: evaluate}


def _draws(spec: EvaluationSpec, checkpoint: Path, tokenizer_digest: str) -> list[Draw]:
    if spec.suite is None:
        return traffic_draws(spec.requests or ())
    suite = read_suite(spec.suite, tokenizer_digest)
    _same("suite", spec.suite, suite.digest, spec.suite_digest)
    return suite_draws(suite, checkpoint)


def _build(text: str, digest: str | None) -> BuildSpec:
    build = parse_build(text)
    if digest is not None:
        _same("kernel build", text, build.digest, digest)
    return build


def _same(what: str, where: str, found: str, registered: str) -> None:
    if found != registered:
        raise InvalidEvaluation(
            f"{what} {where} is {found} and was registered as {registered}: register the new content"
        )


def _give_back(database: Database, lease: Lease) -> None:
    try:
        with database.unit_of_work() as session:
            jobs.release(session, lease)
    except LeaseLost:
        log.info("nothing to give back", job=lease.job)


def _report_failure(database: Database, lease: Lease, error: Exception) -> None:
    reason = f"{type(error).__name__}: {error}"
    try:
        with database.unit_of_work() as session:
            evidence_service.measurement_failed(session, lease, "ERROR", reason)
    except LeaseLost:
        log.warning("failure not reported: the lease is lost", job=lease.job)
