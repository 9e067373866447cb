"""ASGI middleware in front of everything: whose requests are read, and how much of them."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.problems import problem

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_SAFE = ("GET", "HEAD", "OPTIONS")


class HostGuard:
    """Refuses Host headers that are not ours, and writes by pages of other origins.

    Binding to loopback keeps other machines out, not web pages in a local browser: a page
    whose name is re-bound to 127.0.0.1 shows in the Host header, one that posts across
    origins in the Origin header.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self.app = app
        self.hosts = frozenset(host.lower() for host in (*LOOPBACK, *hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if _name(host) not in self.hosts:
            answer = problem(
                421, "unknown-host", "This server does not answer for that host",
                f"The Host header says {host!r}. Add the name to KC_ALLOWED_HOSTS if it is meant.",
            )  # fmt: skip
        elif origin is not None and scope["method"] not in _SAFE and urlsplit(origin).netloc != host:
            answer = problem(
                403, "foreign-origin", "Pages of other origins may not write here",
                f"The Origin header says {origin!r}, the Host header {host!r}.",
            )  # fmt: skip
        else:
            await self.app(scope, receive, send)
            return
        await answer(scope, receive, send)


def _name(host: str) -> str:
    """The Host header without its port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()


class BodyLimit:
    """Answers 413 for a body above `limit` bytes, whether or not its length was announced."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its body read, or answer it."""
        if scope["type"] != "http" or scope["method"] in _SAFE:
            await self.app(scope, receive, send)
            return
        body = await self._read(receive)
        if body is None:
            answer = problem(
                413,
                "body-too-large",
                "The request's body is too large",
                f"At most {self.limit} bytes are read.",
            )
            await answer(scope, receive, send)
            return
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, replay, send)

    async def _read(self, receive: Receive) -> bytes | None:
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                break
            body += message.get("body", b"")
            if len(body) > self.limit:
                return None
            more = message.get("more_body", False)
        return bytes(body)
