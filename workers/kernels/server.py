"""Serves one kernel build of one checkpoint over HTTP, as OpenAI's `/v1/completions` does.

`python -m workers.kernels.server --build torch-serving:dtype=bfloat16 --checkpoint DIR --port N`

The port opens once the weights are loaded. Loopback only unless told otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from tokenizers import Tokenizer

from contracts.builds import InvalidBuild
from workers.kernels.builds import read_build
from workers.kernels.completions import (
    CompletionRequest,
    Refused,
    error_body,
    logprobs_body,
    prompt_logprobs_body,
)
from workers.kernels.microbatch import MicroBatcher
from workers.kernels.protocol import Kernel, KernelError, Trace, UnusableCheckpoint
from workers.kernels.protocol import Request as KernelRequest

MAX_BODY = 8 * 2**20
_BLOCK = 128  # prompt positions whose logits exist at once


@dataclass(frozen=True, slots=True)
class Model:
    """What the server needs to know of a checkpoint beside its kernel.

    Attributes:
        name: as clients call it.
        context: prompt and output tokens together at most.
    """

    name: str
    tokenizer: Tokenizer
    context: int

    @classmethod
    def read(cls, checkpoint: Path) -> Model:
        """From a checkpoint directory. Raises UnusableCheckpoint naming the file."""
        file = checkpoint / "config.json"
        try:
            context = int(json.loads(file.read_bytes()).get("max_position_embeddings", 2048))
            file = checkpoint / "tokenizer.json"
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # noqa: BLE001 - tokenizers raises the base class
            raise UnusableCheckpoint(f"{file}: {error}") from None
        return cls(checkpoint.resolve().name, tokenizer, context)


def create_app(kernel: Kernel, model: Model, *, window_s: float = 0.004, max_batch: int = 8) -> FastAPI:
    """The ASGI application; it closes `kernel` when it shuts down."""
    batcher = MicroBatcher(kernel, window_s=window_s, max_batch=max_batch)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(batcher.close)
        kernel.close()

    app = FastAPI(title="Kernel server", lifespan=lifespan, docs_url=None, redoc_url=None)
    started = int(time.time())
    fingerprint = kernel.fingerprint().model_dump(mode="json")

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/fingerprint")
    async def read_fingerprint() -> dict[str, Any]:
        return fingerprint

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        entry = {"id": model.name, "object": "model", "created": started, "owned_by": "kernel-contracts"}
        return {"object": "list", "data": [{**entry, "max_model_len": model.context}]}

    @app.post("/v1/completions")
    async def completions(body: CompletionRequest) -> JSONResponse:
        prompt_ids = _prompt_ids(body, model, kernel.vocab_size)
        request = KernelRequest(
            id=f"cmpl-{uuid.uuid4().hex}",
            prompt_ids=tuple(prompt_ids),
            output_ids=None,
            max_new_tokens=body.max_tokens,
            seed=secrets.randbits(63) if body.seed is None else body.seed,
        )

        def read(kernel: Kernel, trace: Trace) -> object:
            generated = None if body.logprobs is None else _logprobs(kernel, trace, body)
            prompt = None if body.prompt_logprobs is None else _prompt_logprobs(kernel, trace, body)
            return generated, prompt

        future = batcher.submit(request, body.sampling, read)
        try:
            trace, logprobs = await asyncio.wrap_future(future)
        except Exception as error:
            raise Refused(500, f"The kernel failed: {type(error).__name__}: {error}") from error
        return JSONResponse(_completion(body, model, request, trace, logprobs))

    _answer_errors(app)
    return app


def _prompt_ids(body: CompletionRequest, model: Model, vocab_size: int) -> Sequence[int]:
    if body.model not in (None, model.name):
        raise Refused(404, f"The model {body.model!r} does not exist; this is {model.name!r}.",
                      param="model", code="model_not_found")  # fmt: skip
    ids = model.tokenizer.encode(body.prompt).ids if isinstance(body.prompt, str) else body.prompt
    if not ids:
        raise Refused(400, "The prompt is empty.", param="prompt")
    if max(ids) >= vocab_size:
        message = f"Token id {max(ids)} is outside the vocabulary of {vocab_size} tokens."
        raise Refused(400, message, param="prompt")
    if len(ids) + body.max_tokens > model.context:
        message = (
            f"This model's context is {model.context} tokens, but {len(ids)} in the prompt and "
            f"{body.max_tokens} in the completion were asked for."
        )
        raise Refused(400, message, param="max_tokens", code="context_length_exceeded")
    return ids


def _logprobs(
    kernel: Kernel, trace: Trace, body: CompletionRequest
) -> tuple[list[float], list[list[tuple[int, float]]]]:
    """Log-probs of the generated tokens and of the most likely ones, in nats (float64 softmax)."""
    import torch

    logits = kernel.logits(trace.states[trace.prompt_tokens - 1 :])[:, : kernel.vocab_size]
    table = torch.log_softmax(logits.double() / body.logprob_temperature, dim=-1)
    realised = torch.tensor(trace.token_ids[trace.prompt_tokens :], dtype=torch.long)
    chosen = table.gather(-1, realised[:, None])[:, 0].tolist()
    k = body.logprobs or 0
    if k == 0:
        return chosen, [[] for _ in chosen]
    values, ids = table.topk(k, dim=-1)
    return chosen, [list(zip(i, v, strict=True)) for i, v in zip(ids.tolist(), values.tolist(), strict=True)]


def _prompt_logprobs(kernel: Kernel, trace: Trace, body: CompletionRequest) -> list[dict[str, Any] | None]:
    """Log-probs of the prompt's tokens at temperature 1, in nats (float64 softmax)."""
    import torch

    ids, tops, ranks = trace.token_ids[: trace.prompt_tokens], [], []
    for start in range(0, len(ids) - 1, _BLOCK):
        realised = ids[start + 1 : start + 1 + _BLOCK]
        logits = kernel.logits(trace.states[start : start + len(realised)])[:, : kernel.vocab_size]
        table = torch.log_softmax(logits.double(), dim=-1)
        values, best = table.topk(body.prompt_logprobs or 0, dim=-1)
        for row, token, top in zip(
            table, realised, zip(best.tolist(), values.tolist(), strict=True), strict=True
        ):
            entry = list(zip(*top, strict=True))
            tops.append(entry if token in top[0] else [*entry, (token, float(row[token]))])
            ranks.append(top[0].index(token) + 1 if token in top[0] else int((row > row[token]).sum()) + 1)
    return prompt_logprobs_body(ids, tops, ranks)


def _completion(
    body: CompletionRequest, model: Model, request: KernelRequest, trace: Trace, logprobs: Any
) -> dict[str, Any]:
    output = trace.token_ids[trace.prompt_tokens :]
    choice: dict[str, Any] = {
        "index": 0,
        "text": model.tokenizer.decode(output, skip_special_tokens=True),
        "logprobs": None,
        "finish_reason": "stop" if trace.stopped else "length",
    }
    logprobs, prompt_logprobs = logprobs
    if prompt_logprobs is not None:
        choice["prompt_logprobs"] = prompt_logprobs
    if logprobs is not None:

        def text(token: int) -> str:
            if body.return_tokens_as_token_ids:
                return f"token_id:{token}"
            return model.tokenizer.decode([token], skip_special_tokens=False)

        chosen, top = logprobs
        choice["logprobs"] = logprobs_body(
            [(text(token), value) for token, value in zip(output, chosen, strict=True)],
            [[(text(token), value) for token, value in row] for row in top],
            0,
        )
    if body.return_token_ids:
        choice |= {"prompt_token_ids": list(request.prompt_ids), "token_ids": output}
    usage = {
        "prompt_tokens": trace.prompt_tokens,
        "completion_tokens": len(output),
        "total_tokens": len(trace.token_ids),
    }
    return {
        "id": request.id,
        "object": "text_completion",
        "created": int(time.time()),
        "model": model.name,
        "choices": [choice],
        "usage": usage,
        "timing": {"latency_s": trace.latency_s, "ttft_s": trace.ttft_s},
    }


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        return JSONResponse(error.body(), status_code=error.status)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        problems = [([str(p) for p in e["loc"] if p != "body"], e["msg"]) for e in error.errors()]
        param = next((where[0] for where, _ in problems if where and not where[0].isdigit()), None)
        message = "; ".join(f"{'.'.join(where)}: {text}" for where, text in problems[:5])
        return JSONResponse(error_body(400, message, param=param), status_code=400)

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse(error_body(error.status_code, str(error.detail)), status_code=error.status_code)

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse(error_body(500, f"{type(error).__name__}: {error}"), status_code=500)

    @app.middleware("http")
    async def limit_body(request: Request, call_next: Any) -> Any:
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > MAX_BODY:
            body = error_body(413, f"The body is larger than {MAX_BODY} bytes.")
            return JSONResponse(body, status_code=413)
        return await call_next(request)


def main(argv: Sequence[str] | None = None) -> int:
    """Load the kernel and serve it until told to stop; 2 for bad usage, 4 when it cannot be loaded."""
    parser = argparse.ArgumentParser(prog="python -m workers.kernels.server", description=__doc__)
    parser.add_argument("--build", required=True, help="engine:key=value,... or a JSON file")
    parser.add_argument("--checkpoint", type=Path, required=True, help="directory of weights and tokenizer")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--max-batch", type=int, default=8, help="requests that share a batch at most")
    arguments = parser.parse_args(argv)
    try:
        spec = read_build(arguments.build)
    except InvalidBuild as error:
        print(f"kernel build {arguments.build}: {error}", file=sys.stderr)
        return 2
    import uvicorn

    from workers.kernels.loading import load

    try:
        model = Model.read(arguments.checkpoint)
        kernel = load(spec, arguments.checkpoint)
    except (KernelError, InvalidBuild) as error:
        print(error, file=sys.stderr)
        return 4
    app = create_app(kernel, model, max_batch=arguments.max_batch)
    uvicorn.run(app, host=arguments.host, port=arguments.port, log_level="warning", access_log=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
