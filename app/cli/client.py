"""The control plane over HTTP, as the command line and the demo speak to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2

from app.cli.errors import REFUSED, USAGE, CliError

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Refused(CliError):
    """The control plane answered with a problem; the message is its detail.

    Attributes:
        status: the HTTP status.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, REFUSED)
        self.status = status


class ControlPlane:
    """A client of the API at `url`. Raises Refused for a problem, CliError when nothing answers."""

    def __init__(
        self, url: str, *, timeout_s: float = 30.0, transport: httpx2.BaseTransport | None = None
    ) -> None:
        self.url = url.rstrip("/")
        # A proxy named in the environment is for what is outside this machine.
        outside = urlsplit(self.url).hostname not in LOOPBACK
        self._http = httpx2.Client(
            base_url=self.url, timeout=timeout_s, transport=transport, trust_env=outside
        )

    def __enter__(self) -> ControlPlane:
        return self

    def __exit__(self, *exception: object) -> None:
        self._http.close()

    def register_contract(self, text: bytes) -> Any:
        """Publish a contract document; its name and version are in it."""
        return self._call("POST", "/v1/contracts", content=text, headers={"content-type": "application/yaml"})

    def register(self, kind: str, **values: Any) -> Any:
        """Register a checkpoint, kernel build, suite or deployment; `kind` is the collection's name."""
        return self._call("POST", f"/v1/{kind}", json=values)

    def start(self, **values: Any) -> Any:
        """Start a promotion."""
        return self._call("POST", "/v1/promotions", json=values)

    def promotions(self) -> Any:
        """The promotions, the newest first."""
        return self._call("GET", "/v1/promotions")["items"]

    def promotion(self, identity: str) -> Any:
        """One promotion's state."""
        return self._call("GET", f"/v1/promotions/{quote(identity, safe='')}")

    def jobs(self, identity: str) -> Any:
        """Every evaluation of a promotion, the oldest first."""
        return self._call("GET", f"/v1/promotions/{quote(identity, safe='')}/jobs")["items"]

    def waiting(self, identity: str) -> Any:
        """How many served requests wait for an evaluation, and how many it takes."""
        return self._call("GET", f"/v1/promotions/{quote(identity, safe='')}/waiting")

    def judgements(self, identity: str) -> Any:
        """Every judgement of a promotion, the oldest first, with its verdicts."""
        return self._call("GET", f"/v1/promotions/{quote(identity, safe='')}/verdicts")["items"]

    def act(self, identity: str, action: str, **values: Any) -> Any:
        """Approve, freeze, resume, abort or retry."""
        return self._call("POST", f"/v1/promotions/{quote(identity, safe='')}/{action}", json=values)

    def _call(self, method: str, path: str, **request: Any) -> Any:
        try:
            answer = self._http.request(method, path, **request)
        except httpx2.InvalidURL as error:
            raise CliError(f"{self.url}: not a URL: {error}", USAGE) from None
        except httpx2.UnsupportedProtocol:
            raise CliError(f"{self.url}: not an http:// or https:// URL", USAGE) from None
        except httpx2.TimeoutException:
            raise CliError(f"{self.url} did not answer in time") from None
        except httpx2.TransportError as error:
            raise CliError(
                f"no control plane answers at {self.url} ({error}); start one with `kc serve`"
            ) from None
        if answer.is_error:
            raise Refused(_problem(answer), answer.status_code)
        return answer.json() if answer.content else None


def _problem(answer: httpx2.Response) -> str:
    """The detail of an RFC 9457 problem, its diagnostics one a line; the bare status otherwise."""
    try:
        body = answer.json()
    except ValueError:
        body = None
    if not isinstance(body, Mapping):
        return f"{answer.request.url} answered {answer.status_code} {answer.reason_phrase}"
    lines = [str(body.get("detail") or body.get("title") or answer.reason_phrase)]
    lines += [
        f"  {one['file']}:{one['line']}:{one['column']}: {one['severity']}: {one['message']}"
        for one in _diagnostics(body)
    ]
    return "\n".join(lines)


def _diagnostics(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = body.get("diagnostics")
    return found if isinstance(found, list) else []
