"""Runtime drift: real servers under a short load, and what is made of observations."""

from __future__ import annotations

import json

import pytest

from contracts.document import read
from contracts.evidence import Provenance
from contracts.judge import judge
from contracts.model import Stage
from contracts.slices import Attributes
from contracts.verdicts import Outcome
from tests.workers.documents import contract_text
from workers import evaluate, probe
from workers.draws import InvalidEvaluation
from workers.load import Observation
from workers.probe import gather, main, only_runtime, summary

CLAUSES = """\
  - {id: R1, family: runtime, metric: failure_rate, limit: {lte: 60%}, kind: hard, level: L3}
  - {id: R2, family: runtime, metric: latency, statistic: p50, relative_to: baseline, limit: {lte: 50}, kind: hard, level: L1}
  - {id: R3, family: runtime, metric: peak_memory, limit: {lte: 64 GiB}, kind: hard, level: L2}
  - {id: N2, family: numerical, metric: unmeasurable, limit: {lte: 0}, kind: hard, level: L3}"""  # noqa: E501
WHERE = {f"p{i}": Attributes(4, None, frozenset()) for i in range(3)}
PROVENANCE = Provenance(
    contract="c", checkpoint="k", train_build="t", inference_build="i", suite="s", stage=Stage.OFFLINE_CI
)


def contract():
    return only_runtime(read(contract_text(CLAUSES).encode()).contract)


def seen(side, latency, *, ok=True, warm=False, tokens=5, prompt="p0"):
    ttft = latency / 2 if ok else None
    return Observation(prompt, side, warm, ok, latency, ttft, tokens if ok else 0, 0.0)


def test_only_clauses_a_load_can_decide():
    assert [clause.id for clause in contract().clauses] == ["R1", "R2", "R3"]
    other = read(contract_text(CLAUSES.splitlines()[3]).encode()).contract
    with pytest.raises(InvalidEvaluation, match="no runtime clause"):
        only_runtime(other)


def test_warm_up_does_not_count():
    observed = [seen("candidate", 1.0), seen("baseline", 1.0), seen("candidate", 99.0, warm=True)]
    observed += [seen("candidate", 99.0, ok=False, warm=True)]
    evidence = gather(contract(), PROVENANCE, observed, WHERE, 2**30)
    assert evidence.cell("R1", "all", None).count.trials == 1
    assert evidence.cell("R1", "all", None).count.events == 0
    assert summary(observed)["candidate"]["latency_p99"] == 1.0
    assert summary(observed)["candidate"]["itl_p50"] == pytest.approx(0.125)


def test_verdicts_of_a_load():
    observed = [seen(side, 2.0 if side == "candidate" else 1.0) for side in ("candidate", "baseline")] * 200
    evidence = gather(contract(), PROVENANCE, observed, WHERE, 2**30)
    found = {v.clause: v for v in judge(contract(), evidence, contract_digest="c").verdicts}
    assert {v.verdict for v in found.values()} == {Outcome.HOLDS}
    assert found["R2"].observed == pytest.approx(2.0, rel=0.02)
    assert found["R3"].observed == 2**30


def test_memory_nobody_watched_is_no_data():
    evidence = gather(contract(), PROVENANCE, [seen("candidate", 1.0)], WHERE, None)
    found = {v.clause: v.verdict for v in judge(contract(), evidence, contract_digest="c").verdicts}
    assert found["R3"] is Outcome.NO_DATA


def test_a_side_that_answers_nothing_never_holds():
    observed = [seen("candidate", 1.0, ok=False), seen("baseline", 1.0)] * 100
    evidence = gather(contract(), PROVENANCE, observed, WHERE, 2**30)
    found = {v.clause: v.verdict for v in judge(contract(), evidence, contract_digest="c").verdicts}
    assert found["R1"] is Outcome.VIOLATED
    assert found["R2"] is not Outcome.HOLDS
    assert summary(observed)["candidate"]["latency_p50"] is None


@pytest.fixture
def given(tmp_path, tiny_checkpoint):
    (tmp_path / "contract.yaml").write_text(contract_text(CLAUSES))
    prompts = [{"id": f"p{i}", "prompt": f"def f{i}(x):"} for i in range(4)]
    (tmp_path / "suite.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    return {
        "--contract": str(tmp_path / "contract.yaml"),
        "--checkpoint": str(tiny_checkpoint),
        "--suite": str(tmp_path / "suite.jsonl"),
        "--candidate": "torch-serving:dtype=bfloat16",
        "--baseline": "torch-serving:dtype=float32",
        "--rate": "20",
        "--seconds": "1",
        "--warm-up": "0.2",
        "--block": "0.5",
        "--max-tokens": "3",
    }


def run(given, *flags):
    return main([*(word for pair in given.items() for word in pair), "--quiet", *flags])


def test_two_real_servers(given, tmp_path, capsys):
    status = run(given | {"--out": str(tmp_path / "out")}, "--json")
    answer = json.loads(capsys.readouterr().out)
    assert status in (evaluate.CONVERGED, evaluate.INCONCLUSIVE)
    assert {v["clause"] for v in answer["verdicts"]} == {"R1", "R2", "R3"}
    for side in ("candidate", "baseline"):
        assert answer["load"][side]["requests"] > 0
        assert answer["load"][side]["failure_rate"] == 0
        assert answer["load"][side]["latency_p99"] >= answer["load"][side]["ttft_p50"] > 0
    memory = next(v for v in answer["verdicts"] if v["clause"] == "R3")
    assert memory["observed"] > 10 * 2**20
    assert (tmp_path / "out" / "evidence.json").is_file()


def test_a_server_that_cannot_start(given, capsys):
    status = run(given | {"--baseline": "llamacpp:file=model.gguf"})
    assert status == evaluate.NOT_MEASURED
    assert "the server ended with status 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"--rate": "0"}, "rate is 0.0"),
        ({"--candidate": "torch-servin"}, "unknown engine 'torch-servin'"),
        ({"--suite": "/nowhere.jsonl"}, "cannot be read"),
        ({"--contract": "/nowhere.yaml"}, "No such file"),
    ],
)
def test_bad_usage_starts_nothing(given, capsys, monkeypatch, change, says):
    monkeypatch.setattr(probe, "_loaded", None)
    assert run(given | change) == evaluate.USAGE
    assert says in capsys.readouterr().err
