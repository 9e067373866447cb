import json
from pathlib import Path

import pytest

from contracts.evidence import Evidence
from contracts.verdicts import Judgement
from tests.workers.documents import contract_text
from workers import evaluate as command
from workers.evaluate import INCONCLUSIVE, NOT_MEASURED, USAGE, main, write

KL = "  - {id: S1, family: statistical, metric: kl, statistic: mean, limit: {lte: %s}, kind: hard, level: L2}"


@pytest.fixture
def given(tmp_path, tiny_checkpoint):
    """Arguments of an evaluation that can be done; tests change one."""
    suite = tmp_path / "suite.jsonl"
    suite.write_text("".join(json.dumps({"id": f"p{i}", "prompt": f"def f{i}():"}) + "\n" for i in range(4)))
    document = tmp_path / "contract.yaml"
    document.write_text(contract_text(KL % 1))
    return {
        "--contract": str(document),
        "--checkpoint": str(tiny_checkpoint),
        "--train": "torch:dtype=float32",
        "--inference": "torch-serving:dtype=bfloat16",
        "--suite": str(suite),
    }


def rewrite(file, text):
    Path(file).write_text(text)


def run(given, *flags):
    return main([*(word for pair in given.items() for word in pair), "--quiet", *flags])


@pytest.fixture
def unmeasured(monkeypatch):
    """Nothing may get as far as a kernel."""
    from workers import kept

    monkeypatch.setattr(kept, "open_kernel", None)


def complaint(capsys):
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert err.startswith("kc evaluate: ")
    return err


def test_json_and_files(given, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(given | {"--out": str(out)}, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["converged"] is True
    assert answer["stage"] == "offline_ci"
    assert {(v["clause"], v["slice"], v["phase"]) for v in answer["verdicts"]} == {
        ("S1", "all", "prefill"),
        ("S1", "all", "decode"),
    }
    for verdict in answer["verdicts"]:
        assert {"verdict", "observed", "limit", "n", "interval", "reason"} <= verdict.keys()
        assert len(verdict["interval"]) == 2
    evidence = Evidence.model_validate_json((out / "evidence.json").read_bytes())
    judgement = Judgement.model_validate_json((out / "judgement.json").read_bytes())
    assert evidence.digest == answer["evidence_digest"] == judgement.evidence_digest
    assert sorted(file.name for file in out.iterdir()) == [
        "evidence.json",
        "judgement.json",
        "records.parquet",
        "requests.parquet",
        "run.json",
    ]


def test_a_table_of_a_violation(given, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    rewrite(given["--contract"], contract_text(KL % "1e-9"))
    assert run(given) == 1
    out = capsys.readouterr().out
    assert "VIOLATED" in out
    assert "S1" in out


def test_a_sample_too_small_is_inconclusive(given, capsys):
    soft = (
        "  - {id: S1, family: statistical, metric: kl, limit: {lte: 1}, kind: soft, exceedance: 0.01,"
        " level: L2}"
    )
    rewrite(given["--contract"], contract_text(soft, census=False))
    assert run(given, "--json") == INCONCLUSIVE
    assert json.loads(capsys.readouterr().out)["converged"] is None


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--contract", "none.yaml", "none.yaml: No such file"),
        ("--train", "tensor", "--train tensor: unknown engine"),
        ("--inference", "torch-serving:dtype=bfloat61", "did you mean 'bfloat16'?"),
        ("--inference", "torch-serving:dtype=float32", "inference: dtype must be 'bfloat16', not 'float32'"),
        ("--checkpoint", "nowhere", "no such checkpoint directory"),
        ("--suite", "none.jsonl", "none.jsonl: cannot be read"),
    ],
)
def test_bad_input_is_one_message(given, unmeasured, capsys, option, value, message):
    assert run(given | {option: value}) == USAGE
    assert message in complaint(capsys)


def test_a_malformed_contract_names_file_line_and_column(given, unmeasured, capsys):
    text = contract_text(KL % 1).replace("metric: kl", "metric: kll")
    rewrite(given["--contract"], text)
    assert run(given) == USAGE
    line = 1 + next(i for i, line in enumerate(text.splitlines()) if "kll" in line)
    assert f"{given['--contract']}:{line}:" in complaint(capsys)


def test_a_bad_suite_names_its_line(given, unmeasured, capsys):
    with Path(given["--suite"]).open("a") as suite:
        suite.write('{"id": "p0", "prompt": "again"}\n')
    assert run(given) == USAGE
    assert f"{given['--suite']}:5: id 'p0' is already used on line 1" in complaint(capsys)


def test_token_ids_of_another_tokenizer_are_refused(given, unmeasured, capsys):
    line = {"id": "x", "token_ids": [1], "tokenizer_digest": "sha256:" + "0" * 64}
    rewrite(given["--suite"], json.dumps(line))
    assert run(given) == USAGE
    assert "token ids of tokenizer" in complaint(capsys)


def test_token_ids_outside_the_vocabulary_are_refused(given, unmeasured, capsys):
    rewrite(given["--suite"], '{"id": "x", "token_ids": [999]}')
    assert run(given) == USAGE
    assert "'x', position 0: token id 999" in complaint(capsys)


def test_an_out_that_is_a_file_is_refused_first(given, unmeasured, tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    assert run(given | {"--out": str(tmp_path / "file")}) == USAGE
    assert "--out" in complaint(capsys)


def test_missing_arguments_are_bad_usage(capsys):
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == USAGE
    assert "--contract" in capsys.readouterr().err


def test_a_kernel_that_fails_is_not_measured(given, tmp_path, monkeypatch, capsys):
    from workers import kept

    def broken(build, checkpoint):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(kept, "open_kernel", broken)
    out = tmp_path / "out"
    assert run(given | {"--out": str(out)}) == NOT_MEASURED
    assert "could not be measured: RuntimeError: out of memory" in complaint(capsys)
    assert list(out.iterdir()) == []


def test_an_interrupt_is_no_verdict(given, monkeypatch, capsys):
    def interrupted(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_measure", interrupted)
    assert run(given) == 130
    assert "interrupted" in complaint(capsys)


def test_files_are_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "file"
    write(target, b"one")
    write(target, b"two")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"two"]
    with pytest.raises(OSError, match="directory"):
        write(tmp_path, b"x")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
