"""Kernels are loaded once a pair, never more than two at a time, and never kept after a failure."""

import pytest

from contracts.builds import parse_build
from workers import kept
from workers.kept import KeptKernels, fresh

TRAIN, GOOD, OTHER = (parse_build(f"torch-serving:dtype={d}") for d in ("float32", "bfloat16", "float16"))


class Kernel:
    def __init__(self, log, name):
        self.log, self.name = log, name
        log.append(f"load {name}")

    def close(self):
        self.log.append(f"close {self.name}")


@pytest.fixture
def log(monkeypatch):
    seen = []
    monkeypatch.setattr(kept, "open_kernel", lambda build, _path: Kernel(seen, build.options["dtype"]))
    return seen


def use(opened, tmp_path, *builds, digest="sha256:a"):
    for build in builds:
        with opened(build, tmp_path, digest):
            pass


def test_a_pair_is_loaded_once(log, tmp_path):
    use(KeptKernels(), tmp_path, TRAIN, GOOD, TRAIN, GOOD)
    assert log == ["load float32", "load bfloat16"]


def test_room_is_made_before_a_third_is_loaded(log, tmp_path):
    use(KeptKernels(), tmp_path, TRAIN, GOOD, TRAIN, OTHER)
    assert log[2:] == ["close bfloat16", "load float16"]


def test_other_weights_are_another_kernel(log, tmp_path):
    opened = KeptKernels()
    use(opened, tmp_path, GOOD)
    use(opened, tmp_path, GOOD, digest="sha256:b")
    assert log == ["load bfloat16", "load bfloat16"]


def test_one_whose_process_has_ended_is_loaded_again(log, tmp_path):
    opened = KeptKernels()
    with opened(GOOD, tmp_path, "d") as kernel:
        kernel.alive = False
    use(opened, tmp_path, GOOD, digest="d")
    assert log == ["load bfloat16", "close bfloat16", "load bfloat16"]


def test_a_failure_closes_what_was_in_use(log, tmp_path):
    opened = KeptKernels()
    with pytest.raises(KeyError), opened(TRAIN, tmp_path, "d"), opened(GOOD, tmp_path, "d"):
        raise KeyError
    assert log[2:] == ["close bfloat16", "close float32"]
    use(opened, tmp_path, TRAIN)
    assert log[-1] == "load float32"


def test_a_fresh_one_is_closed_after_the_block(log, tmp_path):
    use(fresh, tmp_path, TRAIN, TRAIN)
    assert log == ["load float32", "close float32"] * 2
