from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import pytest

from app.cli import demo
from app.cli.demo_plan import FULL, SHORT, Plan, on_vllm
from app.cli.errors import CliError
from contracts.builds import parse_build
from contracts.document import read
from contracts.lint import lint

EXAMPLES = Path(__file__).parents[3] / "contracts" / "examples"


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Path, Plan]]:
    """What would have been played, and where."""
    stories: list[tuple[Path, Plan]] = []

    class Story:
        def __init__(self, console: Any, processes: Any, home: Path, plan: Plan) -> None:
            stories.append((home, plan))

        def play(self) -> None:
            with pytest.raises(CliError, match="another demo is running"):
                demo.run(short=False)

    monkeypatch.setattr(demo, "Story", Story)
    monkeypatch.setenv("KC_HOME", str(tmp_path))
    return stories


@pytest.mark.parametrize(
    ("short", "vllm", "plan"),
    [(True, False, SHORT), (False, False, FULL), (True, True, on_vllm(SHORT)), (False, True, on_vllm(FULL))],
)
def test_one_demo_at_a_time_in_a_directory_of_its_own(
    played: list[tuple[Path, Plan]], tmp_path: Path, short: bool, vllm: bool, plan: Plan
) -> None:
    assert demo.run(short=short, vllm=vllm) == 0
    assert played == [(tmp_path / "demo", plan)]
    with (tmp_path / "demo" / "demo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # free again


@pytest.mark.parametrize("plan", [FULL, SHORT])
def test_the_contracts_can_be_certified_on_what_is_measured(plan: Plan) -> None:
    document = read((EXAMPLES / plan.contract).read_bytes(), plan.contract)
    assert lint(document) == []
    if plan.prompts:
        assert document.contract.stages.offline_ci.min_prompts == sum(plan.prompts.values())


def test_on_vllm_only_the_engine_that_serves_is_another() -> None:
    plan = on_vllm(SHORT)
    assert (plan.contract, plan.suite, plan.prompts) == (SHORT.contract, SHORT.suite, SHORT.prompts)
    builds = {name: parse_build(text) for name, text in plan.builds.items()}
    assert {build.engine for build in builds.values()} == {"vllm"}
    good, faulty = builds[plan.candidate].options, builds[plan.faulty].options
    assert faulty == {**good, "rope_theta": 10000}
