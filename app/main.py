"""The control plane as one process: API, status page, scheduler and, by default, one worker."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec

import structlog
import uvicorn
from fastapi import APIRouter, FastAPI

from app import logs
from app.api import deployments, operations, problems, promotions, registry
from app.api.guards import LOOPBACK, BodyLimit, HostGuard
from app.services import health, scheduler
from app.services.database import Database, open_database
from app.settings import Settings

log = structlog.get_logger(__name__)
STOP_SECONDS = 10.0
RESTART_SECONDS = 5.0


def create_app(settings: Settings | None = None) -> FastAPI:
    """The ASGI application on the database the settings name; the embedded default is migrated here."""
    settings = settings or Settings()
    database = open_database(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        database.dispose()

    app = FastAPI(
        title="Kernel Contracts",
        version="1",
        summary="How far training and serving kernels may diverge, measured and enforced.",
        lifespan=lifespan,
        openapi_url="/v1/openapi.json",
        # Their pages load scripts from elsewhere; the schema is what tools read.
        docs_url=None,
        redoc_url=None,
    )
    app.state.settings = settings
    app.state.database = database
    problems.install(app)
    v1 = APIRouter(prefix="/v1")
    for module in (registry, deployments, promotions, operations):
        v1.include_router(module.router)
    app.include_router(v1)
    app.include_router(operations.health)
    _mount_pages(app)
    app.add_middleware(BodyLimit, limit=settings.max_body_bytes)
    app.add_middleware(HostGuard, hosts=(settings.host, *settings.allowed_hosts))
    return app


def _mount_pages(app: FastAPI) -> None:
    from app.web import router

    app.include_router(router)


def serve(settings: Settings, *, embedded_worker: bool) -> None:
    """Serve until told to stop; then end the scheduler and the worker."""
    logs.configure()
    if settings.host not in LOOPBACK:
        log.warning("anyone who reaches this address may do anything: there is no login", host=settings.host)
    app = create_app(settings)
    database: Database = app.state.database
    stop = threading.Event()
    loops = (
        ("scheduler", scheduler.run, settings.tick_seconds),
        ("health", health.run, settings.health_seconds),
    )
    threads = [
        threading.Thread(target=run, args=(database, stop, pause), name=name, daemon=True)
        for name, run, pause in loops
    ]
    if embedded_worker and find_spec("torch") is None:
        log.warning("no embedded worker: torch is not installed", install="kernel-contracts[torch]")
    elif embedded_worker:
        threads.append(threading.Thread(target=_keep_worker, args=(stop,), name="worker", daemon=True))
    for thread in threads:
        thread.start()
    try:
        uvicorn.run(app, host=settings.host, port=settings.port, log_config=None, server_header=False)
    finally:
        stop.set()
        for thread in threads:
            thread.join(STOP_SECONDS + 5)


def _keep_worker(stop: threading.Event) -> None:
    """Run the worker as a child process and start it anew should it end; end it with us."""
    while not stop.is_set():
        worker = subprocess.Popen(
            [sys.executable, "-m", "workers.local", "--parent-pid", str(os.getpid())],
            stdin=subprocess.DEVNULL,
        )
        while worker.poll() is None and not stop.wait(0.2):
            pass
        if worker.poll() is None:
            _end(worker)
        else:
            log.error("the worker ended and is started anew", status=worker.returncode)
            stop.wait(RESTART_SECONDS)


def _end(worker: subprocess.Popen[bytes]) -> None:
    worker.terminate()
    try:
        worker.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m app.main`; options override the environment."""
    parser = argparse.ArgumentParser(prog="python -m app.main", description=__doc__)
    parser.add_argument("--host", help="address to bind")
    parser.add_argument("--port", type=int, help="port to bind")
    parser.add_argument(
        "--embedded-worker", action=argparse.BooleanOptionalAction, default=True, help="start one worker"
    )
    given = parser.parse_args(arguments)
    told = {name: value for name in ("host", "port") if (value := getattr(given, name)) is not None}
    serve(Settings(**told), embedded_worker=given.embedded_worker)


if __name__ == "__main__":
    main()
