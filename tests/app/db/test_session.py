import threading
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import IntegrityError, StatementError
from sqlalchemy.schema import CreateIndex, CreateTable

from app.db.clock import DatabaseNow, now
from app.db.models import AuditRow, Base, TransitionRow
from app.db.session import Database
from contracts.model import StagePlans
from contracts.promotion import Bound, Promotion


@pytest.fixture
def database(tmp_path):
    opened = Database(f"sqlite:///{tmp_path / 'kc.db'}")
    Base.metadata.create_all(opened.engine)
    yield opened
    opened.dispose()


def entry(**detail):
    return AuditRow(at=datetime(2026, 1, 1, tzinfo=UTC), actor="a", action="b", subject="c", detail=detail)


def test_sqlite_is_set_up_to_lose_nothing(database):
    with database.reading() as session:
        assert session.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert session.execute(text("PRAGMA foreign_keys")).scalar() == 1
        assert session.execute(text("PRAGMA busy_timeout")).scalar() == 30_000


def test_a_unit_of_work_is_committed_whole_or_not_at_all(database):
    with database.unit_of_work() as session:
        session.add(entry(n=1))

    def half_done():
        with database.unit_of_work() as session:
            session.add(entry(n=2))
            session.flush()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half_done()
    with database.reading() as session:
        assert [row.detail for row in session.scalars(select(AuditRow))] == [{"n": 1}]


def test_concurrent_read_modify_writes_are_not_lost(database):
    with database.unit_of_work() as session:
        session.add(entry(n=0))

    def count():
        for _ in range(25):
            with database.unit_of_work() as session:
                row = session.scalars(select(AuditRow)).one()
                row.detail = {"n": row.detail["n"] + 1}

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.reading() as session:
        assert session.scalars(select(AuditRow)).one().detail == {"n": 100}


def test_reading_waits_for_no_writer(database):
    with database.unit_of_work() as writer:
        writer.add(entry(n=1))
        writer.flush()
        with database.reading() as session:
            assert session.scalars(select(AuditRow)).all() == []


def test_foreign_keys_hold(database):
    state = Promotion(
        id="p",
        target="t",
        bound=Bound(contract="c", checkpoint="k", train_build="a", inference_build="b", suite="s"),
        plans=StagePlans(),
        escalation={},
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        stage_started_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    orphan = TransitionRow(
        promotion="p", version=1, event="{}", event_type="tick", actor="a", reason="", state=state,
        at=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    with pytest.raises(IntegrityError), database.unit_of_work() as session:
        session.add(orphan)


def test_naive_times_are_refused_and_others_come_back_as_utc(database):
    zone = datetime(2026, 1, 1, 2, tzinfo=UTC).astimezone()
    with database.unit_of_work() as session:
        row = entry()
        row.at = zone
        session.add(row)
    with database.reading() as session:
        read = session.scalars(select(AuditRow)).one().at
        assert read == zone
        assert read.tzinfo is UTC
    row = entry()
    row.at = datetime(2026, 1, 1)  # noqa: DTZ001 - what is to be refused
    with pytest.raises(StatementError, match="naive"), database.unit_of_work() as session:
        session.add(row)


def test_the_clock_is_the_databases(database):
    with database.reading() as session:
        first = now(session)
        assert first.tzinfo is UTC
        assert abs(datetime.now(UTC) - first) < timedelta(minutes=1)


def test_a_clock_can_be_given(tmp_path):
    fixed = datetime(2026, 12, 1, tzinfo=UTC)
    opened = Database(f"sqlite:///{tmp_path / 'other.db'}", clock=lambda _: fixed)
    with opened.reading() as session:
        assert now(session) == fixed
    opened.dispose()


def test_nothing_is_only_for_sqlite():
    dialect = postgresql.dialect()
    for table in Base.metadata.sorted_tables:
        assert str(CreateTable(table).compile(dialect=dialect))
        for index in table.indexes:
            assert str(CreateIndex(index).compile(dialect=dialect))
    assert "clock_timestamp()" in str(select(DatabaseNow()).compile(dialect=dialect))
