"""The gateway's application and process: `python -m app.gateway.main --deployment NAME --port 8322`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import httpx2
import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from app import logs
from app.db.session import Database
from app.gateway import upstream
from app.gateway.background import Recorder
from app.gateway.metrics import Metrics
from app.gateway.openai import Refused, parse
from app.gateway.service import Gateway
from app.gateway.table import TableWatch, reader
from app.gateway.traffic import writer
from app.services.database import open_database
from app.settings import Settings

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much may wait off the request path, and for how long (seconds)."""

    mirrors: int = 1024
    mirror_workers: int = 8
    records: int = 20_000
    record_batch: int = 256
    linger_s: float = 0.2
    retry_s: float = 1.0
    drain_s: float = 10.0


def create_app(
    settings: Settings,
    deployment: str,
    *,
    database: Database | None = None,
    transport: httpx2.AsyncBaseTransport | None = None,
    sizes: Sizes = Sizes(),
) -> FastAPI:
    """The gateway of one deployment.

    `database` and `transport` (to the kernel servers) are opened from the settings unless given.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        opened = await asyncio.to_thread(open_database, settings) if database is None else database
        metrics = Metrics()
        write = writer(opened, metrics.records_dropped.labels("refused").inc)
        recorder = Recorder(
            write,
            capacity=sizes.records,
            batch=sizes.record_batch,
            linger_s=sizes.linger_s,
            retry_s=sizes.retry_s,
        )
        async with upstream.client(transport) as http:
            watch = TableWatch(reader(opened, deployment))
            gateway = Gateway(
                deployment, watch, http, recorder, metrics,
                mirror_capacity=sizes.mirrors, mirror_workers=sizes.mirror_workers,
            )  # fmt: skip
            app.state.gateway = gateway
            await watch.refresh()
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(work.run()) for work in (watch, recorder, gateway.mirrors)]
                yield
                # What was served is evidence: it is written before the process ends, if it can be.
                with suppress(TimeoutError):
                    async with asyncio.timeout(sizes.drain_s):
                        await gateway.mirrors.drained()
                        await recorder.drained()
                for task in running:
                    task.cancel()
        if database is None:
            opened.dispose()

    app = FastAPI(
        title="Kernel Contracts gateway",
        lifespan=lifespan,
        dependencies=[Depends(_host_guard(settings))],
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    _routes(app, settings)
    _errors(app)
    return app


def _host_guard(settings: Settings) -> Callable[[Request], Awaitable[None]]:
    known = frozenset(name.lower() for name in (*LOOPBACK, *settings.allowed_hosts))

    async def guard(request: Request) -> None:
        # A web page whose name is re-bound to this address shows in the Host header.
        host = request.headers.get("host", "")
        name, colon, port = host.rpartition(":")
        if (name if colon and port.isdigit() else host).lower() not in known:
            raise Refused(
                421, "This gateway does not answer for that host; see KC_ALLOWED_HOSTS.", code="unknown_host"
            )

    return guard


def _routes(app: FastAPI, settings: Settings) -> None:
    def gateway() -> Gateway:
        serving: Gateway = app.state.gateway
        return serving

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused(415, "The body must be application/json.", code="unsupported_media_type")
        parsed = parse(await _body(request, settings.max_body_bytes))
        served = await gateway().complete(parsed, request.headers.get("x-session-id"))
        headers = {
            "x-kc-build": served.build,
            "x-kc-routing-version": str(served.routing_version),
            "x-request-id": served.request_id,
        }
        answer = served.answer
        return Response(answer.content, answer.status, headers=headers, media_type=answer.media_type)

    @app.get("/v1/models")
    async def models() -> dict[str, object]:
        name = gateway().deployment
        return {
            "object": "list",
            "data": [{"id": name, "object": "model", "created": 0, "owned_by": "kernel-contracts"}],
        }

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        watch, recorder = gateway().watch, gateway().recorder
        body = {
            "ready": watch.routes is not None,
            "deployment": gateway().deployment,
            "routing_version": watch.routes.table.version if watch.routes else None,
            "routing_error": watch.error,
            "recording_error": recorder.error,
        }
        return JSONResponse(body, 200 if watch.routes else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        serving = gateway()
        serving.metrics.version.set(serving.watch.routes.table.version if serving.watch.routes else 0)
        return Response(generate_latest(serving.metrics.registry), media_type=CONTENT_TYPE_LATEST)


async def _body(request: Request, limit: int) -> bytes:
    """The body. Raises Refused (413) as soon as it is larger than `limit` bytes."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise Refused(413, f"The body is larger than {limit} bytes.", code="body_too_large")
    return bytes(body)


def _errors(app: FastAPI) -> None:
    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        return JSONResponse(error.body(), error.status, headers=error.headers)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        message = {404: f"There is nothing at {request.url.path}.",
                   405: f"{request.url.path} does not answer {request.method}."}  # fmt: skip
        known = Refused(error.status_code, message.get(error.status_code, str(error.detail)))
        return JSONResponse(known.body(), error.status_code, headers=error.headers)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, __: Exception) -> JSONResponse:
        return JSONResponse(Refused(500, "An error of the gateway; its log has the reason.").body(), 500)


def main(argv: Sequence[str] | None = None) -> None:
    """Serve one deployment until stopped."""
    parser = argparse.ArgumentParser(prog="python -m app.gateway.main", description=__doc__)
    parser.add_argument("--deployment", required=True, help="the registered deployment to serve")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind")
    parser.add_argument("--port", type=int, default=8322, help="port to bind")
    arguments = parser.parse_args(argv)
    # The recording thread must not keep the event loop from a user's answer for the default 5 ms.
    sys.setswitchinterval(0.0005)
    logs.configure()
    settings = Settings()
    # The address bound is one this process answers for, as the control plane does.
    settings = settings.model_copy(update={"allowed_hosts": (*settings.allowed_hosts, arguments.host)})
    app = create_app(settings, arguments.deployment)
    uvicorn.run(
        app,
        host=arguments.host,
        port=arguments.port,
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=30,
    )


if __name__ == "__main__":
    main()
