"""Names become interpreters by what the operator set, and never by what a build says."""

from pathlib import Path

import pytest

from contracts.builds import InvalidBuild, parse_build
from workers.environments import UnknownEnvironment, environment_of, interpreter, pythons


@pytest.fixture
def python(tmp_path):
    file = tmp_path / ".venv-vllm" / "bin" / "python"
    file.parent.mkdir(parents=True)
    file.touch()
    return file


@pytest.mark.parametrize(
    ("build", "name"),
    [
        ("torch", None),
        ("torch:python=old", "old"),
        ("vllm", "vllm"),
        ("vllm:python=vllm-next", "vllm-next"),
        ("llamacpp", "llamacpp"),
    ],
)
def test_where_a_build_runs(build, name):
    assert environment_of(parse_build(build)) == name


@pytest.mark.parametrize("name", ["/usr/bin/python", "../x", "a b", "a.b", "-x", "a" * 33])
def test_a_build_names_no_path(name):
    with pytest.raises(InvalidBuild, match="letters, digits and dashes"):
        parse_build({"engine": "torch", "python": name})


def test_a_name_that_is_set(python, tmp_path):
    settings = {"KC_PYTHONS": f"other=/nowhere/python, mine={python} ,"}
    assert interpreter("mine", settings, tmp_path / ".venv") == python


def test_a_name_that_is_not_set_is_looked_for_beside_this_environment(python, tmp_path):
    assert interpreter("vllm", {}, tmp_path / ".venv") == python


def test_what_is_set_goes_first(python, tmp_path):
    with pytest.raises(UnknownEnvironment, match="KC_PYTHONS says /nowhere/python, which is no file"):
        interpreter("vllm", {"KC_PYTHONS": "vllm=/nowhere/python"}, tmp_path / ".venv")


def test_a_name_nobody_knows(tmp_path):
    with pytest.raises(UnknownEnvironment, match="set KC_PYTHONS=vllm=/path/to/bin/python"):
        interpreter("vllm", {}, tmp_path / ".venv")


def test_several():
    assert pythons("a=/x, b=/y/z") == {"a": Path("/x"), "b": Path("/y/z")}


@pytest.mark.parametrize("text", ["vllm", "vllm=", "=/x", "vllm=bin/python"])
def test_what_is_not_a_name_and_a_path(text):
    with pytest.raises(UnknownEnvironment, match="KC_PYTHONS"):
        pythons(text)
