"""The OpenAI `/v1/completions` dialect: what the gateway accepts, and errors in OpenAI's shape.

The gateway pairs whole answers token by token, so one prompt, one choice and no streaming.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError

from contracts.metrics import nearest

TokenId = Annotated[StrictInt, Field(ge=0, lt=2**31)]
Word = Annotated[StrictStr, Field(min_length=1, max_length=128)]
_OURS = frozenset({"model", "metadata", "user"})  # for the gateway alone, never forwarded


class Metadata(BaseModel):
    """What slices can tell of a request beside its length."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    language: Word | None = None
    tags: Annotated[tuple[Word, ...], Field(max_length=64)] = ()


class CompletionRequest(BaseModel):
    """Body of `POST /v1/completions`; a key that is not here is refused, not ignored.

    Attributes:
        model: the deployment's name.
        prompt: text, or token ids of the checkpoint's tokenizer.
        user: sticky key of the canary split.
        metadata: attributes of the request that slices may name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: StrictStr
    prompt: Annotated[StrictStr, Field(min_length=1)] | Annotated[tuple[TokenId, ...], Field(min_length=1)]
    max_tokens: Annotated[StrictInt, Field(ge=1)] = 16
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[StrictInt, Field(ge=-1)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[StrictInt, Field(ge=-(2**63), lt=2**64)] | None = None
    logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    stop: StrictStr | Annotated[tuple[StrictStr, ...], Field(max_length=4)] | None = None
    suffix: StrictStr | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    n: Literal[1] = 1
    best_of: Literal[1] = 1
    echo: Literal[False] = False
    stream: Literal[False] = False
    return_token_ids: bool = False
    user: Annotated[StrictStr, Field(min_length=1, max_length=512)] | None = None
    metadata: Metadata = Metadata()

    @property
    def prompt_ids(self) -> tuple[int, ...] | None:
        """The prompt's token ids, where the caller gave them."""
        return self.prompt if isinstance(self.prompt, tuple) else None

    def sticky_key(self, session: str | None) -> str:
        """What the canary split hashes: the user, else the session, else the prompt itself."""
        if self.user:
            return f"user:{self.user}"
        if session:
            return f"session:{session}"
        text = json.dumps(self.prompt, separators=(",", ":")).encode()
        return "prompt:" + hashlib.sha256(text).hexdigest()

    def forwarded(self) -> bytes:
        """The body for a kernel server: what the caller set, and a request for token ids."""
        body = self.model_dump(mode="json", exclude_unset=True, exclude=set(_OURS))
        return json.dumps({**body, "return_token_ids": True}, separators=(",", ":")).encode()


class Refused(Exception):
    """An error the caller is told in OpenAI's shape."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}

    def body(self) -> dict[str, Any]:
        """The JSON to answer with."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def parse(raw: bytes) -> CompletionRequest:
    """The request in `raw`. Raises Refused (400) naming the parameter at fault."""
    try:
        return CompletionRequest.model_validate_json(raw)
    except ValidationError as error:
        raise _refused(error) from None


def _refused(error: ValidationError) -> Refused:
    # The offending input is left out of the message: prompts are the users' own.
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if not first["loc"]:
        return Refused(400, f"The body is not a JSON object of this API: {first['msg']}.")
    param = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        name = ".".join(str(part) for part in first["loc"])
        close = nearest(str(first["loc"][-1]), [*CompletionRequest.model_fields, *Metadata.model_fields])
        hint = f" Did you mean {close!r}?" if close else ""
        return Refused(400, f"Unrecognized request argument supplied: {name}.{hint}", param=param)
    if param == "stream":
        return Refused(400, "Streaming is not supported: every answer is recorded whole.", param=param)
    if param in {"n", "best_of"}:
        return Refused(400, "One choice a request: send several requests instead.", param=param)
    if param == "prompt" and first["type"] != "string_too_short":
        return Refused(
            400, "The prompt must be one text or one list of token ids, and not empty.", param=param
        )
    return Refused(400, f"{param}: {first['msg']}.", param=param)
