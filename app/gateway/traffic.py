"""What the gateway saw of each request, on its way to the database."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.db.session import Database
from app.services import traffic
from app.services.traffic import Served

AWAY = (OperationalError, InterfaceError, PoolTimeout, OSError)  # the database is; the rows are fine
log = structlog.get_logger(__name__)


def writer(database: Database, refused: Callable[[], None]) -> Callable[[Sequence[Served]], None]:
    """Writes a batch in one transaction; raises one of AWAY when the database cannot be written.

    A row the database will not have (`refused` is called for it) does not keep the others out.
    """

    def write(batch: Sequence[Served]) -> None:
        try:
            with database.unit_of_work() as session:
                for served in batch:
                    traffic.record(session, served)
        except AWAY:
            raise
        except Exception as error:  # noqa: BLE001 - one bad row must not cost the others
            if len(batch) > 1:
                for served in batch:
                    write([served])
                return
            log.error("a request was not recorded", request=batch[0].request_id, error=type(error).__name__)
            refused()

    return write
