"""What is read out of llama.cpp's log, and that what is not there is not known."""

from __future__ import annotations

import pytest

from workers.kernels.llamacpp_log import attention, cache_types, devices, features, reason

LOADED = [
    (2, "llama_prepare_model_devices: using device CUDA0 (NVIDIA H200) (0000:1b:00.0) - 142000 MiB free"),
    (2, "llama_context: flash_attn            = enabled"),
    (2, "llama_kv_cache: size =   90.00 MiB (  4096 cells,  30 layers,  1/1 seqs), "
        "K (f16):   45.00 MiB, V (q8_0):   45.00 MiB"),
]  # fmt: skip


def test_a_context_says_what_it_runs():
    assert cache_types(LOADED) == ("f16", "q8_0")
    assert attention(LOADED) == "flash"
    assert devices(LOADED) == "CUDA0 NVIDIA H200"
    assert attention([(2, "llama_context: flash_attn            = disabled")]) == "graph"


def test_what_was_not_said_is_not_known():
    assert cache_types([]) == (None, None)
    assert attention([]) is None
    assert attention([(2, "llama_context: flash_attn            = auto")]) is None
    assert devices([]) == "cpu"


def test_two_caches_of_different_types_are_not_one():
    other = (2, "llama_kv_cache: size = 1.00 MiB, K (f32):   1.00 MiB, V (f32):   1.00 MiB")
    assert cache_types([*LOADED, other]) == (None, None)
    assert cache_types([*LOADED, LOADED[-1]]) == ("f16", "q8_0")


def test_the_last_error_is_the_reason():
    lines = [(4, "read past the end"), (4, "llama_model_load: error loading model"), (2, "done"), (4, "")]
    assert reason(lines) == "llama_model_load: error loading model"
    assert "does not say why" in reason([(3, "a warning")])


@pytest.mark.parametrize(
    ("system", "names"),
    [("CPU : SSE3 = 1 | AVX512 = 1 | AMX_INT8 = 0 | ", "AVX512,SSE3"), ("", "")],
)
def test_features(system, names):
    assert features(system) == names
