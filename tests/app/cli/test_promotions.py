"""The command line against a control plane that really listens."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import main as cli
from app.cli.client import Refused
from app.cli.errors import CliError

CONTRACT = Path(cli.__file__).parents[2] / "contracts" / "examples" / "coder-demo.yaml"
Kc = Callable[..., str]


@pytest.fixture
def kc(plane: str, monkeypatch: pytest.MonkeyPatch) -> Kc:
    """Runs `kc`; its output, or the error it ended with."""
    monkeypatch.setenv("KC_URL", plane)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments: str, status: int = 0) -> str:
        result = CliRunner().invoke(cli.app, arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == status, result.output
        return result.stdout

    return run


def checkpoint(folder: Path) -> Path:
    folder.mkdir()
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8)
    (folder / "config.json").write_text(json.dumps({"vocab_size": 4, "bos_token_id": 1}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "b"}))
    (folder / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": []})
    )
    return folder


@pytest.fixture
def started(kc: Kc, tmp_path: Path) -> str:
    """The id of a promotion of which everything was registered from the command line."""
    assert kc("register", "contract", str(CONTRACT)).startswith("coder-demo@1.1.0 sha256:")
    kc("register", "checkpoint", "smollm2", str(checkpoint(tmp_path / "checkpoint")))
    for name, build in {
        "train": "torch:dtype=float32",
        "smollm2-fp32": "torch-serving:dtype=float32",
        "smollm2-bf16": "torch-serving:dtype=bfloat16",
    }.items():
        kc("register", "build", name, build)
    suite = tmp_path / "suite.jsonl"
    suite.write_text(json.dumps({"id": "a", "prompt": "def f():"}) + "\n")
    kc("register", "suite", "stdlib", str(suite))
    endpoint = "smollm2-fp32=http://127.0.0.1:9"
    kc("register", "deployment", "coder", "--known-good", "smollm2-fp32", "--endpoint", endpoint)
    return promote(kc).strip()


def promote(kc: Kc, *more: str, status: int = 0) -> str:
    return kc(
        "promote", "coder", "--contract", "coder-demo@1.1.0", "--checkpoint", "smollm2", "--train", "train",
        "--inference", "smollm2-bf16", "--suite", "stdlib", *more, status=status,
    )  # fmt: skip


def test_a_promotion_is_listed_and_shown(kc: Kc, started: str) -> None:
    listed = kc("status")
    assert started[:8] in listed
    assert "smollm2-bf16" in listed
    assert kc("status", started[:8]).startswith(f"{started[:8]}  Offline CI, measuring")
    assert json.loads(kc("status", started, "--json"))["judgements"] == []
    assert [one["id"] for one in json.loads(kc("status", "--json"))] == [started]


def test_people_act_and_say_why(kc: Kc, started: str) -> None:
    assert "frozen: " in kc("freeze", started, "-m", "a bad feeling")
    assert "measuring" in kc("resume", started, "-m", "it was nothing")
    assert "measuring" in kc("retry", started)
    assert "aborted" in kc("abort", started, "--reason", "for today")
    with pytest.raises(Refused) as caught:
        kc("approve", started)
    assert (caught.value.code, caught.value.status) == (1, 409)


def test_a_newer_promotion_supersedes(kc: Kc, started: str) -> None:
    newer = json.loads(promote(kc, "--json"))["id"]
    assert json.loads(kc("status", started, "--json"))["status"] == "superseded"
    assert json.loads(kc("status", newer, "--json"))["status"] == "measuring"


def test_waiting_ends_when_it_no_longer_measures(
    kc: Kc, started: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.cli import promotions

    # Instead of a pause: somebody freezes whatever measures.
    newest = lambda: json.loads(kc("status", "--json"))[0]["id"]  # noqa: E731
    monkeypatch.setattr(promotions.time, "sleep", lambda _: kc("freeze", newest(), "-m", "stop"))
    told = promote(kc, "--wait", status=1).splitlines()
    assert "measuring" in told[0]
    assert "frozen" in told[-1]


@pytest.mark.parametrize("beginning", ["zzzz", ""])
def test_a_beginning_that_names_nothing_or_too_much(kc: Kc, started: str, beginning: str) -> None:
    promote(kc)
    with pytest.raises(CliError, match="id begins with") as caught:
        kc("freeze", beginning, "-m", "x")
    assert caught.value.code == 2


def test_registering_again_is_a_no_op_and_other_content_is_refused(
    kc: Kc, started: str, tmp_path: Path
) -> None:
    assert kc("register", "contract", str(CONTRACT)).startswith("coder-demo@1.1.0 sha256:")
    with pytest.raises(Refused, match="smollm2-fp32"):
        kc("register", "build", "smollm2-fp32", "torch-serving:dtype=bfloat16")
    other = tmp_path / "other.yaml"
    other.write_text(CONTRACT.read_text().replace("alpha: 0.05", "alpha: 0.01"))
    with pytest.raises(Refused, match=r"coder-demo@1\.1\.0"):
        kc("register", "contract", str(other))


def test_a_contract_with_errors_is_refused_with_every_place(kc: Kc, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(CONTRACT.read_text().replace("metric: tv", "metric: tvv"))
    with pytest.raises(Refused, match=r"\n  .*:\d+:\d+: .*tvv"):
        kc("register", "contract", str(file))


def test_an_endpoint_without_a_build(kc: Kc) -> None:
    with pytest.raises(CliError, match="build=url") as caught:
        kc("register", "deployment", "coder", "--known-good", "a", "--endpoint", "http://x")
    assert caught.value.code == 2
