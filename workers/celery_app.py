"""The same tasks under Celery: `celery -A workers.celery_app worker`.

A message says that a job waits, and carries its id only. The lease in the database says who
does it, so that a message lost, late or delivered twice changes nothing.
"""

from __future__ import annotations

import os
import socket

import structlog
from celery import Celery

from app.services.database import Settings, open_database
from app.services.specs import EVALUATE
from workers.local import next_lease
from workers.tasks import run_job

log = structlog.get_logger(__name__)


def create_celery(settings: Settings) -> Celery:
    """A Celery application with the tasks registered.

    One job at a time in the worker's own process: a forked child cannot use torch's threads.
    """
    celery = Celery("kernel_contracts", broker=settings.broker_url or None)
    celery.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        worker_prefetch_multiplier=1,
        worker_pool="solo",
        broker_connection_retry_on_startup=True,
    )

    @celery.task(name=EVALUATE, shared=False)
    def evaluate(job_id: int) -> None:
        database = open_database(settings)
        try:
            lease = next_lease(database, f"{socket.gethostname()}-{os.getpid()}")
            if lease is None:
                log.info("nothing to do: someone has the job already", job=job_id)
                return
            run_job(database, lease, settings.artifacts)
        finally:
            database.dispose()

    return celery


app = create_celery(Settings())
