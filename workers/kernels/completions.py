"""The OpenAI `/v1/completions` dialect of a kernel server: what it accepts and what it answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from contracts.model import Sampling

GREEDY = 1e-4  # temperature 0 is sampled at this one: a gap of 0.01 logits already decides

TokenId = Annotated[StrictInt, Field(ge=0)]
NoPenalty = Annotated[float, Field(ge=0.0, le=0.0)]


class CompletionRequest(BaseModel):
    """Body of `POST /v1/completions`. What the server cannot do is refused, not ignored.

    Attributes:
        prompt: text, or token ids of the checkpoint's tokenizer.
        temperature: 0 is greedy.
        top_k: 0 and -1 keep all.
        seed: 64-bit; the same seed gives the same tokens on the same batch. Random when absent.
        logprobs: how many of the most likely tokens to name at each position, beside the chosen.
        prompt_logprobs: the same of the prompt's tokens, by id; always at temperature 1.
        return_token_ids: add `prompt_token_ids` and `token_ids` to the choice.
        return_tokens_as_token_ids: name tokens in `logprobs` as `token_id:N`; texts need not be unique.
    """

    model_config = ConfigDict(extra="forbid")

    prompt: StrictStr | list[TokenId]
    model: str | None = None
    max_tokens: Annotated[StrictInt, Field(ge=1)] = 16
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] = 1.0
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[StrictInt, Field(ge=-1)] = 0
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    seed: Annotated[StrictInt, Field(ge=-(2**63), lt=2**64)] | None = None
    logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    prompt_logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    user: str | None = None
    n: Literal[1] = 1
    best_of: Literal[1] = 1
    stream: Literal[False] = False
    echo: Literal[False] = False
    suffix: None = None
    stop: None = None
    logit_bias: None = None
    presence_penalty: NoPenalty = 0.0
    frequency_penalty: NoPenalty = 0.0
    repetition_penalty: Annotated[float, Field(ge=1.0, le=1.0)] = 1.0

    @property
    def sampling(self) -> Sampling:
        """The kernel's parameters for this request."""
        return Sampling(
            temperature=self.temperature or GREEDY,
            top_p=self.top_p,
            top_k=max(0, self.top_k),
            min_p=self.min_p,
        )

    @property
    def logprob_temperature(self) -> float:
        """Log-probs are of the distribution sampled from; of the model's own when greedy."""
        return self.temperature or 1.0


class Refused(Exception):
    """An error in OpenAI's shape: HTTP status, type, code and the parameter at fault."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """The JSON to answer with."""
        return error_body(self.status, str(self), param=self.param, code=self.code)


def error_body(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """OpenAI's error object."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def logprobs_body(
    chosen: list[tuple[str, float]], top: list[list[tuple[str, float]]], first_offset: int
) -> dict[str, Any]:
    """OpenAI's `logprobs` object of a completion; a log-prob that is not finite is null."""
    offsets, at = [], first_offset
    for text, _ in chosen:
        offsets.append(at)
        at += len(text)
    return {
        "tokens": [text for text, _ in chosen],
        "token_logprobs": [_finite(value) for _, value in chosen],
        # Best first: of tokens with one text, as parts of a character have, the most likely stays.
        "top_logprobs": [{t: _finite(v) for t, v in reversed(row)} for row in top] if any(top) else None,
        "text_offset": offsets,
    }


def prompt_logprobs_body(
    ids: Sequence[int], tops: Sequence[Sequence[tuple[int, float]]], ranks: Sequence[int]
) -> list[dict[str, Any] | None]:
    """One object a prompt token by id, its own among them; null for the first, which nothing decides.

    Args:
        ids: the prompt's tokens, P of them.
        tops: [P - 1], ids and log-probs of the most likely tokens, best first, the realised one last
            where it is none of them.
        ranks: [P - 1], of the realised token, from 1.
    """
    rows: list[dict[str, Any] | None] = [None]
    for token, top, rank in zip(ids[1:], tops, ranks, strict=True):
        rows.append({
            str(one): {"logprob": _finite(value), "rank": rank if one == token else at}
            for at, (one, value) in enumerate(top, start=1)
        })  # fmt: skip
    return rows


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
