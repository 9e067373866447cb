"""A kernel has its own process unless whoever runs this says otherwise."""

import sys

import pytest

from contracts.builds import InvalidBuild, parse_build
from workers import opening
from workers.environments import UnknownEnvironment
from workers.kernels import loading, remote
from workers.opening import memory_limit, open_kernel, shared


@pytest.fixture
def opened(monkeypatch):
    seen = []
    monkeypatch.setattr(loading, "load", lambda build, _path: seen.append("here"))
    monkeypatch.setattr(remote, "RemoteKernel", lambda build, _path, *how: seen.append(how))
    for name in ("KC_KERNEL_PROCESSES", "KC_KERNEL_MEMORY", "KC_PYTHONS"):
        monkeypatch.delenv(name, raising=False)
    return seen


def test_its_own_process_by_default(opened, tmp_path):
    open_kernel(parse_build("torch"), tmp_path)
    python, limits = opened[0]
    assert python is None
    assert limits.memory_bytes is None


def test_in_this_process_where_that_is_said(opened, tmp_path, monkeypatch):
    monkeypatch.setenv("KC_KERNEL_PROCESSES", "shared")
    open_kernel(parse_build("torch"), tmp_path)
    assert opened == ["here"]


def test_a_named_environment_or_a_limit_always_means_its_own(opened, tmp_path, monkeypatch):
    monkeypatch.setenv("KC_KERNEL_PROCESSES", "shared")
    monkeypatch.setenv("KC_PYTHONS", f"mine={sys.executable}")
    open_kernel(parse_build("torch:python=mine"), tmp_path)
    monkeypatch.setenv("KC_KERNEL_MEMORY", "2 GiB")
    open_kernel(parse_build("torch"), tmp_path)
    named, limited = opened
    assert (str(named[0]), named[1].memory_bytes) == (sys.executable, None)
    assert (limited[0], limited[1].memory_bytes) == (None, 2**31)


def test_a_name_nobody_knows(opened, tmp_path):
    with pytest.raises(UnknownEnvironment, match="nobody"):
        open_kernel(parse_build("torch:python=nobody"), tmp_path)


def test_an_engine_installed_here_needs_no_environment_of_its_own(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "_MODULES", {"vllm": "json"})
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    open_kernel(parse_build("vllm"), tmp_path)
    assert str(opened[0][0]) == sys.executable


@pytest.mark.parametrize(("text", "limit"), [("", None), ("8GiB", 8 * 2**30), ("1000", 1000)])
def test_limits(text, limit):
    assert memory_limit({"KC_KERNEL_MEMORY": text}) == limit


@pytest.mark.parametrize("text", ["much", "-1", "0"])
def test_what_is_no_limit(text):
    with pytest.raises(InvalidBuild, match="KC_KERNEL_MEMORY"):
        memory_limit({"KC_KERNEL_MEMORY": text})


def test_what_is_neither():
    with pytest.raises(InvalidBuild, match="own or shared"):
        shared({"KC_KERNEL_PROCESSES": "yes"})
