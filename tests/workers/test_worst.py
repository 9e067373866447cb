"""The worst decisions: found among all of them, by whatever metric, with their text."""

from __future__ import annotations

import json
import math

import pyarrow.parquet as pq
import pytest

from contracts.model import Sampling
from contracts.slices import Attributes
from tests.workers.tiny import make_requests
from workers import worst as module
from workers.kernels.torch_graph import TorchGraph
from workers.kernels.torch_serving import TorchServing
from workers.paired import paired
from workers.records import RecordsWriter
from workers.worst import Filter, NoRecords, main, with_text, worst

KS = (10,)


@pytest.fixture(scope="module")
def run(tiny_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    kernels = TorchGraph(tiny_checkpoint), TorchServing(tiny_checkpoint)
    prompts = list(paired(*kernels, make_requests(8), Sampling(), ks=KS))
    for part, mine in enumerate((prompts[:3], prompts[3:])):
        with RecordsWriter(folder / f"part-{part}.parquet", ks=KS) as writer:
            for i, prompt in enumerate(mine):
                tags = frozenset({"long"} if i % 2 else {"short", "safety"})
                writer.add(prompt, Attributes(prompt.prompt_tokens, "python" if part else None, tags))
    return folder


def rows(run):
    return [row for file in sorted(run.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]


@pytest.mark.parametrize("batch", [1, 7, 65_536])
@pytest.mark.parametrize("metric", ["kl", "log_ratio", "topk_agreement@10"])
def test_they_are_the_worst_of_all(run, monkeypatch, batch, metric):
    monkeypatch.setattr(module, "_ROWS", batch)
    found = worst(run, metric, 7)
    sign = 1 if metric.startswith("topk") else -1
    by_size = sorted(rows(run), key=lambda row: sign * (row[metric] if sign > 0 else abs(row[metric])))
    expected = [(row["draw"], row["index"], row[metric]) for row in by_size[:7]]
    assert [(one.draw, one.index, one.value) for one in found] == expected


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        (Filter(phase="decode"), lambda row: row["phase"] == "decode"),
        (Filter(language="python"), lambda row: row["language"] == "python"),
        (Filter(tag="safety"), lambda row: "safety" in row["tags"]),
        (
            Filter(tag="long", phase="prefill"),
            lambda row: "long" in row["tags"] and row["phase"] == "prefill",
        ),
        (Filter(tag="nowhere"), lambda row: False),
    ],
)
def test_only_among_those_asked_for(run, where, wanted):
    found = worst(run, "kl", 10**6, where)
    assert len(found) == sum(map(wanted, rows(run)))
    assert [one.value for one in found] == sorted(
        (row["kl"] for row in rows(run) if wanted(row)), reverse=True
    )


def test_an_unmeasurable_decision_is_the_worst(run, tmp_path):
    table = pq.read_table(run / "part-0.parquet")
    values = table.column("kl").to_pylist()
    values[5] = math.nan
    at = table.schema.get_field_index("kl")
    pq.write_table(table.set_column(at, table.schema.field("kl"), [values]), tmp_path / "one.parquet")
    first, second = worst(tmp_path / "one.parquet", "kl", 2)
    assert math.isnan(first.value)
    assert first.index == table.column("index").to_pylist()[5]
    assert not math.isnan(second.value)


def test_the_text_around_it(run, tiny_checkpoint):
    (one,) = with_text(run, worst(run, "kl", 1), tiny_checkpoint / "tokenizer.json", context=3)
    mine = {row["index"]: row["token"] for row in rows(run) if row["draw"] == one.draw}
    words = module.load_tokenizer(tiny_checkpoint / "tokenizer.json")
    assert one.realised == words.decode([mine[one.index]], skip_special_tokens=False)
    before = [mine[i] for i in range(one.index - 3, one.index) if i in mine]
    assert one.before == words.decode(before, skip_special_tokens=False)


def test_nothing_recorded_says_so(run, tmp_path):
    with pytest.raises(NoRecords, match="no records"):
        worst(tmp_path, "kl", 3)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(NoRecords, match="not a Parquet file"):
        worst(tmp_path, "kl", 3)
    with pytest.raises(NoRecords, match="no metric 'klr' is recorded; did you mean 'kl'"):
        worst(run, "klr", 3)


def test_the_command(run, tiny_checkpoint, capsys):
    assert main([str(run), "--most", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["value"] for one in found] == [one.value for one in worst(run, "kl", 2)]
    assert main([str(run), "--most", "2", "--tokenizer", str(tiny_checkpoint / "tokenizer.json")]) == 0
    text = capsys.readouterr().out
    assert "1. kl " in text
    assert text.count("⟦") == text.count("⟧") == 2  # which token each line is about
    assert main([str(run), "--tag", "nowhere"]) == 0
    assert "No such decision" in capsys.readouterr().out
    assert main([str(run), "--metric", "nope"]) == 2
    assert "kc worst:" in capsys.readouterr().err
