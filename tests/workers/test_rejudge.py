"""Judging again what was recorded: the same evidence under the same contract, no kernel under another."""

from __future__ import annotations

import json
import shutil

import pytest

from contracts.document import read
from contracts.evidence import Evidence
from tests.workers.documents import contract_text
from workers import evaluate, rejudge
from workers.rejudge import NoRecords, main, replay

CLAUSES = """\
  - {id: N1, family: numerical, metric: abs_log_ratio, limit: {lte: 1}, kind: soft, exceedance: .5, level: L2}
  - {id: N2, family: numerical, metric: unmeasurable, limit: {lte: 0}, kind: hard, level: L3}
  - {id: S1, family: statistical, metric: kl, statistic: mean, limit: {lte: 1}, kind: hard, level: L2}
  - {id: S2, family: statistical, metric: topk_agreement, k: 10, limit: {gte: 0.1}, kind: hard, level: L2}
  - {id: S3, family: statistical, metric: ece_gap, limit: {lte: 0.9}, kind: hard, level: L2}
  - {id: S4, family: statistical, metric: ppl_ratio, limit: {lte: 5}, kind: hard, level: L2}
  - {id: R1, family: runtime, metric: failure_rate, limit: {lte: 50%}, kind: hard, level: L3}
  - {id: R2, family: runtime, metric: latency, statistic: p50, limit: {lte: 100 s}, kind: hard, level: L1}"""
TV = "  - {id: S9, family: statistical, metric: tv, limit: {lte: %s}, kind: soft, exceedance: 0.5, level: L2}"


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_checkpoint):
    """What one evaluation wrote, and its contract's file."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "contract.yaml").write_text(contract_text(CLAUSES))
    prompts = [{"id": f"p{i}", "prompt": f"def f{i}(x):", "tags": ["t"] * (i % 2)} for i in range(6)]
    (folder / "suite.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    evaluate.main(
        [
            "--contract", str(folder / "contract.yaml"), "--checkpoint", str(tiny_checkpoint),
            "--train", "torch:dtype=float32", "--inference", "torch-serving:dtype=bfloat16",
            "--suite", str(folder / "suite.jsonl"), "--out", str(folder / "out"), "--quiet",
        ]
    )  # fmt: skip
    return folder


def judged(run, contract, capsys, *flags):
    status = main([str(run / "out"), "--contract", str(contract), *flags])
    return status, *capsys.readouterr()


def test_under_the_same_contract_it_is_the_same_evidence(run):
    document = read((run / "contract.yaml").read_bytes())
    evidence = Evidence.read((run / "out" / "evidence.json").read_bytes())
    again = replay(document.contract, document.digest, evidence, run / "out")
    assert again.canonical() == evidence.canonical()


@pytest.mark.parametrize(("limit", "status", "outcome"), [(0.9, 0, True), (1e-9, 1, False)])
def test_another_contract_needs_no_kernel(run, tmp_path, capsys, monkeypatch, limit, status, outcome):
    from workers import kept

    monkeypatch.setattr(kept, "open_kernel", None)
    contract = tmp_path / "other.yaml"
    contract.write_text(contract_text(TV % limit))
    found, out, _ = judged(run, contract, capsys, "--json")
    answer = json.loads(out)
    assert (found, answer["converged"]) == (status, outcome)
    assert {verdict["clause"] for verdict in answer["verdicts"]} == {"S9"}


def test_what_was_not_recorded_is_an_error(run, tmp_path, capsys):
    contract = tmp_path / "other.yaml"
    contract.write_text(contract_text(CLAUSES.replace("k: 10", "k: 3")))
    status, out, err = judged(run, contract, capsys)
    assert (status, out) == (evaluate.NOT_MEASURED, "")
    assert "has no topk_agreement@3: measure anew" in err


def test_records_that_were_changed_or_lost_are_refused(run, tmp_path):
    document = read((run / "contract.yaml").read_bytes())
    evidence = Evidence.read((run / "out" / "evidence.json").read_bytes())
    copy = tmp_path / "out"
    shutil.copytree(run / "out", copy)
    records = copy / "records.parquet"
    records.write_bytes(records.read_bytes() + b"\0")
    with pytest.raises(NoRecords, match="it was changed"):
        replay(document.contract, document.digest, evidence, copy)
    records.unlink()
    with pytest.raises(NoRecords, match="no such records"):
        replay(document.contract, document.digest, evidence, copy)
    (copy / "requests.parquet").unlink()
    with pytest.raises(NoRecords, match="requests"):
        replay(document.contract, document.digest, evidence, copy)


def test_bad_usage(run, tmp_path, capsys):
    assert judged(run, tmp_path / "nowhere.yaml", capsys)[0] == evaluate.USAGE
    bad = tmp_path / "bad.yaml"
    bad.write_text("nonsense: 1\n")
    assert judged(run, bad, capsys)[0] == evaluate.USAGE
    (run / "empty").mkdir(exist_ok=True)
    assert main([str(run / "empty"), "--contract", str(run / "contract.yaml")]) == evaluate.USAGE
    assert rejudge.evaluate.USAGE == 2
