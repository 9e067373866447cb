import pytest
from sqlalchemy import select

from app.db.models import EvidenceRow, JudgementRow, TransitionRow, VerdictRow
from app.errors import EvidenceRefused, NotFound
from app.services import evidence, promotions
from contracts.evidence import Evidence
from contracts.promotion import Abort, Freeze, Retry
from tests.app.world import BAD, CONTRACT, OTHER, PROMPTS, World


def rows(world, kind):
    with world.database.reading() as session:
        return session.scalars(select(kind)).all()


@pytest.fixture
def slow(tmp_path):
    """A world whose contract wants shadow to last."""
    made = World(tmp_path, contract=CONTRACT.replace("shadow: {", "shadow: {min_duration: 10m, "))
    made.register()
    yield made
    made.database.dispose()


def test_what_a_worker_measured_is_kept_with_its_judgement(world):
    promotion = world.start()
    world.evaluate()
    (shard,) = rows(world, EvidenceRow)
    assert (shard.kind, shard.stale, shard.prompts) == ("shard", False, PROMPTS)
    assert Evidence.model_validate_json(shard.json).digest == shard.digest
    (judgement,) = rows(world, JudgementRow)
    assert (judgement.evidence_digest, judgement.converged) == (shard.digest, True)
    verdicts = rows(world, VerdictRow)
    assert [(v.clause, v.slice, v.phase, v.verdict) for v in verdicts] == [
        ("N1", "all", "prefill", "HOLDS"),
        ("N1", "all", "decode", "HOLDS"),
        ("N1", "python", "prefill", "HOLDS"),
        ("N1", "python", "decode", "HOLDS"),
        ("S1", "all", "prefill", "HOLDS"),
        ("S1", "all", "decode", "HOLDS"),
    ]
    with world.database.reading() as session:
        assert evidence.one(session, promotion, shard.digest).id == shard.id
        assert evidence.judgements(session, promotion)[0].converged is True
        with pytest.raises(NotFound):
            evidence.one(session, promotion, "sha256:0")
        with pytest.raises(NotFound):
            evidence.of(session, "nope")


def test_judging_again_gives_the_same_bytes(world):
    world.start()
    world.evaluate()
    world.live(BAD, kl=0.0)
    for judgement in rows(world, JudgementRow):
        with world.database.reading() as session:
            assert evidence.rejudge(session, judgement).model_dump_json() == judgement.json


def test_shards_of_an_attempt_are_merged_and_judged_together(slow):
    promotion = slow.start()
    slow.evaluate()
    slow.live(requests=PROMPTS)
    assert slow.place(promotion) == ("shadow", 0, "measuring"), "converged, but too early"
    assert [row.kind for row in rows(slow, EvidenceRow)] == ["shard", "shard"]
    slow.clock.advance(minutes=4)
    slow.live(requests=7)
    slow.clock.advance(minutes=7)
    slow.live(requests=5)
    assert slow.place(promotion) == ("canary", 0, "measuring")
    shadow = [row for row in rows(slow, EvidenceRow) if row.stage == "shadow"]
    assert [(row.kind, row.prompts) for row in shadow] == [
        ("shard", PROMPTS),
        ("shard", 7),
        ("merged", PROMPTS + 7),
        ("shard", 5),
        ("merged", PROMPTS + 12),
    ]
    shards = [Evidence.model_validate_json(row.json) for row in shadow if row.kind == "shard"]
    merged = Evidence.model_validate_json(shadow[-1].json)
    assert shards[2].merge(shards[0]).merge(shards[1]) == merged
    judged = [row for row in rows(slow, JudgementRow) if row.stage == "shadow"]
    assert [row.prompts for row in judged] == [PROMPTS, PROMPTS + 7, PROMPTS + 12]
    for judgement in judged:
        with slow.database.reading() as session:
            assert evidence.rejudge(session, judgement).model_dump_json() == judgement.json


def test_a_shard_counted_before_is_refused(slow):
    promotion = slow.start()
    slow.evaluate()
    slow.live(requests=PROMPTS)
    slow.serve(1)
    slow.tick()
    lease = slow.lease()
    again = slow.measured(lease).model_copy(update={"shards": ("job-2",)})
    with pytest.raises(EvidenceRefused, match="job-2"), slow.database.unit_of_work() as session:
        evidence.record(session, lease, again)
    assert slow.place(promotion) == ("shadow", 0, "measuring")


def test_evidence_of_another_experiment_is_refused_whole(world):
    promotion = world.start()
    lease = world.lease()
    measured = world.measured(lease)
    other = measured.model_copy(
        update={"provenance": measured.provenance.model_copy(update={"checkpoint": "sha256:" + "0" * 64})}
    )
    with pytest.raises(EvidenceRefused), world.database.unit_of_work() as session:
        evidence.record(session, lease, other)
    assert rows(world, EvidenceRow) == []
    assert world.place(promotion) == ("offline_ci", 0, "measuring")
    world.report(lease)
    assert world.place(promotion)[0] == "shadow"


def test_a_late_result_is_stored_as_stale_and_ignored(world):
    promotion = world.start()
    late = world.lease()
    world.apply(promotion, Retry(actor="ann"))
    before = world.state(promotion)
    assert world.report(late, BAD) is None
    assert world.state(promotion) == before
    (row,) = rows(world, EvidenceRow)
    assert row.stale
    assert rows(world, JudgementRow) == []


def test_a_result_after_the_end_is_stale(world):
    promotion = world.start()
    lease = world.lease()
    world.apply(promotion, Abort(actor="ann"))
    assert world.report(lease) is None
    assert world.place(promotion)[2] == "aborted"
    assert [row.stale for row in rows(world, EvidenceRow)] == [True]


def test_a_result_of_a_superseded_promotion_does_not_reach_the_new_one(world):
    world.start()
    lease = world.lease()
    new = world.start(OTHER)
    world.report(lease)
    assert world.place(new) == ("offline_ci", 0, "measuring")


@pytest.mark.parametrize("outcome", ["ERROR", "CANCELLED", "TIMED_OUT", "NO_DATA"])
def test_a_failed_measurement_is_never_a_pass(world, outcome):
    promotion = world.start()
    lease = world.lease()
    with world.database.unit_of_work() as session:
        evidence.measurement_failed(session, lease, outcome, "the device fell over")
    state = world.state(promotion)
    assert (state.stage, state.status) == ("offline_ci", "frozen")
    assert outcome in state.reason
    assert "fell over" in state.reason
    assert world.lease() is None


def test_a_failure_of_a_cancelled_job_tells_nobody(world):
    promotion = world.start()
    lease = world.lease()
    world.apply(promotion, Freeze(actor="ann", reason="wait"))
    before = len(rows(world, TransitionRow))
    with world.database.unit_of_work() as session:
        assert evidence.measurement_failed(session, lease, "CANCELLED", "told to stop") is None
    assert len(rows(world, TransitionRow)) == before


def test_nothing_measured_never_passes(world):
    promotion = world.start()
    world.evaluate(prompts=0)
    assert world.place(promotion) == ("offline_ci", 0, "frozen")
    with world.database.reading() as session:
        verdicts = evidence.judgements(session, promotion)[0].verdicts
    assert {verdict.verdict for verdict in verdicts} == {"NO_DATA"}


def test_old_telemetry_is_a_violation_by_the_databases_clock(world):
    promotion = world.start()
    world.evaluate()
    world.serve(PROMPTS)
    world.tick()
    lease = world.lease()
    world.clock.advance(minutes=6)
    lease = world.lease()
    assert world.report(lease).after.status == "frozen"
    assert "O1" in world.state(promotion).reason
    assert "360" in world.state(promotion).reason


def test_an_error_while_judging_leaves_nothing(world, monkeypatch):
    promotion = world.start()
    lease = world.lease()
    measured = world.measured(lease)

    def broken(*args, **kwargs):
        raise RuntimeError("a bug in the judge")

    monkeypatch.setattr(evidence, "judge", broken)
    with pytest.raises(RuntimeError), world.database.unit_of_work() as session:
        evidence.record(session, lease, measured)
    assert rows(world, EvidenceRow) == []
    assert world.place(promotion) == ("offline_ci", 0, "measuring")
    monkeypatch.undo()
    world.report(lease)
    assert world.place(promotion)[0] == "shadow"


def test_an_error_while_rerouting_leaves_nothing(world, monkeypatch):
    promotion = world.start()
    lease = world.lease()

    def broken(*args, **kwargs):
        raise RuntimeError("disk full")

    monkeypatch.setattr(promotions.routing, "reroute", broken)
    with pytest.raises(RuntimeError):
        world.report(lease)
    monkeypatch.undo()
    assert rows(world, EvidenceRow) == rows(world, JudgementRow) == rows(world, VerdictRow) == []
    assert len(rows(world, TransitionRow)) == 1
    assert world.table().version == world.state(promotion).version + 1
