"""K_inf behind an OpenAI-compatible server: token ids in, the top-K log-probabilities of each decision out.

`POST /v1/completions` with token-id prompts. Prompts are scored through `prompt_logprobs`, or `echo` where
a server has only that; generated tokens through `logprobs`. Ids decide everything: an answer that does not
name tokens by id, or did not run the ids it was sent, is refused. Log-probabilities are the server's, at
temperature 1; float32 there, and read as float64.

This is a client and no kernel: a server gives no logits, so what can be said of it lies between two ends
(`workers.certificates`, [C1]).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

import httpx2
import stamina
from stamina.instrumentation import RetryDetails, set_on_retry_hooks

from contracts.builds import Fingerprint
from workers.kernels import openai_answers
from workers.kernels.openai_answers import Answer, IdsDiffer, MalformedAnswer, Row, ServerError, ServerLacks
from workers.kernels.protocol import Request

__all__ = [
    "Answer",
    "IdsDiffer",
    "MalformedAnswer",
    "OpenAIServer",
    "Row",
    "ServerError",
    "ServerLacks",
    "ServerRefused",
    "ServerUnreachable",
]

log = logging.getLogger(__name__)

ATTEMPTS = 4
LONGEST_WAIT_S = 30.0  # that a server's Retry-After is followed
MOST_BYTES = 256 * 2**20  # of one answer
TIMEOUT_S = 120.0
_BUSY = (429, 503)
# Said outright: left out, servers take other values, their own or the model's.
_PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
_SEED = 2**31 - 1  # some servers keep seeds in 32 bits


def _say(details: RetryDetails) -> None:
    log.info("trying again in %.1f s: %r", details.wait_for, details.caused_by)


set_on_retry_hooks((_say,))  # the default may print to stdout, which is for results


class ServerUnreachable(ServerError):
    """No answer, however often it was asked: refused connections, timeouts, 429 or 503."""


class ServerRefused(ServerError):
    """An error in answer to a request; `status` is its HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class _Busy(Exception):
    def __init__(self, status: int, retry_after: str) -> None:
        super().__init__(f"HTTP {status}")
        seconds = float(retry_after) if retry_after.isdigit() else None
        self.wait_s = None if seconds is None else min(seconds, LONGEST_WAIT_S)


def _again(error: Exception) -> bool | float:
    if isinstance(error, _Busy) and error.wait_s is not None:
        return error.wait_s
    return isinstance(error, _Busy | httpx2.TransportError)


class OpenAIServer:
    """A client of one model on one server; safe to use from several threads.

    Args:
        url: base address, without `/v1`.
        model: its name; None asks the server, which must then have one model only.
        api_key: sent as a bearer token, and nowhere else.
        timeout_s: of each attempt, seconds.
        transport: of the HTTP client, for tests.

    Raises ServerUnreachable, ServerRefused, and ServerLacks when the model is not there.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        timeout_s: float = TIMEOUT_S,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._url, self._timeout_s = url, timeout_s
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx2.Client(
            base_url=url, headers=headers, timeout=timeout_s, transport=transport, trust_env=False
        )
        self._dialect = openai_answers.PROMPT_LOGPROBS
        try:
            self._entry = self._find(model)
            self._version = self._said("/version", "version") or self._said("/props", "build_info")
        except BaseException:
            self._http.close()
            raise

    @property
    def model(self) -> str:
        """The model's name as the server calls it."""
        return str(self._entry["id"])

    def fingerprint(self) -> Fingerprint:
        """What the server says of itself; all it does not say is None, which matches nothing."""
        owner = self._entry.get("owned_by")
        flags: dict[str, Any] = {"model": self.model}
        if isinstance(owner, str) and owner:
            flags["served_by"] = owner
        if isinstance(root := self._entry.get("root"), str) and root != self.model:
            flags["root"] = root
        return Fingerprint(engine="openai", version=self._version, flags=flags)

    def detect(self, ids: Sequence[int], k: int) -> None:
        """Find out how this server scores prompts, with one of two tokens or more.

        Raises ServerLacks saying what it cannot do, ServerRefused when it does not give `k` log-probs.
        """
        refusals: list[ServerError] = []
        for dialect in (openai_answers.PROMPT_LOGPROBS, openai_answers.ECHO):
            self._dialect = dialect
            try:
                self.ask(Request("detection", tuple(ids), None, max_new_tokens=1), k, prompt=True)
            except (ServerLacks, ServerRefused, MalformedAnswer) as error:
                refusals.append(error)
            else:
                return
        if isinstance(refusals[0], ServerRefused) and isinstance(refusals[1], ServerRefused):
            hint = f"asked for {k} log-probabilities; if it gives fewer, say top_logprobs=N"
            raise ServerRefused(f"{refusals[0]}; {hint}", refusals[0].status)
        ways = "; ".join(str(error) for error in refusals)
        raise ServerLacks(
            f"{self._url} does not score prompts by token id, which clauses on prefill need: {ways}. "
            "Limit every clause on drift to `phase: decode`, or serve with an engine that has prompt_logprobs"
        )

    def ask(self, request: Request, k: int, *, prompt: bool) -> Answer:
        """Run one request and have the `k` most likely tokens of each decision.

        Args:
            request: with `output_ids` the whole is scored as a prompt, since no server decodes given
                tokens: every decision of it is prefill. Otherwise it is sampled at temperature 1.
            k: how many log-probs to ask for, at least 1; servers may give fewer.
            prompt: whether the prompt's decisions are wanted too.

        Raises ServerUnreachable, ServerRefused, ServerLacks, MalformedAnswer, and IdsDiffer when the
        server did not run the ids it was sent [F17].
        """
        given = request.output_ids is not None
        ids = [*request.prompt_ids, *(request.output_ids or ())]
        body = {
            "model": self.model,
            "prompt": ids,
            "max_tokens": 1 if given else request.max_new_tokens,
            **_PLAIN,
            "seed": request.seed & _SEED,
            "logprobs": k,
            "return_tokens_as_token_ids": True,
        }
        if not (prompt or given):
            body["return_token_ids"] = True
        elif self._dialect == openai_answers.ECHO:
            body["echo"] = True
        else:
            body |= {"return_token_ids": True, "prompt_logprobs": k}
        plain, latency_s = self._post("/v1/completions", body)
        dialect = self._dialect if prompt or given else openai_answers.GENERATED
        return openai_answers.read(request, ids, plain, dialect, k, latency_s)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find(self, name: str | None) -> Mapping[str, Any]:
        plain, _ = self._send("GET", "/v1/models")
        entries = plain.get("data") if isinstance(plain, dict) else None
        found = [e for e in entries or () if isinstance(e, dict) and isinstance(e.get("id"), str)]
        names = [entry["id"] for entry in found]
        known = ", ".join(names[:8]) or "none"
        if name is None and len(found) != 1:
            raise ServerLacks(f"{self._url} serves {len(found)} models: {known}; name one, model=NAME")
        for entry in found:
            if name in (None, entry["id"]):
                return entry
        raise ServerLacks(f"{self._url} has no model {name!r}: it serves {known}")

    def _said(self, path: str, key: str) -> str | None:
        """A word some servers tell of themselves; None from the others."""
        try:
            response = self._http.get(path)
            value = response.json().get(key) if response.is_success else None
        except (httpx2.HTTPError, ValueError, AttributeError):
            return None
        return value[:100] if isinstance(value, str) and value else None

    def _post(self, path: str, body: Mapping[str, Any]) -> tuple[Any, float]:
        return self._send("POST", path, body)

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[Any, float]:
        """The answer and the seconds it took, of the attempt that succeeded."""
        try:
            for attempt in stamina.retry_context(
                on=_again, attempts=ATTEMPTS, timeout=2.0 * self._timeout_s, wait_max=LONGEST_WAIT_S
            ):
                with attempt:
                    started = time.monotonic()
                    status, content = self._once(method, path, body)
                    taken = time.monotonic() - started
        except (_Busy, httpx2.HTTPError) as error:
            raise ServerUnreachable(
                f"{self._url}{path}: {str(error) or type(error).__name__}, after {ATTEMPTS} attempts at most"
            ) from None
        if not 200 <= status < 300:
            raise ServerRefused(f"{self._url}{path}: HTTP {status}: {_detail(content)}", status)
        try:
            return json.loads(content), taken
        except ValueError:
            raise MalformedAnswer(f"{self._url}{path}: the answer is not JSON: {content[:80]!r}") from None

    def _once(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        with self._http.stream(method, path, json=body) as response:
            if response.status_code in _BUSY:
                raise _Busy(response.status_code, response.headers.get("retry-after", ""))
            content = bytearray()
            for piece in response.iter_bytes():
                content += piece
                if len(content) > MOST_BYTES:
                    raise MalformedAnswer(f"{self._url}{path}: an answer of over {MOST_BYTES} bytes")
            return response.status_code, bytes(content)


def _detail(content: bytes) -> str:
    """What an error's body says, shortened."""
    try:
        plain = json.loads(content)
        found = plain.get("error", plain) if isinstance(plain, dict) else plain
        text = found.get("message") or found.get("detail") or found if isinstance(found, dict) else found
    except ValueError:
        text = content.decode(errors="replace")
    return str(text)[:300]
