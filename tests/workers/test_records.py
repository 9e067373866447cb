"""Records: everything that was measured comes back, or no file is there."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pyarrow.parquet as pq
import pytest

from contracts.model import Phase, Sampling
from contracts.slices import Attributes
from tests.workers.tiny import make_requests
from workers import records as module
from workers.drift import SIDES, metric_names
from workers.kernels.protocol import Request
from workers.kernels.torch_graph import TorchGraph
from workers.kernels.torch_serving import TorchServing
from workers.paired import PairedPrompt, PhaseDrift, paired
from workers.records import SCHEMA_VERSION, RecordsWriter

KS = (10,)


@pytest.fixture(scope="module")
def prompts(tiny_checkpoint):
    kernels = TorchGraph(tiny_checkpoint), TorchServing(tiny_checkpoint)
    return list(paired(*kernels, make_requests(8), Sampling(), ks=KS))


def attributes(prompt, i):
    return Attributes(
        prompt.prompt_tokens, "python" if i % 2 else None, frozenset({"long", "a"} if i % 3 else ())
    )


def write(path, prompts, **options):
    with RecordsWriter(path, ks=KS, **options) as writer:
        for i, prompt in enumerate(prompts):
            writer.add(prompt, attributes(prompt, i))
    return writer.ref


@pytest.mark.parametrize("rows", [1, 50, 10**6])
def test_every_number_comes_back(prompts, tmp_path, monkeypatch, rows):
    monkeypatch.setattr(module, "_ROWS", rows)
    ref = write(tmp_path / "records.parquet", prompts)
    read = pq.read_table(tmp_path / "records.parquet").to_pylist()
    assert ref.rows == len(read) == sum(prompt.decisions for prompt in prompts)
    rows_left = iter(read)
    for i, prompt in enumerate(prompts):
        known = attributes(prompt, i)
        for phase, found in prompt.phases.items():
            for j in range(len(found.values["kl"])):
                row = next(rows_left)
                assert (row["draw"], row["phase"]) == (prompt.request.id, phase.value)
                assert row["index"] == found.offset + j
                assert row["token"] == prompt.token_ids[found.offset + j + 1]
                assert (row["language"], row["tags"]) == (known.language, sorted(known.tags))
                assert row["prompt_tokens"] == prompt.prompt_tokens
                for name in (*metric_names(KS), *SIDES):
                    assert row[name] == (found.values | found.sides)[name][j]


def test_the_reference_is_of_the_file(prompts, tmp_path):
    path = tmp_path / "new" / "records.parquet"
    ref = write(path, prompts)
    assert ref.digest == "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
    assert ref.uri == "records.parquet"
    assert write(path, prompts, uri="s3://bucket/r.parquet").uri == "s3://bucket/r.parquet"
    assert list(path.parent.iterdir()) == [path]
    assert pq.read_schema(path).metadata[b"schema_version"] == str(SCHEMA_VERSION).encode()


def test_a_failure_leaves_nothing_and_an_older_file_alone(prompts, tmp_path):
    path = tmp_path / "records.parquet"
    path.write_bytes(b"older")

    def fails():
        with RecordsWriter(path, ks=KS) as writer:
            writer.add(prompts[0], attributes(prompts[0], 0))
            raise KeyError("interrupted")

    with pytest.raises(KeyError):
        fails()
    assert path.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [path]


def test_there_is_no_reference_before_the_end(tmp_path):
    writer = RecordsWriter(tmp_path / "r.parquet", ks=KS)
    with pytest.raises(RuntimeError, match="not finished"):
        _ = writer.ref
    with writer:
        pass
    assert writer.ref.rows == 0


def test_an_unmeasurable_decision_is_kept_as_nan(tmp_path):
    values = {name: np.full(2, math.nan) for name in metric_names(KS)} | {"unmeasurable": np.ones(2)}
    phase = PhaseDrift(0, values, {name: np.full(2, math.nan) for name in SIDES})
    prompt = PairedPrompt(Request("a", (1, 2, 3), ()), (1, 2, 3), 3, {Phase.PREFILL: phase}, 0.0, 0.0, False)
    write(tmp_path / "r.parquet", [prompt])
    (kl, _) = pq.read_table(tmp_path / "r.parquet")["kl"].to_pylist()
    assert math.isnan(kl)


def test_a_decision_takes_at_most_200_bytes(tmp_path):
    source = np.random.default_rng(0)
    n = 20_000
    names = (*metric_names(KS), *SIDES)
    values = {name: source.random(n) for name in names}
    sides = {name: values.pop(name) for name in SIDES}
    request = Request("a", tuple(range(n + 1)), ())
    prompt = PairedPrompt(
        request, request.prompt_ids, n, {Phase.PREFILL: PhaseDrift(0, values, sides)}, 0.0, 0.0, False
    )
    ref = write(tmp_path / "r.parquet", [prompt])
    assert (tmp_path / "r.parquet").stat().st_size / ref.rows <= 200
