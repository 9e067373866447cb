"""`kc evaluate` against servers over HTTP: its exit statuses, and what it says."""

import json

import pytest
import stamina

from tests.workers.documents import contract_text
from tests.workers.openai_server import FakeServer, listening
from workers import evaluate as command
from workers.kernels.torch_serving import TorchServing

TV = "  - {id: S2, family: statistical, metric: tv, limit: {lte: %s}, kind: hard, level: L2%s}"
KL = "  - {id: S1, family: statistical, metric: kl, limit: {lte: 1}, kind: hard, level: L2}"


@pytest.fixture(autouse=True)
def hasty():
    """Retries without waiting."""
    with stamina.set_testing(True, attempts=2):
        yield


@pytest.fixture(scope="module")
def kernel(tiny_checkpoint):
    kernel = TorchServing(tiny_checkpoint, dtype="bfloat16")
    yield kernel
    kernel.close()


@pytest.fixture
def run(tmp_path, tiny_checkpoint):
    """Arguments of `kc evaluate`, but for the server's."""
    suite = tmp_path / "suite.jsonl"
    suite.write_text("".join(json.dumps({"id": f"p{i}", "prompt": f"def f{i}():"}) + "\n" for i in range(4)))

    def main(url, clauses, *flags):
        text = contract_text(clauses).replace("engine: torch-serving, dtype: bfloat16", "engine: openai")
        (tmp_path / "contract.yaml").write_text(text)
        return command.main([
            "--contract", str(tmp_path / "contract.yaml"), "--checkpoint", str(tiny_checkpoint),
            "--train", "torch:dtype=float32", "--inference", f"openai:url={url}", "--suite", str(suite),
            "--quiet", *flags,
        ])  # fmt: skip

    return main


@pytest.mark.parametrize(
    ("clauses", "status"),
    [
        (TV % (0.5, ""), command.CONVERGED),
        (TV % (0.0001, ""), command.VIOLATED),
        (KL, command.INCONCLUSIVE),
    ],
)
def test_the_command_over_http(run, kernel, tmp_path, capsys, clauses, status):
    server = FakeServer(kernel)
    with listening(server) as url:
        assert run(f"{url}/v1", clauses, "--json", "--out", str(tmp_path / "out")) == status
    answer = json.loads(capsys.readouterr().out)
    assert answer["converged"] is {0: True, 1: False, 3: None}[status]
    assert (tmp_path / "out" / "records.parquet").is_file()


def test_the_command_when_it_cannot_be_measured(run, kernel, capsys, monkeypatch):
    assert run("http://127.0.0.1:9", TV % (0.5, "")) == command.NOT_MEASURED
    assert "ServerUnreachable" in capsys.readouterr().err
    with listening(FakeServer(kernel, dialect="plain")) as url:
        assert run(url, TV % (0.5, "")) == command.NOT_MEASURED
        assert "ServerLacks" in capsys.readouterr().err
        monkeypatch.delenv("THE_API_KEY", raising=False)
        assert run(f"{url},api_key=THE_API_KEY", TV % (0.5, "")) == command.USAGE
        assert "the environment has no THE_API_KEY" in capsys.readouterr().err
        monkeypatch.setenv("THE_API_KEY", "s3cret")
        flags = (f"{url},api_key=THE_API_KEY", TV % (0.5, ", phase: decode"))
        assert run(*flags) == command.CONVERGED
        out, err = capsys.readouterr()
        assert "s3cret" not in out + err
