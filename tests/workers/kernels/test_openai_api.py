import json
import math

import httpx2
import pytest
import stamina
import torch

from contracts.builds import Fingerprint
from contracts.model import Phase
from tests.workers.openai_server import FakeServer
from workers.kernels import openai_api
from workers.kernels.openai_api import (
    ATTEMPTS,
    IdsDiffer,
    MalformedAnswer,
    OpenAIServer,
    ServerLacks,
    ServerRefused,
    ServerUnreachable,
)
from workers.kernels.protocol import Request
from workers.kernels.torch_serving import TorchServing

URL = "http://server:8000"
IDS = (5, 9, 30, 31, 77)
SAMPLED = Request("s", IDS, None, 4, seed=7)
GIVEN = Request("g", IDS, (40, 41, 42))


@pytest.fixture(autouse=True)
def hasty():
    """Retries without waiting."""
    with stamina.set_testing(True, attempts=ATTEMPTS):
        yield


@pytest.fixture(scope="module")
def kernel(tiny_checkpoint):
    kernel = TorchServing(tiny_checkpoint, dtype="float32")
    yield kernel
    kernel.close()


def client(server, **options):
    return OpenAIServer(URL, transport=server.transport(), **options)


def truth(kernel, tokens):
    """Log-probs [T - 1, V] of a sequence."""
    (trace,) = kernel.trace([Request("t", tuple(tokens[:1]), tuple(tokens[1:]))], None)
    return torch.log_softmax(kernel.logits(trace.states)[:, : kernel.vocab_size].double(), -1)


def check(answer, kernel, k):
    table = truth(kernel, answer.token_ids)[answer.first :]
    assert len(answer.rows) == len(answer.phases) == len(table)
    for row, expected, token in zip(answer.rows, table, answer.token_ids[answer.first + 1 :], strict=True):
        best = expected.topk(k).indices.tolist()
        assert set(row.logprobs) == {*best, token}
        assert row.top >= k
        for one, value in row.logprobs.items():
            assert value == pytest.approx(float(expected[one]), abs=1e-5)


@pytest.mark.parametrize("dialect", ["vllm", "echo"])
def test_prompt_and_generated_tokens_are_scored(kernel, dialect):
    server = FakeServer(kernel, dialect=dialect)
    with client(server) as http:
        http.detect(IDS, 5)
        answer = http.ask(SAMPLED, 5, prompt=True)
        scored = http.ask(GIVEN, 5, prompt=True)
    assert tuple(answer.token_ids[:5]) == IDS
    assert answer.first == 0
    assert answer.phases[:5] == [Phase.PREFILL] * 5
    assert set(answer.phases[5:]) <= {Phase.DECODE}
    assert answer.prompt_tokens == 5
    check(answer, kernel, 5)
    # No server decodes given tokens: the whole was a prompt.
    assert scored.token_ids == [*IDS, 40, 41, 42]
    assert scored.phases == [Phase.PREFILL] * 7
    assert scored.prompt_tokens == 5
    check(scored, kernel, 5)
    body = server.asked[-2]
    assert (body["temperature"], body["top_p"], body["top_k"], body["min_p"]) == (1.0, 1.0, -1, 0.0)
    assert body["seed"] == 7


@pytest.mark.parametrize("dialect", ["plain", "content", "vllm"])
def test_decode_alone_needs_no_prompt_logprobs(kernel, dialect):
    with client(FakeServer(kernel, dialect=dialect)) as http:
        answer = http.ask(SAMPLED, 3, prompt=False)
    assert answer.first == 4  # the last position of the prompt decides the first token
    assert answer.phases[0] is Phase.PREFILL
    check(answer, kernel, 3)


@pytest.mark.parametrize("dialect", ["plain", "content"])
def test_a_server_that_scores_no_prompts_says_what_it_lacks(kernel, dialect):
    with (
        client(FakeServer(kernel, dialect=dialect)) as http,
        pytest.raises(ServerLacks, match=r"prompt_logprobs was ignored; echo.*`phase: decode`"),
    ):
        http.detect(IDS, 3)


def text_names(choice, body):
    choice["logprobs"]["tokens"] = ["a"] * len(choice["logprobs"]["tokens"])


def test_tokens_by_text_are_not_enough(kernel):
    with (
        client(FakeServer(kernel, dialect="plain", tamper=text_names)) as http,
        pytest.raises(ServerLacks, match=r"by their text \('a'\).*return_tokens_as_token_ids was ignored"),
    ):
        http.ask(SAMPLED, 3, prompt=False)


def test_fewer_log_probs_than_asked(kernel):
    """Then it is open whether a realised token that comes last is the least of the top ones."""
    with client(FakeServer(kernel, dialect="plain", gives=2)) as http:
        rows = http.ask(SAMPLED, 5, prompt=False).rows
    for row in rows:
        assert row.top in (1, 2)
        assert len(row.logprobs) in (2, 3)


def test_too_many_log_probs_are_refused_in_the_servers_words(kernel):
    with (
        client(FakeServer(kernel, most=5)) as http,
        pytest.raises(ServerRefused, match=r"max allowed: 5; .*top_logprobs=N") as got,
    ):
        http.detect(IDS, 6)
    assert got.value.status == 400


# What is done to an answer, and what is then said of it.


def other_prompt(choice, body):
    choice["prompt_token_ids"] = [1, *choice["prompt_token_ids"]]


def scored_other(choice, body):
    choice["prompt_logprobs"][3] = {"8": {"logprob": -1.0, "rank": 1}}


def no_proof(choice, body):
    del choice["prompt_token_ids"]


def fewer_rows(choice, body):
    choice["prompt_logprobs"].pop()


def hole(choice, body):
    choice["prompt_logprobs"][2] = None


def text_rows(choice, body):
    choice["prompt_logprobs"][2] = {"word": {"logprob": -1.0}}


def no_logprobs(choice, body):
    choice["logprobs"] = None


def lengths(choice, body):
    choice["logprobs"]["token_logprobs"].pop()


def other_output(choice, body):
    choice["token_ids"] = [3] * len(choice["token_ids"])


@pytest.mark.parametrize(
    ("tamper", "kind", "words"),
    [
        (other_prompt, IdsDiffer, "request 's', position 0: .*did not run the token ids it was sent"),
        (scored_other, IdsDiffer, "position 3: the server scored the prompt without token 31"),
        (
            fewer_rows,
            IdsDiffer,
            "position 4: the server ran a prompt of 4 tokens for one of 5; it may add BOS",
        ),
        (hole, MalformedAnswer, "no log-probs of prompt token 2"),
        (text_rows, MalformedAnswer, "are not by id"),
        (no_logprobs, ServerLacks, "logprobs was ignored"),
        (lengths, MalformedAnswer, "4 tokens with 3 log-probs"),
        (other_output, MalformedAnswer, "token_ids has 4 tokens"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_answer_about_something_else_is_refused(kernel, tamper, kind, words):
    with client(FakeServer(kernel, tamper=tamper)) as http, pytest.raises(kind, match=words):
        http.ask(SAMPLED, 3, prompt=True)


def test_scored_ids_prove_the_prompt(kernel):
    with client(FakeServer(kernel, tamper=no_proof)) as http:
        assert http.ask(SAMPLED, 3, prompt=True).token_ids[:5] == list(IDS)


def test_a_prompt_of_another_length_is_noticed_by_its_count(kernel):
    class Adding(FakeServer):
        def handle(self, method, path, body):
            status, plain = super().handle(method, path, body)
            if "usage" in plain:
                plain["usage"]["prompt_tokens"] += 1
            return status, plain

    with (
        client(Adding(kernel, dialect="plain")) as http,
        pytest.raises(IdsDiffer, match="6 tokens for one of 5"),
    ):
        http.ask(SAMPLED, 3, prompt=False)


@pytest.mark.parametrize("bad", [-9999.0, math.nan, None, 0.5, math.inf, "x", True])
@pytest.mark.parametrize("where", ["prompt", "generated", "top"])
def test_no_log_probability_is_unmeasurable_and_alone_in_it(kernel, bad, where):
    """F13: −inf and NaN arrive as −9999.0."""

    def tamper(choice, body):
        if where == "prompt":
            next(iter(choice["prompt_logprobs"][2].values()))["logprob"] = bad
        elif where == "generated":
            choice["logprobs"]["token_logprobs"][0] = bad
        else:
            top = choice["logprobs"]["top_logprobs"][0]
            top[min(top, key=top.get)] = bad
            choice["logprobs"]["token_logprobs"][0] = max(v for v in top.values() if v is not bad)

    with client(FakeServer(kernel, tamper=tamper)) as http:
        rows = http.ask(SAMPLED, 3, prompt=True).rows
    at = 1 if where == "prompt" else 4
    if where != "top" or rows[at].logprobs == {}:
        assert [i for i, row in enumerate(rows) if not row.logprobs] == [at]


def test_rounding_above_zero_is_zero():
    from workers.kernels.openai_answers import REPORTED, _row

    assert _row(3, {3: REPORTED / 2, 4: -20.0}, None, 2, short=False).logprobs == {3: 0.0, 4: -20.0}
    assert _row(3, {3: 2 * REPORTED}, None, 1, short=False).logprobs == {}


@pytest.mark.parametrize(
    ("found", "rank", "k", "short", "top"),
    [
        ({3: -1.0, 4: -2.0}, None, 2, False, 2),
        ({3: -3.0, 4: -2.0, 5: -1.0}, None, 2, False, 2),  # one more than asked: the realised one
        ({3: -3.0, 4: -2.0, 5: -1.0}, 9, 2, False, 2),
        ({3: -3.0, 4: -2.0, 5: -1.0}, 3, 2, False, 3),
        ({3: -3.0, 4: -2.0}, None, 2, True, 1),
        ({3: -1.0, 4: -2.0}, None, 2, True, 2),
        ({3: -3.0, 4: -2.0}, 2, 5, True, 2),
    ],
)
def test_which_are_certainly_the_most_likely(found, rank, k, short, top):
    from workers.kernels.openai_answers import _row

    assert _row(3, found, rank, k, short=short).top == top


def test_the_fingerprint_is_what_the_server_says(kernel):
    with client(FakeServer(kernel)) as http:
        flags = {"model": "tiny", "served_by": "fake"}
        assert http.fingerprint() == Fingerprint(engine="openai", version="1.2.3", flags=flags)
    silent = FakeServer(kernel)
    silent.handle = lambda method, path, body: (
        FakeServer.handle(silent, method, path, body) if path == "/v1/models" else (404, {})
    )
    with client(silent) as http:
        assert http.fingerprint().version is None


@pytest.mark.parametrize(
    ("models", "name", "words"),
    [
        (("a", "b"), None, "serves 2 models: a, b; name one, model=NAME"),
        ((), None, "serves 0 models: none"),
        (("a",), "c", "has no model 'c': it serves a"),
    ],
)
def test_the_model_must_be_there(kernel, models, name, words):
    with pytest.raises(ServerLacks, match=words):
        client(FakeServer(kernel, models=models), model=name)


def test_the_key_is_sent_and_not_shown(kernel):
    server = FakeServer(kernel)
    with client(server, api_key="s3cret") as http:
        assert "s3cret" not in repr(http) + str(http.fingerprint())
    assert {h["authorization"] for h in server.headers} == {"Bearer s3cret"}


def flaky(kernel, failures):
    """A transport that fails as told before it answers."""
    server, left = FakeServer(kernel), list(failures)
    inner = server.transport()

    def answer(request):
        if request.url.path == "/v1/completions" and left:
            failure = left.pop(0)
            if isinstance(failure, Exception):
                raise failure
            return failure
        return inner.handle_request(request)

    return OpenAIServer(URL, transport=httpx2.MockTransport(answer)), left


def busy(status, **headers):
    return httpx2.Response(status, headers=headers, text="busy")


def test_what_passes_is_tried_again(kernel):
    http, left = flaky(kernel, [httpx2.ConnectError("refused"), busy(503), busy(429, **{"retry-after": "0"})])
    with http:
        assert http.ask(SAMPLED, 3, prompt=True).token_ids[:5] == list(IDS)
    assert left == []


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (httpx2.ReadTimeout("slow"), "slow, after 4 attempts"),
        (busy(503), "HTTP 503, after 4 attempts"),
    ],
)
def test_tries_end(kernel, failure, words):
    http, left = flaky(kernel, [failure] * 9)
    with http, pytest.raises(ServerUnreachable, match=words):
        http.ask(SAMPLED, 3, prompt=True)
    assert len(left) == 9 - ATTEMPTS


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (httpx2.Response(500, text="oops"), ServerRefused, "HTTP 500: oops"),
        (httpx2.Response(401, text='{"error": {"message": "bad key"}}'), ServerRefused, "HTTP 401: bad key"),
        (httpx2.Response(302, headers={"location": "http://elsewhere/"}), ServerRefused, "HTTP 302"),
        (httpx2.Response(200, text="<html>"), MalformedAnswer, "not JSON"),
        (httpx2.Response(200, text='{"choices": []}'), MalformedAnswer, "not one choice"),
        (httpx2.Response(200, text="[]"), MalformedAnswer, "not one choice"),
    ],
)
def test_other_answers_are_errors_at_once(kernel, answer, kind, words):
    http, left = flaky(kernel, [answer] * 3)
    with http, pytest.raises(kind, match=words):
        http.ask(SAMPLED, 3, prompt=True)
    assert len(left) == 2


def test_an_answer_without_end_is_cut(kernel, monkeypatch):
    monkeypatch.setattr(openai_api, "MOST_BYTES", 1000)
    with client(FakeServer(kernel)) as http, pytest.raises(MalformedAnswer, match="over 1000 bytes"):
        http.ask(SAMPLED, 20, prompt=True)


def test_a_wait_the_server_asks_for_is_bounded():
    assert openai_api._again(openai_api._Busy(429, "3600")) == openai_api.LONGEST_WAIT_S
    assert openai_api._again(openai_api._Busy(429, "soon")) is True
    assert openai_api._again(ValueError()) is False


def test_requests_are_json(kernel):
    server = FakeServer(kernel)
    with client(server) as http:
        http.ask(SAMPLED, 3, prompt=True)
    assert json.loads(json.dumps(server.asked[0]))["prompt"] == list(IDS)
