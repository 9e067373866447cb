"""The embedded worker: leases jobs from the database and does them, one after the other.

`python -m workers.local`. SIGTERM and SIGINT give the job at hand back and end it.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import structlog

from app.services import jobs
from app.services.database import Database, Settings, open_database
from app.services.jobs import Lease
from workers.tasks import Interrupted, Stop, run_job

log = structlog.get_logger(__name__)
POLL_SECONDS = 0.5
PAUSE_SECONDS = 5.0  # after an error of the database's


def run(
    database: Database, artifacts: Path, stop: Stop, owner: str, poll_seconds: float = POLL_SECONDS
) -> None:
    """Do jobs until told to stop; an error of the database's costs a pause, never the loop."""
    while not stop.event.is_set():
        try:
            lease = next_lease(database, owner)
            if lease is None:
                stop.event.wait(poll_seconds)
            else:
                log.info("job leased", job=lease.job, promotion=lease.spec.promotion)
                run_job(database, lease, artifacts, stop)
        except Interrupted:
            return
        except Exception:
            log.exception("the worker pauses")
            stop.event.wait(PAUSE_SECONDS)


def next_lease(database: Database, owner: str) -> Lease | None:
    """Lease the next job. Looks without the write lock first: an idle worker disturbs nobody."""
    with database.reading() as session:
        if not jobs.waiting(session):
            return None
    with database.unit_of_work() as session:
        return jobs.lease_next(session, owner)


def end_with(parent: int, stop: Stop, seconds: float = POLL_SECONDS) -> None:
    """Watch from a thread of its own: when the process that started this one is gone, end like on SIGTERM.

    Being killed outright leaves a parent no time to tell its children.
    """

    def watch() -> None:
        while not stop.event.wait(seconds):
            if os.getppid() != parent:
                log.warning("the control plane is gone: the worker ends", parent=parent)
                os.kill(os.getpid(), signal.SIGTERM)
                return

    threading.Thread(target=watch, name="parent", daemon=True).start()


def configure_logs() -> None:
    """One JSON object a line on standard error."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the worker until a signal ends it."""
    parser = argparse.ArgumentParser(prog="python -m workers.local", description=__doc__)
    parser.add_argument("--parent-pid", type=int, help="end when this process, which started it, is gone")
    arguments = parser.parse_args(argv)
    configure_logs()
    stop = Stop()
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    if arguments.parent_pid is not None:
        end_with(arguments.parent_pid, stop)
    settings = Settings()
    database = open_database(settings)
    try:
        run(database, settings.artifacts, stop, f"{socket.gethostname()}-{os.getpid()}")
    finally:
        database.dispose()
    return 0


if __name__ == "__main__":
    sys.exit(main())
