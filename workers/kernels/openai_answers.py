"""Reading what OpenAI-compatible servers answer: whose tokens, and what of their log-probabilities.

Nothing is taken on trust: tokens are named by id, as many as were asked about, the prompt is the one that
was sent, and a log-probability is a number of at most 0. Servers write −inf and NaN as −9999.0 [F13].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.model import Phase
from workers.kernels.protocol import KernelError, Request, phases

PROMPT_LOGPROBS, ECHO, GENERATED = "prompt_logprobs", "echo", "generated"
# Nats: how far float32 arithmetic may carry a log-probability off. Its sums over a vocabulary did 1.7e-5
# against vLLM's own logits (CPU, 49,152 tokens, 1,505 decisions).
REPORTED = 1e-4
_MASKED = -9999.0
_NAMED = "token_id:"


class ServerError(KernelError):
    """A server that cannot be measured, or not as asked."""


class ServerLacks(ServerError):
    """Something the measurement needs and this server does not have."""


class MalformedAnswer(ServerError):
    """An answer that contradicts itself or the API."""


class IdsDiffer(ServerError):
    """The server ran other token ids than it was sent [F17]; `position` is the first that differs."""

    def __init__(self, request: str, position: int, message: str) -> None:
        super().__init__(f"request {request!r}, position {position}: {message}")
        self.request = request
        self.position = position


@dataclass(frozen=True, slots=True)
class Row:
    """What a server says of one decision.

    Attributes:
        logprobs: nats by token id, the realised token's among them; empty where the decision is
            unmeasurable: a log-prob is missing, NaN, above 0, or −9999.0.
        top: how many of the most likely of them are certainly the most likely of all.
    """

    logprobs: Mapping[int, float]
    top: int


@dataclass(frozen=True, slots=True)
class Answer:
    """One request as a server ran it.

    Attributes:
        request: its id.
        token_ids: prompt and output, T of them.
        prompt_tokens: P.
        first: index of the first decision that `rows` has: 0, or P − 1 without the prompt's.
        phases: [T − 1 − first], the path that computed each decision.
        rows: [T − 1 − first].
        latency_s: seconds from the request to the whole answer.
        stopped: whether the server says that the output ended by itself.
    """

    request: str
    token_ids: list[int]
    prompt_tokens: int
    first: int
    phases: list[Phase]
    rows: list[Row]
    latency_s: float
    stopped: bool


Entries = list[
    tuple[int, dict[int, Any], int | None]
]  # realised id, log-probs by id, the realised one's rank


def read(request: Request, ids: Sequence[int], plain: Any, dialect: str, k: int, latency_s: float) -> Answer:
    """An answer to `request`, which was sent as `ids` with `k` log-probs.

    Raises ServerLacks, MalformedAnswer, IdsDiffer.
    """
    choice = _choice(plain)
    given = request.output_ids is not None
    before, after = _entries(choice, ids, request.id, dialect)
    if dialect != PROMPT_LOGPROBS:
        _check_prompt(request.id, ids, plain, choice, by_echo=dialect == ECHO)
    output = [] if given else [token for token, _, _ in after]
    _check_output(choice, [token for token, _, _ in after])
    if not given and not 1 <= len(output) <= request.max_new_tokens:
        raise MalformedAnswer(
            f"request {request.id!r}: {len(output)} output tokens of {request.max_new_tokens} at most"
        )
    entries = before if given else [*before, *after]
    tokens = [*ids, *output]
    first = len(tokens) - 1 - len(entries)
    path = [Phase.PREFILL] * len(entries) if given else phases(len(ids), len(tokens))[first:]
    return Answer(
        request=request.id,
        token_ids=tokens,
        prompt_tokens=len(request.prompt_ids),
        first=first,
        phases=path,
        rows=_rows(entries, k),
        latency_s=latency_s,
        stopped=choice.get("finish_reason") == "stop",
    )


def _choice(plain: Any) -> dict[str, Any]:
    choices = plain.get("choices") if isinstance(plain, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise MalformedAnswer("the answer has not one choice")
    return choices[0]


def _entries(
    choice: Mapping[str, Any], ids: Sequence[int], request: str, dialect: str
) -> tuple[Entries, Entries]:
    """The prompt's decisions and the generated ones."""
    generated = _generated(choice)
    if dialect == GENERATED:
        return [], generated
    if dialect == ECHO:
        if len(generated) < len(ids):
            raise ServerLacks("echo does not bring the prompt's log-probabilities")
        echoed = [token for token, _, _ in generated[: len(ids)]]
        _same(request, ids, echoed)
        return generated[1 : len(ids)], generated[len(ids) :]
    rows = choice.get("prompt_logprobs")
    if not isinstance(rows, list):
        raise ServerLacks("prompt_logprobs was ignored")
    _check_prompt(request, ids, None, choice, by_echo=False, rows=len(rows))
    return [_prompt_entry(request, i, ids[i], rows[i]) for i in range(1, len(ids))], generated


def _prompt_entry(request: str, i: int, token: int, row: Any) -> tuple[int, dict[int, Any], int | None]:
    if not isinstance(row, dict):
        raise MalformedAnswer(f"request {request!r}: no log-probs of prompt token {i}")
    try:
        found = {int(name): one["logprob"] for name, one in row.items()}
    except (ValueError, TypeError, KeyError):
        raise MalformedAnswer(f"request {request!r}: prompt_logprobs of token {i} are not by id") from None
    if token not in found:
        raise IdsDiffer(request, i, f"the server scored the prompt without token {token} there")
    rank = row[str(token)].get("rank")
    return token, found, rank if isinstance(rank, int) else None


def _generated(choice: Mapping[str, Any]) -> Entries:
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        raise ServerLacks("logprobs was ignored: the answer has none")
    if isinstance(content := logprobs.get("content"), list):  # llama.cpp's form
        return [_content_entry(one) for one in content]
    names, values, tops = (logprobs.get(key) for key in ("tokens", "token_logprobs", "top_logprobs"))
    if not (isinstance(names, list) and isinstance(values, list) and isinstance(tops, list)):
        raise ServerLacks("logprobs lacks tokens, token_logprobs or top_logprobs")
    if not len(names) == len(values) == len(tops):
        raise MalformedAnswer(f"{len(names)} tokens with {len(values)} log-probs and {len(tops)} tops")
    found: Entries = []
    for name, value, top in zip(names, values, tops, strict=True):
        token = _id(name)
        found.append((token, {_id(n): v for n, v in (top or {}).items()} | {token: value}, None))
    return found


def _content_entry(one: Any) -> tuple[int, dict[int, Any], int | None]:
    try:
        top = {int(t["id"]): t.get("logprob") for t in one.get("top_logprobs") or ()}
        return int(one["id"]), top | {int(one["id"]): one.get("logprob")}, None
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ServerLacks("logprobs.content does not name tokens by id; texts need not be unique") from None


def _id(name: Any) -> int:
    number = name.removeprefix(_NAMED) if isinstance(name, str) and name.startswith(_NAMED) else ""
    if not (number.isascii() and number.isdigit()):
        raise ServerLacks(
            f"logprobs names tokens by their text ({str(name)[:20]!r}), which need not be unique; "
            "return_tokens_as_token_ids was ignored"
        )
    return int(number)


def _check_prompt(
    request: str, ids: Sequence[int], plain: Any, choice: Mapping[str, Any], *,
    by_echo: bool, rows: int | None = None,
) -> None:  # fmt: skip
    """That the prompt which ran is the one that was sent, by the best proof there is."""
    said = choice.get("prompt_token_ids")
    if isinstance(said, list):
        _same(request, ids, said)
    elif by_echo:
        return
    usage = plain.get("usage") if isinstance(plain, dict) else None
    counted = usage.get("prompt_tokens") if isinstance(usage, dict) else rows
    if counted is None and not isinstance(said, list):
        raise ServerLacks("neither prompt_token_ids nor usage says which prompt ran")
    if counted is not None and counted != len(ids):
        at = min(len(ids), counted) if isinstance(counted, int) else 0
        raise IdsDiffer(
            request, at, f"the server ran a prompt of {counted} tokens for one of {len(ids)}; it may add BOS"
        )


def _same(request: str, sent: Sequence[int], ran: Sequence[Any]) -> None:
    if list(sent) != list(ran):
        pairs = zip(sent, ran, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(sent), len(ran)))
        raise IdsDiffer(request, at, "the server did not run the token ids it was sent")


def _check_output(choice: Mapping[str, Any], output: Sequence[int]) -> None:
    said = choice.get("token_ids")
    if isinstance(said, list) and said != list(output):
        raise MalformedAnswer(f"token_ids has {len(said)} tokens and logprobs {len(output)}, or others")


def _rows(entries: Entries, k: int) -> list[Row]:
    # A server that gives fewer than asked may leave it open whether the realised token is one of the top.
    short = any(len(found) < k for _, found, _ in entries)
    return [_row(token, found, rank, k, short=short) for token, found, rank in entries]


def _row(token: int, found: Mapping[int, Any], rank: int | None, k: int, *, short: bool) -> Row:
    if not all(_measured(value) for value in found.values()):
        return Row({}, 0)
    logprobs = {one: min(float(value), 0.0) for one, value in found.items()}
    n = len(logprobs)
    lowest = all(logprobs[token] < value for one, value in logprobs.items() if one != token)
    beside = rank > n if rank is not None else n > k or (short and lowest)
    return Row(logprobs, n - 1 if beside else n)


def _measured(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return number and _MASKED < value <= REPORTED
