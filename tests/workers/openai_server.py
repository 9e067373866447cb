"""A small OpenAI-compatible server of a kernel, in the dialects servers speak, and with their faults."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import torch

from contracts.model import Sampling
from workers.kernels.protocol import Request


class FakeServer:
    """Answers `handle(method, path, body)`; counts what it was asked.

    Args:
        dialect: `vllm` has prompt_logprobs, `echo` has echo and refuses what it does not know, `plain`
            gives generated tokens' log-probs only, `content` is llama.cpp's form of that.
        most: log-probs above which a request is refused; gives: log-probs silently given at most.
        tamper: called with each choice and the request's body before it is answered.
    """

    def __init__(self, kernel, *, dialect="vllm", most=None, gives=None, tamper=None, models=("tiny",)):
        self.kernel, self.dialect, self.most, self.gives = kernel, dialect, most, gives
        self.tamper, self.models = tamper, models
        self.asked, self.headers = [], []
        self._lock = threading.Lock()

    def handle(self, method, path, body):
        if path == "/v1/models":
            entries = [{"id": name, "object": "model", "owned_by": "fake"} for name in self.models]
            return 200, {"object": "list", "data": entries}
        if path == "/version":
            return 200, {"version": "1.2.3"}
        if path != "/v1/completions":
            return 404, {"detail": "Not Found"}
        with self._lock:
            self.asked.append(body)
            return self._complete(body)

    def transport(self):
        def answer(request):
            self.headers.append(dict(request.headers))
            body = json.loads(request.content) if request.content else None
            status, plain = self.handle(request.method, request.url.path, body)
            return httpx2.Response(status, text=json.dumps(plain))

        return httpx2.MockTransport(answer)

    def _complete(self, body):
        k = body["logprobs"]
        if self.dialect == "echo" and "prompt_logprobs" in body:
            return 400, {"error": {"message": "prompt_logprobs: Extra inputs are not permitted"}}
        if self.most is not None and max(k, body.get("prompt_logprobs", 0)) > self.most:
            return 400, {
                "error": {"message": f"Requested {k} logprobs, greater than max allowed: {self.most}"}
            }
        request = Request("r", tuple(body["prompt"]), None, body["max_tokens"], body["seed"])
        (trace,) = self.kernel.trace([request], Sampling(temperature=body["temperature"]))
        logits = self.kernel.logits(trace.states)[:, : self.kernel.vocab_size]
        table = torch.log_softmax(logits.float(), -1)
        prompt = trace.prompt_tokens
        entries = [
            self._entry(row, token, min(k, self.gives or k))
            for row, token in zip(table, trace.token_ids[1:], strict=True)
        ]
        generated = trace.token_ids[prompt:]
        choice = {"index": 0, "text": "", "finish_reason": "stop" if trace.stopped else "length"}
        shown = entries[prompt - 1 :]
        if self.dialect == "echo" and body.get("echo"):
            generated, shown = trace.token_ids, [None, *entries]
        choice["logprobs"] = self._named(generated, shown)
        if self.dialect == "vllm":
            choice |= {"token_ids": trace.token_ids[prompt:], "prompt_token_ids": trace.token_ids[:prompt]}
            if "prompt_logprobs" in body:
                rows = [
                    {str(i): {"logprob": v, "rank": rank, "decoded_token": "?"} for i, v, rank in entry}
                    for entry in entries[: prompt - 1]
                ]
                choice["prompt_logprobs"] = [None, *rows]
        if self.tamper:
            self.tamper(choice, body)
        return 200, {"choices": [choice], "usage": {"prompt_tokens": prompt}}

    def _entry(self, row, token, k):
        best = row.topk(min(k, len(row))).indices.tolist()
        ids = best if token in best else [*best, token]
        return [(i, float(row[i]), int((row > row[i]).sum()) + 1) for i in ids]

    def _named(self, tokens, entries):
        if self.dialect == "content":
            return {
                "content": [
                    {
                        "id": token,
                        "logprob": {i: v for i, v, _ in entry}[token],
                        "top_logprobs": [{"id": i, "logprob": v} for i, v, _ in entry],
                    }
                    for token, entry in zip(tokens, entries, strict=True)
                ]
            }
        return {
            "tokens": [f"token_id:{token}" for token in tokens],
            "token_logprobs": [
                None if e is None else {i: v for i, v, _ in e}[t]
                for t, e in zip(tokens, entries, strict=True)
            ],
            "top_logprobs": [None if e is None else {f"token_id:{i}": v for i, v, _ in e} for e in entries],
        }


@contextmanager
def listening(server):
    """The server on a loopback port; its address."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self):
            length = int(self.headers.get("content-length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            server.headers.append({k.lower(): v for k, v in self.headers.items()})
            status, plain = server.handle(self.command, self.path, body)
            content = json.dumps(plain).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _answer

        def log_message(self, *_):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
