"""The gateway's view of the routing table."""

from __future__ import annotations

from structlog.testing import capture_logs

from app.errors import NotFound
from app.gateway.table import Routes, TableWatch
from contracts.routing import RoutingTable
from tests.app import rows
from tests.app.gateway.conftest import run


def _routes(version: int, endpoint: str = "http://a", target: str = rows.TARGET) -> Routes:
    return Routes(
        RoutingTable(target=target, version=version, known_good=rows.STEADY), {rows.STEADY: endpoint}
    )


def _watched(*answers: Routes | Exception) -> TableWatch:
    queue = list(answers)

    def read() -> Routes:
        answer = queue.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    watch = TableWatch(read)

    async def refresh() -> None:
        for _ in answers:
            await watch.refresh()

    run(refresh())
    return watch


def test_newer_versions_are_taken_and_older_ones_are_not() -> None:
    watch = _watched(_routes(2), _routes(5), _routes(4, "http://stale"))
    assert watch.routes == _routes(5)


def test_endpoints_may_change_within_a_version() -> None:
    assert _watched(_routes(2), _routes(2, "http://b")).routes == _routes(2, "http://b")


def test_an_error_keeps_what_was_seen_and_is_forgotten_when_over() -> None:
    watch = _watched(_routes(2), OSError("gone"))
    assert watch.routes == _routes(2)
    assert watch.error == "OSError: the routing table cannot be read"
    assert _watched(NotFound("no deployment"), _routes(2)).error is None


def test_a_deployment_that_is_not_registered_is_named_in_the_log() -> None:
    with capture_logs() as logs:
        _watched(NotFound("no deployment is named 'coder'; register it first"))
        _watched(OSError("postgresql://user:word@host"))
    assert logs[0]["detail"] == "no deployment is named 'coder'; register it first"
    assert "detail" not in logs[1]


def test_another_targets_table_is_no_table() -> None:
    watch = _watched(_routes(2), _routes(3, target="other"))
    assert watch.routes == _routes(2)
    assert watch.error is not None
