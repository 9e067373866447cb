"""Batches on their way to the database."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy.exc import OperationalError

from app.gateway.traffic import writer
from app.services.traffic import Served
from contracts.slices import Attributes
from tests.app import rows
from tests.app.gateway.conftest import World

ONE = Served(
    request_id="r1",
    deployment=rows.TARGET,
    served_by=rows.STEADY,
    role="baseline",
    prompt_ids=[1],
    output_ids=[2],
    attributes=Attributes(1),
    latency_s=0.1,
    ttft_s=None,
    ok=True,
)


def test_a_row_the_database_refuses_costs_no_other(world: World) -> None:
    refused = []
    write = writer(world.database, lambda: refused.append(1))
    write([ONE, replace(ONE, request_id="r2", promotion="nope"), replace(ONE, request_id="r3"), ONE])
    assert [row.request_id for row in world.traffic()] == ["r1", "r3"]
    assert len(refused) == 2


def test_a_database_that_is_away_is_the_recorders_business(world: World, monkeypatch) -> None:
    def away():
        raise OperationalError("insert", {}, Exception("gone"))

    monkeypatch.setattr(world.database, "unit_of_work", away)
    with pytest.raises(OperationalError):
        writer(world.database, lambda: pytest.fail("not refused"))([ONE])
