"""Whether known-good builds answer: asked at their endpoints, off every request's path.

A fallback goes only to a build that is known good now; this is what says so. A build without an
endpoint stays as it was declared.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import httpx2
import structlog
from sqlalchemy.orm import Session

from app.db import repositories
from app.db.models import DeploymentRow
from app.db.session import Database
from app.services import promotions

log = structlog.get_logger(__name__)
FAILURES = 3  # one lost answer is no outage
TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Target:
    """The build a deployment would fall back to now, and where it answers; None when nobody said."""

    deployment: str
    build: str
    url: str | None


class KnownGoodProbe:
    """Asks for `/health` of every known-good build and records what changed.

    `FAILURES` failures in a row make a build unhealthy, one answer of 200 makes it healthy.
    Nothing but 200 within the client's timeout is an answer.
    """

    def __init__(self, database: Database, http: httpx2.Client) -> None:
        self._database, self._http = database, http
        self._failures: dict[Target, int] = {}
        self._silent: set[tuple[str, str]] = set()

    def look(self) -> None:
        """Ask each once."""
        with self._database.reading() as session:
            found = [_target(session, row) for row in repositories.all_named(session, DeploymentRow)]
        # Counts of builds that are no longer the known-good ones do not wait for their return.
        self._failures = {target: self._failures.get(target, 0) for target in found}
        for target in found:
            try:
                self._ask(target)
            except Exception:
                # One deployment in trouble must not keep the others from being asked.
                log.exception("health of the known-good build not recorded", deployment=target.deployment)

    def _ask(self, target: Target) -> None:
        if target.url is None:
            self._say_once(target)
        elif self._answers(target.url):
            self._failures[target] = 0
            self._record(target, healthy=True)
        else:
            self._failures[target] += 1
            if self._failures[target] >= FAILURES:
                self._record(target, healthy=False)

    def _say_once(self, target: Target) -> None:
        key = (target.deployment, target.build)
        if key not in self._silent:
            self._silent.add(key)
            log.warning(
                "the known-good build has no endpoint: its health stays as declared",
                deployment=target.deployment,
                build=target.build,
            )

    def _answers(self, url: str) -> bool:
        try:
            with self._http.stream("GET", url.rstrip("/") + "/health") as answer:
                return answer.status_code == 200
        except (httpx2.HTTPError, httpx2.InvalidURL):
            return False

    def _record(self, target: Target, *, healthy: bool) -> None:
        with self._database.reading() as session:
            if not _differs(session, target, healthy):
                return
        with self._database.unit_of_work() as session:
            # Between the question and here another build may have become the known-good one.
            if not _differs(session, target, healthy):
                return
            promotions.known_good_health(session, target.deployment, healthy=healthy)
        told = {"deployment": target.deployment, "build": target.build}
        if healthy:
            log.info("the known-good build answers again", **told)
        else:
            log.error("the known-good build does not answer: no fallback is possible", **told)


def client(transport: httpx2.BaseTransport | None = None) -> httpx2.Client:
    """The client for it; ignores proxies and credentials in the environment."""
    return httpx2.Client(transport=transport, timeout=TIMEOUT_S, follow_redirects=False, trust_env=False)


def run(database: Database, stop: threading.Event, interval: float = 5.0) -> None:
    """Look every `interval` seconds until `stop` is set; an error costs one look, never the loop."""
    with client() as http:
        probe = KnownGoodProbe(database, http)
        while not stop.is_set():
            try:
                probe.look()
            except Exception:
                log.exception("health of known-good builds not seen to")
            stop.wait(interval)


def _target(session: Session, deployment: DeploymentRow) -> Target:
    # Once promoted, a candidate is known good, and what it falls back to is still the build before it.
    active = promotions.active(session, deployment.name)
    build = active.known_good_build if active else deployment.known_good_build
    return Target(deployment.name, build, deployment.endpoints.get(build))


def _differs(session: Session, target: Target, healthy: bool) -> bool:
    """Whether the target is still one and something recorded of it says otherwise."""
    deployment = repositories.named(session, DeploymentRow, target.deployment)
    if deployment is None or _target(session, deployment) != target:
        return False
    active = promotions.active(session, target.deployment)
    recorded = {deployment.known_good_healthy, *([active.state.known_good_healthy] if active else [])}
    return recorded != {healthy}
