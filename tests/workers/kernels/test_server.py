import math

import pytest
import torch
from fastapi.testclient import TestClient

from workers.kernels.completions import logprobs_body
from workers.kernels.protocol import UnusableCheckpoint
from workers.kernels.server import MAX_BODY, Model, create_app, main
from workers.kernels.torch_serving import TorchServing


@pytest.fixture(scope="module")
def client(tiny_checkpoint):
    kernel = TorchServing(tiny_checkpoint, dtype="float32")
    with TestClient(create_app(kernel, Model.read(tiny_checkpoint), window_s=0.0)) as client:
        yield client


def complete(client, **body):
    return client.post("/v1/completions", json={"prompt": "def f(x):", "max_tokens": 4, "seed": 1} | body)


def test_a_completion(client):
    body = complete(client, return_token_ids=True).json()
    (choice,) = body["choices"]
    assert body["object"] == "text_completion"
    assert body["model"] == "tiny"
    assert body["usage"] == {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
    assert len(choice["token_ids"]) == 4
    assert len(choice["prompt_token_ids"]) == 9
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    assert 0 < body["timing"]["ttft_s"] <= body["timing"]["latency_s"]


def test_text_and_token_ids_are_the_same_prompt(client):
    text = complete(client, return_token_ids=True).json()["choices"][0]
    ids = complete(client, prompt=text["prompt_token_ids"], return_token_ids=True).json()["choices"][0]
    assert ids == text


def test_a_seed_fixes_the_tokens(client):
    def texts(**body):
        return [
            complete(client, return_token_ids=True, **body).json()["choices"][0]["token_ids"]
            for _ in range(3)
        ]

    assert len({tuple(ids) for ids in texts()}) == 1
    assert len({tuple(ids) for ids in texts(seed=None, max_tokens=24)}) > 1
    assert len({tuple(ids) for ids in texts(seed=None, temperature=0)}) == 1


def test_without_token_ids_unless_asked(client):
    assert "token_ids" not in complete(client).json()["choices"][0]


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
def test_logprobs_are_of_the_distribution_sampled_from(client, tiny_checkpoint, temperature):
    asked = {"logprobs": 3, "return_token_ids": True, "return_tokens_as_token_ids": True}
    body = complete(client, temperature=temperature, **asked).json()
    choice = body["choices"][0]
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(tiny_checkpoint)
    ids = torch.tensor([choice["prompt_token_ids"] + choice["token_ids"]])
    with torch.inference_mode():
        logits = model(ids).logits[0, 8:-1, :259].double()
    expected = torch.log_softmax(logits / (temperature or 1.0), -1)
    got = choice["logprobs"]
    for row, token, value in zip(expected, choice["token_ids"], got["token_logprobs"], strict=True):
        assert value == pytest.approx(row[token].item(), abs=1e-4)
    for row, top in zip(expected, got["top_logprobs"], strict=True):
        best = {f"token_id:{token}": row[token].item() for token in row.topk(3).indices.tolist()}
        assert top == pytest.approx(best, abs=1e-4)
    assert got["text_offset"][0] == 0
    if temperature == 0.0:
        assert choice["token_ids"] == expected.argmax(-1).tolist()


def test_logprobs_zero_names_the_chosen_token_only(client):
    got = complete(client, logprobs=0).json()["choices"][0]["logprobs"]
    assert len(got["token_logprobs"]) == 4
    assert got["top_logprobs"] is None


def test_numbers_that_are_none_are_null():
    body = logprobs_body([("a", math.nan)], [[("a", -math.inf)]], 0)
    assert body["token_logprobs"] == [None]
    assert body["top_logprobs"] == [{"a": None}]


def test_of_tokens_with_one_text_the_most_likely_stays():
    body = logprobs_body([("\ufffd", -1.0), ("b", -2.0)], [[("\ufffd", -1.0), ("\ufffd", -3.0)], []], 5)
    assert body["top_logprobs"] == [{"\ufffd": -1.0}, {}]
    assert body["text_offset"] == [5, 6]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [259]}, "prompt"),
        ({"prompt": ["a"]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 504}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"logprobs": 21}, "logprobs"),
        ({"n": 2}, "n"),
        ({"stream": True}, "stream"),
        ({"stop": ["\n"]}, "stop"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"maxtokens": 3}, "maxtokens"),
        ({"seed": "x"}, "seed"),
    ],
)
def test_bad_requests_name_their_parameter(client, body, param):
    response = complete(client, **body)
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["message"]


def test_too_long_has_openais_code(client):
    assert complete(client, max_tokens=504).json()["error"]["code"] == "context_length_exceeded"


def test_an_unknown_model_is_not_found(client):
    response = complete(client, model="other")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_what_is_not_json_is_refused(client, content):
    response = client.post("/v1/completions", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_unknown_paths_and_methods_have_the_same_shape(client):
    for response, status in ((client.get("/nowhere"), 404), (client.get("/v1/completions"), 405)):
        assert response.status_code == status
        assert response.json()["error"]["message"]


def test_large_bodies_are_refused(client):
    response = client.post("/v1/completions", content=b" " * (MAX_BODY + 1))
    assert response.status_code == 413
    assert "larger than" in response.json()["error"]["message"]


def test_a_kernel_that_fails_is_a_server_error(client, monkeypatch, tiny_checkpoint):
    kernel = TorchServing(tiny_checkpoint, dtype="float32")

    def broken(requests, sampling):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(kernel, "trace", broken)
    with TestClient(create_app(kernel, Model.read(tiny_checkpoint), window_s=0.0)) as failing:
        response = complete(failing)
    assert response.status_code == 500
    assert response.json()["error"] == {
        "message": "The kernel failed: RuntimeError: out of memory",
        "type": "server_error",
        "param": None,
        "code": None,
    }


def test_it_says_what_it_is(client):
    assert client.get("/health").json() == {"status": "ok"}
    fingerprint = client.get("/fingerprint").json()
    assert fingerprint["engine"] == "torch-serving"
    assert fingerprint["dtype"] == "float32"
    (model,) = client.get("/v1/models").json()["data"]
    assert model["id"] == "tiny"
    assert model["max_model_len"] == 512


def test_what_cannot_start_says_so(tmp_path, capsys):
    assert main(["--build", "tensor", "--checkpoint", str(tmp_path), "--port", "1"]) == 2
    assert "unknown engine 'tensor'" in capsys.readouterr().err
    assert main(["--build", "torch", "--checkpoint", str(tmp_path), "--port", "1"]) == 4
    assert f"{tmp_path / 'config.json'}" in capsys.readouterr().err


def test_a_checkpoint_without_a_tokenizer_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UnusableCheckpoint, match=r"tokenizer\.json"):
        Model.read(tmp_path)


def test_prompts_are_scored_by_id(client, tiny_checkpoint):
    """At temperature 1 whatever is asked, the realised token with its rank."""
    asked = {"prompt_logprobs": 3, "return_token_ids": True}
    choice = complete(client, temperature=0.5, **asked).json()["choices"][0]
    ids, (first, *rows) = choice["prompt_token_ids"], choice["prompt_logprobs"]
    assert first is None
    assert len(rows) == len(ids) - 1
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(tiny_checkpoint)
    with torch.inference_mode():
        table = torch.log_softmax(model(torch.tensor([ids])).logits[0, :, :259].double(), -1)
    for row, expected, token in zip(rows, table, ids[1:], strict=False):
        assert set(row) == {str(i) for i in (*expected.topk(3).indices.tolist(), token)}
        assert row[str(token)]["rank"] == int((expected > expected[token]).sum()) + 1
        for name, one in row.items():
            assert one["logprob"] == pytest.approx(float(expected[int(name)]), abs=1e-5)
    bare = complete(client, prompt_logprobs=0).json()["choices"][0]["prompt_logprobs"]
    assert [list(row) for row in bare[1:]] == [[str(i)] for i in ids[1:]]


def test_it_can_be_the_serving_kernel_of_an_evaluation(client):
    import httpx2

    from workers.kernels.openai_api import OpenAIServer
    from workers.kernels.protocol import Request as Asked

    def answer(request):
        sent = {"content-type": "application/json"}
        got = client.request(request.method, request.url.path, content=request.content, headers=sent)
        return httpx2.Response(got.status_code, content=got.content)

    with OpenAIServer("http://kernel", transport=httpx2.MockTransport(answer)) as http:
        http.detect((5, 6, 7), 4)
        got = http.ask(Asked("a", (5, 6, 7), None, 3, seed=1), 4, prompt=True)
        assert http.fingerprint().flags == {"model": "tiny", "served_by": "kernel-contracts"}
    assert len(got.rows) == len(got.token_ids) - 1
    assert all(row.top == 4 for row in got.rows)
