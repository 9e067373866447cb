"""The demo's users: real prompts sent through the gateway, a few at a time."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2

from app.cli.errors import CliError


class Users:
    """Sends the prompts of a suite file round and round, every time as another user.

    Args:
        url: base URL of the gateway.
        deployment: the deployment's name, which clients give as the model.
        prompts: lines of a suite file.
        at_once: requests in flight at the same time.
        max_tokens: length of an answer at most, in tokens.
    """

    def __init__(
        self,
        url: str,
        deployment: str,
        prompts: Sequence[dict[str, Any]],
        *,
        at_once: int,
        max_tokens: int,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._http = httpx2.Client(base_url=url, timeout=120.0, trust_env=False, transport=transport)
        self._requests = (
            _request(deployment, prompt, number, max_tokens)
            for number, prompt in enumerate(itertools.cycle(prompts))
        )
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="user")

    def __enter__(self) -> Users:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._http.close()

    def send(self, count: int, answered: Callable[[], None]) -> None:
        """Send the next `count` prompts and wait for their answers; `answered` is called after each.

        Raises CliError when a user is not served: whatever happens to a candidate, users are.
        """
        for _ in self._pool.map(self._ask, list(itertools.islice(self._requests, count))):
            answered()

    def _ask(self, body: dict[str, Any]) -> None:
        try:
            answer = self._http.post("/v1/completions", json=body)
        except httpx2.TransportError as error:
            raise CliError(f"the gateway did not answer a user: {error}") from None
        if answer.is_error:
            raise CliError(f"the gateway answered a user {answer.status_code}: {answer.text[:200]}")


def read_prompts(file: Path) -> list[dict[str, Any]]:
    """The lines of a suite file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def _request(deployment: str, prompt: dict[str, Any], number: int, max_tokens: int) -> dict[str, Any]:
    metadata = {key: prompt[key] for key in ("language", "tags") if prompt.get(key)}
    return {
        "model": deployment,
        "prompt": prompt.get("prompt") or prompt["token_ids"],
        "max_tokens": max_tokens,
        "temperature": 1.0,
        "seed": number,
        "user": f"user-{number}",
        "metadata": metadata,
    }
