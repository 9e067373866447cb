"""Which server a build becomes, and what it is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contracts.builds import parse_build
from workers import serve
from workers.environments import UnknownEnvironment


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    file = tmp_path / "python"
    file.touch()
    monkeypatch.setenv("KC_PYTHONS", f"vllm={file},older={file}")
    return str(file)


def command(text: str) -> list[str]:
    return serve.vllm_command(parse_build(text), Path("model"), "127.0.0.1", 8331)


def value(arguments: list[str], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


def test_vllm_serves_with_the_options_of_the_build(python: str) -> None:
    found = command(
        "vllm:dtype=float32,enforce_eager=on,prefix_caching=on,chunk=512,batch=4,block_size=32,"
        "max_model_len=1024,kv_cache_gib=2,tp=2,kv_cache_dtype=fp8,quantization=fp8,attn=CPU_ATTN,rope_theta=10000"
    )
    assert found[:3] == [python, "-m", "vllm.entrypoints.openai.api_server"]
    told = {
        "--model": "model", "--host": "127.0.0.1", "--port": "8331", "--dtype": "float32",
        "--max-num-batched-tokens": "512", "--max-num-seqs": "4", "--block-size": "32",
        "--max-model-len": "1024", "--kv-cache-memory-bytes": str(2**31), "--tensor-parallel-size": "2",
        "--kv-cache-dtype": "fp8", "--quantization": "fp8", "--attention-backend": "CPU_ATTN",
        "--generation-config": "vllm",
    }  # fmt: skip
    assert {flag: value(found, flag) for flag in told} == told
    assert {"--enforce-eager", "--enable-prefix-caching"} <= set(found)
    rope = json.loads(value(found, "--hf-overrides"))["rope_parameters"]
    assert rope == {"rope_type": "default", "rope_theta": 10000}


def test_what_a_build_leaves_out_is_as_it_is_measured(python: str) -> None:
    found = command("vllm")
    assert value(found, "--dtype") == "bfloat16"
    assert "--no-enable-prefix-caching" in found
    assert "--max-model-len" not in found
    assert command("vllm:python=older")[0] == python


def test_no_interpreter_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KC_PYTHONS", f"vllm={tmp_path / 'nowhere'}")
    with pytest.raises(UnknownEnvironment, match="KC_PYTHONS"):
        command("vllm")


def test_the_process_becomes_the_server(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    became = []

    class Became(BaseException):
        pass

    def execve(path: str, arguments: list[str], environment: dict[str, str]) -> None:
        became.append((path, environment["VLLM_CPU_KVCACHE_SPACE"], environment["HF_HUB_OFFLINE"]))
        raise Became

    monkeypatch.setattr(serve.os, "execve", execve)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "3")
    with pytest.raises(Became):
        serve.main(["--build", "vllm", "--checkpoint", "model", "--port", "1"])
    assert became == [(python, "3", "1")]


@pytest.mark.parametrize(
    ("build", "says"),
    [("vlm", "did you mean 'vllm'"), ("llamacpp:file=model.gguf", "has a server of its own")],
)
def test_what_cannot_be_served(build: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.main(["--build", build, "--checkpoint", "model", "--port", "1"]) == 2
    assert says in capsys.readouterr().err


def test_a_torch_build_is_served_here(monkeypatch: pytest.MonkeyPatch) -> None:
    from workers.kernels import server

    told: list[list[str]] = []
    monkeypatch.setattr(server, "main", lambda arguments: told.append(arguments) or 4)
    assert serve.main(["--build", "torch", "--checkpoint", "model", "--port", "1"]) == 4
    assert told == [["--build", "torch", "--checkpoint", "model", "--host", "127.0.0.1", "--port", "1"]]
