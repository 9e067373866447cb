"""What a promotion's contract is compared with, and where that is kept."""

import pytest
from sqlalchemy import select

from app.db import repositories
from app.db.models import AuditRow
from app.services import promotions, registry
from app.services.binding import Order
from contracts.promotion import Abort, Approve
from tests.app.world import CANDIDATE, OTHER, STEADY, TARGET, TRAIN

LOOSER = ("metric: abs_log_ratio, limit: {lte: 0.1}", "metric: abs_log_ratio, limit: {lte: 0.2}")


@pytest.fixture
def promote(world):
    def start(version="1.0.0", inference=CANDIDATE, change=("", ""), through=False):
        text = world.contract.replace(*change).replace("1.0.0", version)
        with world.database.unit_of_work() as session:
            registry.register_contract(session, text.encode())
        with world.database.unit_of_work() as session:
            order = Order(TARGET, f"tiny@{version}", "model", TRAIN, inference, "suite")
            row = promotions.start(session, order, actor="ann")
        if through:
            world.evaluate()
            for _ in range(3):
                world.live()
            world.apply(row.id, Approve(actor="ann"))
            world.live()
            assert world.place(row.id)[2] == "promoted"
        return row

    return start


def test_the_first_has_nothing_to_compare_with(world, promote):
    row = promote()
    assert row.comparison is None
    with world.database.reading() as session:
        entry = session.scalars(select(AuditRow).where(AuditRow.action == "promotion.start")).one()
    assert "comparison" not in entry.detail


def test_before_anything_is_accepted_it_is_the_version_registered_before(world, promote):
    row = promote("1.1.0", change=LOOSER)
    assert (row.comparison.old, row.comparison.new, row.comparison.loosened) == (
        "tiny@1.0.0",
        "tiny@1.1.0",
        True,
    )
    assert [str(change) for change in row.comparison.changes] == [
        "loosened clause N1: limit lte 0.1 nats → lte 0.2 nats"
    ]
    assert promote("1.2.0").comparison.old == "tiny@1.1.0"
    assert promote("1.0.0").comparison is None


def test_afterwards_it_is_what_the_accepted_one_was_held_to(world, promote):
    promote(through=True)
    promote("1.1.0", OTHER, LOOSER)
    again = promote("1.2.0", OTHER, LOOSER)
    assert again.comparison.old == "tiny@1.0.0", "superseded while promoted; 1.1.0 was never accepted"
    assert again.comparison.loosened
    assert promote("1.0.0", OTHER).comparison.changes == ()


def test_what_was_taken_back_is_not_accepted(world, promote):
    first = promote(through=True)
    world.apply(first.id, Abort(actor="ann"))
    assert world.deployment().known_good_build == STEADY
    with world.database.reading() as session:
        assert repositories.last_accepted(session, TARGET) is None
    assert promote("1.1.0", OTHER, LOOSER).comparison.old == "tiny@1.0.0", "the version before"
    with world.database.reading() as session:
        assert repositories.last_accepted(session, "elsewhere") is None


def test_the_start_is_audited_with_it(world, promote):
    row = promote("1.1.0", change=LOOSER)
    with world.database.reading() as session:
        entry = session.scalars(select(AuditRow).where(AuditRow.action == "promotion.start")).one()
    assert entry.detail["comparison"] == row.comparison.model_dump(mode="json")
    world.apply(row.id, Abort(actor="ann"))
    with world.database.reading() as session:
        entry = session.scalars(select(AuditRow).where(AuditRow.action == "promotion.abort")).one()
    assert "comparison" not in entry.detail
