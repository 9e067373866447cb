"""Counters of one gateway, in the Prometheus text format."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics:
    """One registry a gateway, so that several can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.answers = Counter(
            "kc_gateway_answers_total",
            "Answers of kernel servers by build, role and outcome (ok, refused, failed)",
            ("build", "role", "outcome"),
            registry=self.registry,
        )
        self.fallbacks = Counter(
            "kc_gateway_fallbacks_total",
            "Requests the known-good build answered because the chosen build could not",
            registry=self.registry,
        )
        self.mirrors_dropped = Counter(
            "kc_gateway_mirrors_dropped_total",
            "Mirror copies dropped: the queue was full",
            registry=self.registry,
        )
        self.records_dropped = Counter(
            "kc_gateway_records_dropped_total",
            "Answers that could not be recorded: queue_full, no_token_ids or refused",
            ("why",),
            registry=self.registry,
        )
        self.latency = Histogram(
            "kc_gateway_upstream_seconds",
            "Latency of kernel servers, completed answers only",
            ("build", "role"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.version = Gauge(
            "kc_gateway_routing_version", "Version of the routing table in force", registry=self.registry
        )
