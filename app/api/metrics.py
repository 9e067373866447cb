"""Prometheus metrics; what the database knows is read from it, so every replica says the same."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from sqlalchemy.orm import Session

from app.db import repositories


class _Tables(Collector):
    def __init__(self, session: Session) -> None:
        self.session = session

    def collect(self) -> Iterator[Metric]:
        promotions = GaugeMetricFamily(
            "kc_promotions", "Promotions by stage and status.", labels=["stage", "status"]
        )
        for stage, status, count in repositories.counts(self.session):
            promotions.add_metric([stage, status], count)
        yield promotions
        jobs = GaugeMetricFamily("kc_jobs", "Jobs by queue and state.", labels=["queue", "state"])
        for queue, state, count in repositories.job_counts(self.session):
            jobs.add_metric([queue, state], count)
        yield jobs
        outbox = GaugeMetricFamily("kc_outbox_pending", "Domain events no relay has published yet.")
        outbox.add_metric([], repositories.count_unpublished(self.session))
        yield outbox


def render(session: Session) -> tuple[bytes, str]:
    """The exposition text and its media type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Tables(session))
    return generate_latest(registry), CONTENT_TYPE_LATEST
