import pyarrow.parquet as pq
import pytest

from app.services.specs import TrafficRequest
from contracts.builds import parse_build
from contracts.judge import judge
from contracts.model import Phase, Stage
from contracts.slices import Attributes
from contracts.verdicts import Outcome
from tests.workers.documents import DIGEST, contract, provenance
from workers import kept
from workers.draws import Draw
from workers.evaluation import evaluate
from workers.kernels.protocol import InvalidRequest, Request
from workers.pair import PairMismatch, TruncatedRatio

TRAIN, SERVING = parse_build("torch:dtype=float32"), parse_build("torch-serving:dtype=bfloat16")
LATENCY = (
    "  - {id: R1, family: runtime, metric: latency, statistic: p90, limit: {lte: 600 s},"
    " kind: hard, level: L1%s}"
)
KL = "  - {id: S1, family: statistical, metric: kl, statistic: mean, limit: {lte: %s}, kind: hard, level: L2}"
COVERAGE = (
    "  - {id: O1, family: observability, metric: dual_evaluation_coverage, limit: {gte: 0.1},"
    " kind: hard, level: L2}"
)


def draws(count=5, new_tokens=4):
    return [
        Draw(
            Request(f"p{i}", tuple(range(3, 8 + i)), None, new_tokens, i),
            Attributes(5 + i, "python", frozenset({"safety"} if i % 2 else ())),
        )
        for i in range(count)
    ]


def run(checkpoint, document=None, given=None, **options):
    options = {"train": TRAIN, "inference": SERVING, "shard": "s", "provenance": provenance()} | options
    return evaluate(
        document or contract(), checkpoint=checkpoint, draws=draws() if given is None else given, **options
    )


def cell(evidence, clause, phase=None, slice="all"):
    found = evidence.cell(clause, slice, phase)
    assert found is not None
    return found


def test_offline_every_clause_has_its_evidence(tiny_checkpoint, tmp_path):
    seen = []
    file = tmp_path / "out" / "records.parquet"
    evidence = run(tiny_checkpoint, records=file, progress=lambda share, what: seen.append(share))
    assert evidence.prompts == 5
    assert evidence.shards == ("s",)
    for phase, decisions in ((Phase.PREFILL, 5 + 6 + 7 + 8 + 9), (Phase.DECODE, 5 * 3)):
        draws_of_n1 = cell(evidence, "N1", phase).draws
        assert draws_of_n1.n == 5
        assert draws_of_n1.decisions <= decisions  # an end token may come early
        assert cell(evidence, "S1", phase, "safety").moments.n == 2
        assert cell(evidence, "S4", phase).calibration.prompts == 5
        assert cell(evidence, "S5", phase).nll_train.n == 5
    assert cell(evidence, "R1").candidate.n == 5
    assert cell(evidence, "R2").count.trials == 5
    (ref,) = evidence.records
    assert ref.rows == pq.read_table(file).num_rows
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    judgement = judge(contract(), evidence, contract_digest=DIGEST)
    undecided = {v.clause for v in judgement.verdicts if v.verdict is not Outcome.HOLDS}
    assert undecided == {"R1"}, judgement.reason  # a p90 takes more than five requests


def test_the_same_draws_give_the_same_drift(tiny_checkpoint):
    def measured():
        return {c.key: c for c in run(tiny_checkpoint).cells if c.clause != "R1"}

    assert measured() == measured()


def test_a_faulty_build_is_violated(tiny_checkpoint):
    faulty = parse_build("torch-serving:dtype=bfloat16,rope_theta=10")
    tight = KL % 0.001
    evidence = run(tiny_checkpoint, contract(tight), inference=faulty)
    judgement = judge(contract(tight), evidence, contract_digest=DIGEST)
    assert judgement.converged is False
    assert {verdict.verdict for verdict in judgement.verdicts} == {Outcome.VIOLATED}


def test_nan_weights_are_unmeasurable_and_never_pass(tiny_checkpoint, tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(tiny_checkpoint, broken)
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    evidence = run(broken)
    judgement = judge(contract(), evidence, contract_digest=DIGEST)
    assert judgement.converged is not True
    assert cell(evidence, "N1", Phase.PREFILL).unmeasurable.count == 5 + 6 + 7 + 8 + 9
    assert not any(v.verdict is Outcome.HOLDS for v in judgement.verdicts if v.phase is not None)


def test_live_traffic_is_replayed_and_counted(tiny_checkpoint):
    clauses = "\n".join(
        [
            KL % 1,
            LATENCY % ", relative_to: baseline",
            "  - {id: R2, family: runtime, metric: failure_rate, limit: {lte: 0.5}, kind: hard, level: L3}",
            COVERAGE,
        ]
    ).replace("lte: 600 s", "lte: 2")
    common = {
        "prompt_ids": (3, 4, 5),
        "attributes": Attributes(3),
        "latency_s": 0.3,
        "ttft_s": 0.1,
        "ok": True,
    }
    served = [
        TrafficRequest(**common, id="a", output_ids=(6, 7), role="candidate", dual=True),
        TrafficRequest(**common, id="b", output_ids=(6, 7), role="candidate"),
        TrafficRequest(**(common | {"ok": False}), id="c", role="candidate"),
        TrafficRequest(**common, id="d", output_ids=(6, 7), role="baseline"),
    ]
    given = [Draw(Request("a", (3, 4, 5), (6, 7)), Attributes(3))]
    stage = provenance(Stage.CANARY)
    evidence = run(tiny_checkpoint, contract(clauses), given, served=served, provenance=stage)
    assert evidence.prompts == 1
    assert cell(evidence, "S1", Phase.DECODE).extreme.high_at.index == 3
    assert (cell(evidence, "R1").candidate.n, cell(evidence, "R1").baseline.n) == (2, 1)
    assert (cell(evidence, "R2").count.events, cell(evidence, "R2").count.trials) == (1, 3)
    assert (cell(evidence, "O1").count.events, cell(evidence, "O1").count.trials) == (1, 3)


def test_without_draws_no_kernel_is_loaded(tiny_checkpoint, monkeypatch):
    monkeypatch.setattr(kept, "open_kernel", None)
    request = TrafficRequest(
        id="a", prompt_ids=(1,), attributes=Attributes(1), role="candidate", ok=True, latency_s=1.0
    )
    evidence = run(tiny_checkpoint, given=[], served=[request], provenance=provenance(Stage.SHADOW))
    assert evidence.prompts == 0
    assert cell(evidence, "R2").count.trials == 1


def test_the_baseline_runs_offline_where_a_clause_compares_with_it(tiny_checkpoint):
    document = contract((LATENCY % ", relative_to: baseline").replace("600 s", "2"))
    baseline = parse_build("torch-serving:dtype=float32")
    evidence = run(tiny_checkpoint, document, baseline=baseline)
    assert (cell(evidence, "R1").candidate.n, cell(evidence, "R1").baseline.n) == (5, 5)
    assert cell(run(tiny_checkpoint, contract(LATENCY % ""), baseline=baseline), "R1").baseline is None


@pytest.mark.parametrize(
    ("option", "build", "message"),
    [
        ("inference", "torch-serving:dtype=float32", "inference: dtype must be 'bfloat16', not 'float32'"),
        ("train", "torch-serving:dtype=float32", "train: engine must be 'torch', not 'torch-serving'"),
    ],
)
def test_another_pair_is_refused_before_it_is_loaded(tiny_checkpoint, monkeypatch, option, build, message):
    monkeypatch.setattr(kept, "open_kernel", None)
    with pytest.raises(PairMismatch) as caught:
        run(tiny_checkpoint, **{option: parse_build(build)})
    assert caught.value.mismatches == (message,)


def test_what_only_the_running_kernel_knows_is_checked_then(tiny_checkpoint):
    document = contract(inference="float16").model_copy(update={"pair": contract().pair})
    other = document.pair.model_copy(update={"train": {"engine": "torch", "attention_backend": "flash"}})
    with pytest.raises(PairMismatch, match="train: attention_backend must be 'flash'"):
        run(tiny_checkpoint, document.model_copy(update={"pair": other}))


def test_ratios_of_truncated_distributions_are_refused(tiny_checkpoint):
    with pytest.raises(TruncatedRatio, match=r"N1 \(abs_log_ratio\)"):
        run(tiny_checkpoint, contract(sampling="{temperature: 1.0, top_p: 0.9}"))


def test_a_failure_leaves_no_records(tiny_checkpoint, tmp_path):
    bad = [*draws(2), Draw(Request("bad", (999,), None, 4, 0), Attributes(1))]
    with pytest.raises(InvalidRequest, match="'bad', position 0: token 999"):
        run(tiny_checkpoint, given=bad, records=tmp_path / "records.parquet")
    assert list(tmp_path.iterdir()) == []


def test_what_progress_raises_ends_the_evaluation(tiny_checkpoint):
    class Enough(Exception):
        pass

    def progress(share, what):
        if share > 0:
            raise Enough

    with pytest.raises(Enough):
        run(tiny_checkpoint, progress=progress)
