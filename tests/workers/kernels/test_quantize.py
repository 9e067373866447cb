"""Weight-only quantisation: near the weights it rounds, and named by its scales."""

from __future__ import annotations

import pytest

from contracts.model import Sampling
from tests.workers.tiny import make_requests
from workers.kernels.models import read_model
from workers.kernels.quantize import CannotQuantize, quantize
from workers.kernels.torch_graph import TorchGraph
from workers.kernels.torch_serving import TorchServing

pytest.importorskip("torchao")


def drift(one, other):
    requests = make_requests(4)
    pairs = zip(one.trace(requests, Sampling()), other.trace(requests, Sampling()), strict=True)
    return max(
        float((one.logits(a.states) - other.logits(b.states)).abs().max()) for a, b in pairs if len(a.states)
    )


def test_more_bits_are_nearer(tiny_checkpoint):
    whole = TorchGraph(tiny_checkpoint)
    gaps = {w: drift(whole, TorchGraph(tiny_checkpoint, weights=w)) for w in ("int8", "int4")}
    assert 0.0 < gaps["int8"] < gaps["int4"] / 4


@pytest.mark.parametrize("engine", [TorchGraph, TorchServing])
def test_the_scales_are_in_the_fingerprint(tiny_checkpoint, engine):
    prints = {w: engine(tiny_checkpoint, dtype="float32", weights=w).fingerprint() for w in ("int8", "int4")}
    for weights, found in prints.items():
        assert found.quantization == weights
        assert found.scales.startswith("sha256:")
    assert prints["int8"].scales != prints["int4"].scales
    assert engine(tiny_checkpoint, dtype="float32").fingerprint().scales is None
    again = engine(tiny_checkpoint, dtype="float32", weights="int8").fingerprint()
    assert again == prints["int8"]


def test_a_matrix_int4_does_not_fit(tiny_checkpoint, monkeypatch):
    from workers.kernels import quantize as module

    monkeypatch.setattr(module, "GROUP", 48)
    model = read_model(tiny_checkpoint, dtype="float32", attn="sdpa")
    with pytest.raises(CannotQuantize, match="32 inputs"):
        quantize(model, "int4")


def test_without_the_library_it_says_what_to_install(tiny_checkpoint, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(CannotQuantize, match="needs torchao"):
        TorchGraph(tiny_checkpoint, weights="int8")
