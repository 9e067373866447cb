"""A pair whose serving kernel is behind a server, against the same pair with full logits."""

import logging
import math

import numpy as np
import pyarrow.parquet as pq
import pytest
import stamina

from contracts.builds import parse_build
from contracts.collect import Collector
from contracts.judge import judge
from contracts.model import Phase
from contracts.slices import Attributes
from contracts.verdicts import Outcome
from tests.workers.documents import DIGEST, contract, contract_text, provenance
from tests.workers.openai_server import FakeServer
from workers import partial
from workers.draws import Draw
from workers.evaluation import evaluate
from workers.kernels.openai_api import IdsDiffer, OpenAIServer, ServerLacks
from workers.kernels.protocol import Request
from workers.kernels.torch_serving import TorchServing
from workers.pair import PairMismatch
from workers.paired import VocabulariesDiffer
from workers.partial import Partial, UnmeasurableServer, anywhere, listed
from workers.rejudge import NoRecords, replay
from workers.worst import worst

URL = "http://127.0.0.1:1"
TRAIN = parse_build("torch:dtype=float32")
TV = "  - {id: S2, family: statistical, metric: tv, limit: {lte: %s}, kind: hard, level: L2%s}"
MEAN = (
    "  - {id: S2, family: statistical, metric: tv, statistic: mean, limit: {lte: %s}, kind: hard, level: L2}"
)
ALL = """\
  - {id: N1, family: numerical, metric: abs_log_ratio, limit: {lte: 1}, kind: hard, level: L2}
  - {id: N2, family: numerical, metric: logit_osc, limit: {lte: 9}, kind: hard, level: L2}
  - {id: N3, family: numerical, metric: unmeasurable, limit: {lte: 0}, kind: hard, level: L3}
  - {id: S1, family: statistical, metric: kl, statistic: mean, limit: {lte: 1}, kind: hard, level: L2}
  - {id: S2, family: statistical, metric: tv, limit: {lte: 0.2}, kind: soft, exceedance: 0.05, level: L2}
  - {id: S3, family: statistical, metric: topk_agreement, k: 5, limit: {gte: 0.4}, kind: hard, level: L2}
  - {id: S4, family: statistical, metric: ece_gap, limit: {lte: 0.5}, kind: hard, level: L1}
  - {id: S5, family: statistical, metric: ppl_ratio, limit: {lte: 2}, kind: hard, level: L1}
  - {id: R1, family: runtime, metric: latency, statistic: p90, limit: {lte: 600 s}, kind: hard, level: L1}
"""


@pytest.fixture(autouse=True)
def hasty():
    with stamina.set_testing(True, attempts=2):
        yield


@pytest.fixture(scope="module")
def kernels(tiny_checkpoint):
    """A serving kernel near the training one, and one that is not."""
    found = [
        TorchServing(tiny_checkpoint, dtype="bfloat16"),
        TorchServing(tiny_checkpoint, dtype="float32", rope_theta=10.0),
    ]
    yield found
    for kernel in found:
        kernel.close()


def document(clauses, **options):
    text = contract_text(clauses, **options)
    old = "inference: {engine: torch-serving, dtype: bfloat16}"
    assert old in text
    from contracts.document import read

    return read(text.replace(old, "inference: {engine: openai}").encode()).contract


def draws(count=5, new_tokens=4):
    return [
        Draw(Request(f"p{i}", tuple(range(3, 8 + i)), None, new_tokens, i), Attributes(5 + i, "python"))
        for i in range(count)
    ]


def run(checkpoint, server, asked, *, options="", given=None, **more):
    more = {"shard": "s", "provenance": provenance(), "train": TRAIN} | more
    return evaluate(
        asked,
        checkpoint=checkpoint,
        inference=parse_build(f"openai:url={URL}{options}"),
        draws=draws() if given is None else given,
        connect=lambda build: OpenAIServer(URL, transport=server.transport()),
        **more,
    )


def verdicts(asked, evidence):
    found = judge(asked, evidence, contract_digest=DIGEST)
    return {(v.clause, v.phase): v for v in found.verdicts}


def test_every_clause_says_what_it_can(tiny_checkpoint, kernels, tmp_path):
    asked, server = document(ALL), FakeServer(kernels[0])
    said = []
    evidence = run(
        tiny_checkpoint, server, asked, records=tmp_path / "r.parquet",
        progress=lambda share, words: said.append(words),
    )  # fmt: skip
    found = verdicts(asked, evidence)
    holds = {clause for (clause, _), v in found.items() if v.verdict is Outcome.HOLDS}
    assert {"N1", "N3", "S2", "S3", "S4", "S5"} <= holds
    for phase in Phase:
        assert found["N2", phase].verdict is Outcome.NO_DATA
        assert "truncated log-probabilities do not give it" in found["N2", phase].reason
        assert found["S1", phase].verdict is Outcome.INCONCLUSIVE  # a lower end only
        decisions = {Phase.PREFILL: 5 + 6 + 7 + 8 + 9, Phase.DECODE: 5 * 3}[phase]
        assert evidence.cell("S2", "all", phase).draws.decisions <= decisions
    assert evidence.cell("R1", "all", None).candidate.n == 5
    assert "of 5 prompts asked again, up to" in said[-1]


def test_the_truth_lies_between_the_ends(tiny_checkpoint, kernels, tmp_path):
    """Of the same kernel, through its logits and through a server."""
    local = contract(ALL)
    file, whole = tmp_path / "records.parquet", tmp_path / "whole" / "records.parquet"
    evidence = run(tiny_checkpoint, FakeServer(kernels[0]), document(ALL), records=file,
                   options=",top_logprobs=3,max_top_logprobs=3")  # fmt: skip
    ours = pq.read_table(file)
    given = [
        Draw(Request(d.request.id, d.request.prompt_ids, tuple(outputs)), d.attributes)
        for d in draws()
        for outputs in [_outputs(ours, d)]
    ]
    evaluate(
        local, provenance(), tiny_checkpoint, TRAIN, parse_build("torch-serving:dtype=bfloat16"), given,
        shard="s", records=whole,
    )  # fmt: skip
    theirs = pq.read_table(whole)
    assert ours["token"].to_pylist() == theirs["token"].to_pylist()
    assert ours["phase"].to_pylist() == theirs["phase"].to_pylist()
    for name in ("tv", "kl", "kl_reverse", "topk_agreement@5"):
        assert name not in ours.column_names
        truth = theirs[name].to_numpy()
        assert (ours[f"{name}_lower"].to_numpy() <= truth + 1e-9).all(), name
        assert (ours[f"{name}_upper"].to_numpy() >= truth - 1e-9).all(), name
    for name in ("log_ratio", "top1_flip", "nll_inference", "confidence_inference"):
        np.testing.assert_allclose(ours[name].to_numpy(), theirs[name].to_numpy(), atol=3e-5)
    # Records of ends are not taken for exact ones, and what is not in them is missed.
    with pytest.raises(NoRecords, match="has no logit_osc: measure anew"):
        replay(document(ALL), DIGEST, evidence, tmp_path)


def test_recorded_ends_judge_as_they_did(tiny_checkpoint, kernels, tmp_path):
    asked = document(ALL.replace("numerical, metric: logit_osc", "statistical, metric: kl_reverse"))
    evidence = run(tiny_checkpoint, FakeServer(kernels[0]), asked, records=tmp_path / "records.parquet")
    assert replay(asked, DIGEST, evidence, tmp_path).canonical() == evidence.canonical()
    values = [one.value for one in worst(tmp_path, "tv_upper", 3)]
    assert values == sorted(values, reverse=True)
    assert worst(tmp_path, "topk_agreement@5_lower", 1)[0].value <= 1.0
    with pytest.raises(NoRecords, match="no metric 'tv' is recorded"):
        worst(tmp_path, "tv", 1)


def _outputs(table, draw):
    rows = [r for r in table.select(["draw", "index", "token"]).to_pylist() if r["draw"] == draw.request.id]
    return [r["token"] for r in rows if r["index"] >= len(draw.request.prompt_ids) - 1]


@pytest.mark.parametrize("limit", [0.001, 0.02, 0.1, 0.3, 0.9])
@pytest.mark.parametrize("clause", [TV % ("%s", ""), MEAN, TV % ("%s", ", phase: decode")])
@pytest.mark.parametrize("which", [0, 1])
def test_a_verdict_is_that_of_full_logits_or_none(tiny_checkpoint, kernels, clause, limit, which):
    asked = document(clause % limit)
    options = ",top_logprobs=2,max_top_logprobs=%s"
    few = verdicts(asked, run(tiny_checkpoint, FakeServer(kernels[which]), asked, options=options % 2))
    many = verdicts(asked, run(tiny_checkpoint, FakeServer(kernels[which]), asked, options=options % 259))
    for key, verdict in many.items():
        assert verdict.verdict in (Outcome.HOLDS, Outcome.VIOLATED)  # with everything known, all is decided
        assert few[key].verdict in (verdict.verdict, Outcome.INCONCLUSIVE)


def test_only_what_is_undecided_is_asked_again(tiny_checkpoint, kernels, caplog):
    asked, server = document(TV % (0.05, "")), FakeServer(kernels[0])
    with caplog.at_level(logging.INFO, logger="workers.partial"):
        evidence = run(tiny_checkpoint, server, asked, options=",top_logprobs=1,max_top_logprobs=300")
    counts = {}
    for body in server.asked[1:]:  # the first finds out what the server can do
        counts.setdefault(tuple(body["prompt"]), []).append(body["logprobs"])
    assert len(counts) == 5
    for asked_for in counts.values():
        assert asked_for == [1, 4, 16, 64, 256, 300][: len(asked_for)]
    assert any(len(one) > 1 for one in counts.values())
    assert all(v.verdict is not Outcome.INCONCLUSIVE for v in verdicts(asked, evidence).values())
    assert "prompts asked again" in caplog.text
    # A limit nobody is near decides at once.
    far = FakeServer(kernels[0])
    run(tiny_checkpoint, far, document(TV % (1.0, "")), options=",top_logprobs=1,max_top_logprobs=300")
    assert len(far.asked) == 1 + 5


def test_what_a_server_gives_at_most_ends_it(tiny_checkpoint, kernels, caplog):
    asked, server = document(TV % (0.02, "")), FakeServer(kernels[0], most=4)
    evidence = run(tiny_checkpoint, server, asked, options=",top_logprobs=2")
    assert {v.verdict for v in verdicts(asked, evidence).values()} <= {Outcome.INCONCLUSIVE, Outcome.VIOLATED}
    assert {body["logprobs"] for body in server.asked} == {2, 8}
    assert "the server gives 2 log-probabilities at most" in caplog.text


def test_another_sample_is_not_taken(tiny_checkpoint, kernels):
    """Which tokens count is decided before anyone knows how the clause goes."""

    class Fickle(FakeServer):
        def _complete(self, body):
            return super()._complete(body | {"seed": body["seed"] + 100 * body["logprobs"]})

    asked = document(TV % (0.05, ""))
    server = Fickle(kernels[0])
    build = parse_build(f"openai:url={URL},top_logprobs=2,max_top_logprobs=256")
    collector = Collector(asked, provenance(), "s")
    pairs = Partial(build, collector, ())
    from workers.kernels.torch_graph import TorchGraph

    train = TorchGraph(tiny_checkpoint, dtype="float32")
    with OpenAIServer(URL, transport=server.transport()) as http:
        found = list(pairs.paired(train, http, draws(new_tokens=8)))
        first = [http.ask(d.request, 2, prompt=True).token_ids for d in draws(new_tokens=8)]
    train.close()
    assert [list(one.token_ids) for one in found] == first
    assert pairs.asked.changed > 0
    for one in found:
        assert {p: len(d.values["tv"]) for p, d in one.phases.items()} == {
            Phase.PREFILL: one.prompt_tokens, Phase.DECODE: len(one.token_ids) - 1 - one.prompt_tokens,
        }  # fmt: skip


def test_given_outputs_are_prefill(tiny_checkpoint, kernels):
    """A server cannot be made to decode given tokens, so decode was not measured."""
    asked = document(TV % (0.9, ""))
    given = [Draw(Request("a", (3, 4, 5), (6, 7)), Attributes(3))]
    evidence = run(tiny_checkpoint, FakeServer(kernels[0]), asked, given=given)
    assert evidence.cell("S2", "all", Phase.PREFILL).draws.decisions == 4
    assert evidence.cell("S2", "all", Phase.DECODE) is None


def test_a_server_that_only_generates_serves_decode_clauses(tiny_checkpoint, kernels):
    server = FakeServer(kernels[0], dialect="plain")
    asked = document(TV % (0.9, ", phase: decode"))
    found = verdicts(asked, run(tiny_checkpoint, server, asked))
    assert {v.verdict for v in found.values()} == {Outcome.HOLDS}
    with pytest.raises(ServerLacks, match="clauses on prefill need"):
        run(tiny_checkpoint, server, document(TV % (0.9, "")))


@pytest.mark.parametrize("bad", [-9999.0, math.nan])
def test_a_masked_or_nan_log_prob_breaks_hard_clauses(tiny_checkpoint, kernels, bad):
    """F13: one decision of one prompt, named."""

    def tamper(choice, body):
        if len(body["prompt"]) == 7:
            rows = choice["prompt_logprobs"][4]
            rows[next(iter(rows))]["logprob"] = bad

    asked = document(ALL)
    evidence = run(tiny_checkpoint, FakeServer(kernels[0], tamper=tamper), asked)
    found = verdicts(asked, evidence)
    assert found["N3", Phase.PREFILL].verdict is Outcome.VIOLATED
    assert "p2 decision 3" in found["N3", Phase.PREFILL].reason
    assert found["S2", Phase.PREFILL].verdict is not Outcome.HOLDS
    assert found["N3", Phase.DECODE].verdict is Outcome.HOLDS


def test_another_prompt_is_refused_and_leaves_nothing(tiny_checkpoint, kernels, tmp_path):
    def tamper(choice, body):
        choice["prompt_token_ids"] = choice["prompt_token_ids"][1:]

    with pytest.raises(IdsDiffer):
        run(
            tiny_checkpoint,
            FakeServer(kernels[0], tamper=tamper),
            document(ALL),
            records=tmp_path / "r.parquet",
        )
    assert list(tmp_path.iterdir()) == []


def test_ids_the_training_kernel_does_not_know_are_refused(tiny_checkpoint, kernels):
    def tamper(choice, body):
        choice["logprobs"]["top_logprobs"][0]["token_id:300"] = -50.0

    with pytest.raises(VocabulariesDiffer, match="token 300 is outside the vocabulary of 259"):
        run(tiny_checkpoint, FakeServer(kernels[0], tamper=tamper), document(ALL))


def test_a_contract_that_asks_more_than_is_known_is_refused(tiny_checkpoint, kernels):
    asked = document(ALL)
    pair = asked.pair.model_copy(update={"inference": {"engine": "openai", "dtype": "bfloat16"}})
    with pytest.raises(PairMismatch, match="dtype must be 'bfloat16', and the build does not say what it is"):
        run(tiny_checkpoint, FakeServer(kernels[0]), asked.model_copy(update={"pair": pair}))
    with pytest.raises(PairMismatch, match="engine must be 'torch-serving', not 'openai'"):
        run(tiny_checkpoint, FakeServer(kernels[0]), contract(ALL))
    said = asked.pair.model_copy(
        update={"inference": {"engine": "openai", "model": "tiny", "version": "1.2.3"}}
    )
    assert run(tiny_checkpoint, FakeServer(kernels[0]), asked.model_copy(update={"pair": said})).prompts == 5


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        ("{temperature: 0.6}", "temperature 0.6, .*cannot be rescaled without the tail"),
        ("{temperature: 1.0, top_p: 0.9}", "normalised over the kept tokens"),
    ],
)
def test_what_truncated_log_probs_cannot_say_is_refused_before_anything_runs(
    tiny_checkpoint, kernels, sampling, words
):
    server = FakeServer(kernels[0])
    with pytest.raises(UnmeasurableServer, match=words):
        run(tiny_checkpoint, server, document(TV % (0.1, ""), sampling=sampling))
    assert server.asked == []


def test_a_server_does_not_train(tiny_checkpoint, kernels):
    asked = document(ALL)
    pair = asked.pair.model_copy(update={"train": {"engine": "openai"}})
    with pytest.raises(UnmeasurableServer, match="inference kernel only"):
        run(
            tiny_checkpoint, FakeServer(kernels[0]), asked.model_copy(update={"pair": pair}),
            train=parse_build(f"openai:url={URL}"),
        )  # fmt: skip


def test_who_may_be_asked(monkeypatch):
    made = []
    monkeypatch.setattr(partial, "OpenAIServer", lambda url, **options: made.append((url, options)))
    monkeypatch.delenv("KC_OPENAI_SERVERS", raising=False)
    far = parse_build("openai:url=https://far.example/v1,model=m,api_key=FAR_API_KEY,timeout=7")
    with pytest.raises(UnmeasurableServer, match="list it in KC_OPENAI_SERVERS"):
        listed(far)
    listed(parse_build("openai:url=http://[::1]:8000"))
    monkeypatch.setenv("KC_OPENAI_SERVERS", "http://other, https://far.example/v1/")
    with pytest.raises(UnmeasurableServer, match="the environment has no FAR_API_KEY"):
        listed(far)
    monkeypatch.setenv("FAR_API_KEY", "k")
    listed(far)
    monkeypatch.delenv("KC_OPENAI_SERVERS")
    anywhere(far)
    assert [url for url, _ in made] == ["http://[::1]:8000", "https://far.example", "https://far.example"]
    assert made[-1][1] == {"model": "m", "api_key": "k", "timeout_s": 7.0}
    with pytest.raises(UnmeasurableServer, match="needs the server's address"):
        anywhere(parse_build("openai:model=m"))
