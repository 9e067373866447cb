import json
import signal
import threading

import pytest

from app.services import evidence as evidence_service
from app.services import jobs, registry
from app.services.suites import read_suite
from tests.app.world import BUILDS, CANDIDATE, ENDPOINTS, STEADY, TARGET, World, write_suite
from workers import local, tasks
from workers.tasks import Heartbeat, Interrupted, Stop, run_job

WAIT = 30.0


class RealWorld(World):
    """The control plane of tests with a checkpoint that can be run."""

    def register_real(self, checkpoint, prompts=40):
        suite = write_suite(self.folder / "suite.jsonl", prompts)
        with self.database.unit_of_work() as session:
            registry.register_contract(session, self.contract.encode())
            registry.register_checkpoint(session, "model", checkpoint)
            for name, spec in BUILDS.items():
                registry.register_build(session, name, spec)
            registry.register_suite(session, "suite", suite)
            registry.register_deployment(session, TARGET, STEADY, ENDPOINTS)

    def lease(self, owner="worker"):
        return local.next_lease(self.database, owner)

    def job(self, lease):
        with self.database.reading() as session:
            return jobs.repositories.job(session, lease.job)


@pytest.fixture
def world(tmp_path, tiny_checkpoint):
    made = RealWorld(tmp_path)
    made.register_real(tiny_checkpoint)
    yield made
    made.database.dispose()


@pytest.fixture
def artifacts(tmp_path):
    return tmp_path / "artifacts"


def test_a_job_is_measured_recorded_and_acted_on(world, artifacts):
    promotion = world.start()
    lease = world.lease()
    run_job(world.database, lease, artifacts)
    assert world.job(lease).state == "done"
    assert world.place(promotion) == ("shadow", 0, "measuring")
    with world.database.reading() as session:
        (row,) = evidence_service.of(session, promotion)
    assert row.prompts == 40
    assert json.loads(row.json)["provenance"] == lease.spec.provenance.model_dump(mode="json")
    records = {file.name for file in (artifacts / "records" / promotion).iterdir()}
    name = f"{lease.shard}-{lease.token}"
    assert records == {f"{name}.parquet", f"{name}.requests.parquet"}
    assert world.lease() is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda world: write_suite(world.folder / "suite.jsonl", 3), "InvalidEvaluation: suite"),
        (lambda world: (world.folder / "suite.jsonl").unlink(), "InvalidSuite"),
    ],
)
def test_what_cannot_be_measured_is_reported_and_never_passes(world, artifacts, change, reason):
    promotion = world.start()
    lease = world.lease()
    change(world)
    run_job(world.database, lease, artifacts)
    job = world.job(lease)
    assert job.state == "failed"
    assert job.error.startswith(reason)
    stage, _, status = world.place(promotion)
    assert (stage, status) == ("offline_ci", "frozen")
    assert reason.partition(":")[0] in world.state(promotion).reason
    assert not (artifacts / "records").exists()


def test_a_checkpoint_that_changed_is_refused(world, artifacts, tiny_checkpoint, monkeypatch):
    world.start()
    lease = world.lease()
    spec = lease.spec.model_copy(update={"checkpoint_digest": "sha256:" + "f" * 64})
    with pytest.raises(tasks.InvalidEvaluation, match="register the new content"):
        tasks.evaluate(jobs.Lease(**{**vars_of(lease), "spec": spec}), artifacts, lambda *_: None)


def vars_of(lease):
    return {name: getattr(lease, name) for name in lease.__dataclass_fields__}


def replace_measurement(monkeypatch, measure):
    monkeypatch.setitem(tasks.TASKS, tasks.EVALUATE, measure)


def test_a_lost_lease_reports_nothing(world, artifacts, monkeypatch):
    promotion = world.start()
    lease = world.lease("slow")

    def measure(lease, artifacts, progress):
        world.clock.advance(seconds=jobs.LEASE_SECONDS + 1)
        assert world.lease("quick").token > lease.token
        return object()

    replace_measurement(monkeypatch, measure)
    monkeypatch.setattr(evidence_service, "record", lambda session, lease, found: jobs.held(session, lease))
    run_job(world.database, lease, artifacts)
    assert world.job(lease).owner == "quick"
    assert world.place(promotion) == ("offline_ci", 0, "measuring")


def test_a_failure_after_the_lease_is_lost_reports_nothing(world, artifacts, monkeypatch):
    promotion = world.start()
    lease = world.lease()

    def measure(lease, artifacts, progress):
        world.clock.advance(seconds=jobs.LEASE_SECONDS + 1)
        raise RuntimeError("too late")

    replace_measurement(monkeypatch, measure)
    run_job(world.database, lease, artifacts)
    assert world.job(lease).state == "leased"
    assert world.place(promotion) == ("offline_ci", 0, "measuring")


def test_an_interrupted_job_is_given_back(world, artifacts, monkeypatch):
    world.start()
    lease = world.lease()
    stop = Stop()

    def measure(lease, artifacts, progress):
        stop(signal.SIGTERM, None)

    replace_measurement(monkeypatch, measure)
    with pytest.raises(Interrupted):
        run_job(world.database, lease, artifacts, stop)
    assert world.job(lease).state == "queued"
    again = world.lease("next")
    assert (again.job, again.number) == (lease.job, 1)


def test_a_worker_told_to_stop_does_not_begin(world, artifacts, monkeypatch):
    world.start()
    lease = world.lease()
    stop = Stop()
    stop(signal.SIGTERM, None)
    replace_measurement(monkeypatch, None)
    with pytest.raises(Interrupted):
        run_job(world.database, lease, artifacts, stop)
    assert world.job(lease).state == "queued"


def test_the_heartbeat_renews(world):
    world.start()
    lease = world.lease()
    before = world.job(lease).lease_expires_at
    world.clock.advance(seconds=30)
    renewed = threading.Event()
    renew = jobs.renew

    def watched(session, lease, **kwargs):
        renew(session, lease, **kwargs)
        renewed.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "renew", watched)
        with Heartbeat(world.database, lease, seconds=0.001) as heartbeat:
            assert renewed.wait(WAIT)
            heartbeat.check()
    assert world.job(lease).lease_expires_at > before


def test_the_heartbeat_says_how_far_the_work_is(world):
    world.start()
    lease = world.lease()
    told = threading.Event()
    renew = jobs.renew

    def watched(session, lease, **said):
        renew(session, lease, **said)
        if said["progress"] is not None:
            told.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "renew", watched)
        with Heartbeat(world.database, lease, seconds=0.001) as heartbeat:
            heartbeat.report(0.25, "10 of 40 prompts")
            assert told.wait(WAIT)
    job = world.job(lease)
    assert (job.progress, job.doing) == (0.25, "10 of 40 prompts")
    with world.database.unit_of_work() as session:
        jobs.release(session, lease)
    assert (world.job(lease).progress, world.job(lease).doing) == (None, None)


def test_the_heartbeat_tells_of_a_lost_lease(world):
    world.start()
    lease = world.lease()
    world.clock.advance(seconds=jobs.LEASE_SECONDS + 1)
    with Heartbeat(world.database, lease, seconds=0.001) as heartbeat:
        heartbeat._thread.join(WAIT)
        with pytest.raises(jobs.LeaseLost):
            heartbeat.check()


def test_a_database_that_is_away_for_a_while_costs_nothing(world):
    world.start()
    lease = world.lease()
    calls = []
    renewed = threading.Event()

    def flaky(session, lease, **kwargs):
        calls.append(lease)
        if len(calls) == 1:
            raise OSError("away")
        renewed.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "renew", flaky)
        with Heartbeat(world.database, lease, seconds=0.001) as heartbeat:
            assert renewed.wait(WAIT)
            heartbeat.check()


def test_candidate_and_suite_are_what_was_registered(world):
    world.start(CANDIDATE)
    lease = world.lease()
    assert read_suite(lease.spec.suite).digest == lease.spec.suite_digest
    assert lease.spec.inference == BUILDS[CANDIDATE]
