"""The demo's acts against a scripted control plane: what it insists on."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from app.cli import demo_story
from app.cli.demo_plan import SHORT
from app.cli.demo_processes import Processes
from app.cli.errors import CliError
from contracts.model import StagePlans

MEASURING = ("offline_ci", 0, "measuring")
PLANS = StagePlans.model_validate(
    {"shadow": {"min_prompts": 3}, "canary": {"steps": [0.5]}, "full": {"audit_rate": 0.5, "min_prompts": 2}}
).model_dump(mode="json")


class Plane:
    """Answers with the next state of the script each time a promotion is read; the last one stays."""

    url = "http://kc.test"

    def __init__(self, *script: tuple[str, int, str]) -> None:
        self.script = list(script)
        self.calls: list[str] = []
        self.undecided: str | None = None

    def start(self, **values: Any) -> Any:
        self.calls.append(f"start {values['inference']}")
        return {"id": "p1"}

    def promotion(self, _: str) -> Any:
        stage, step, status = self.script[0]
        if len(self.script) > 1:
            self.script.pop(0)
        pending = "full" if status == "awaiting_approval" else None
        return {"stage": stage, "step": step, "status": status, "plans": PLANS, "pending_approval": pending,
                "reason": "S1 is violated", "undecided": self.undecided}  # fmt: skip

    def jobs(self, _: str) -> Any:
        return [{"state": "done", "progress": 0.5}]

    def waiting(self, _: str) -> Any:
        return {"requests": 2, "dual_evaluated": 1, "min_prompts": 2}

    def judgements(self, _: str) -> Any:
        stages = ("offline_ci", "shadow", "canary", "full")
        return [{"stage": stage, "step": 0} for stage in stages]

    def act(self, _: str, action: str, **values: Any) -> Any:
        self.calls.append(action)
        return self.promotion("")


class Users:
    """Counts whom it would have served."""

    sent: list[int]

    def __init__(self, *_: object, **__: object) -> None:
        Users.sent = []

    def __enter__(self) -> Users:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send(self, count: int, answered: Callable[[], None]) -> None:
        Users.sent.append(count)
        for _ in range(count):
            answered()


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., demo_story.Story]:
    monkeypatch.setattr(demo_story, "judgement_table", lambda judged, plans: f"table of {judged['stage']}")
    monkeypatch.setattr(demo_story, "headline", lambda judged: "S1 kl on slice all is 0.4, limit 0.02")
    monkeypatch.setattr(demo_story, "Users", Users)
    monkeypatch.setattr(demo_story, "read_prompts", lambda file: [])
    monkeypatch.setattr(demo_story.time, "sleep", lambda seconds: None)

    def made(*script: tuple[str, int, str]) -> demo_story.Story:
        console = Console(file=io.StringIO(), width=120)
        told = demo_story.Story(console, Processes(tmp_path, {}), tmp_path, SHORT)
        told.api.__exit__()
        told.api = Plane(*script)  # type: ignore[assignment]
        return told

    return made


def printed(story: demo_story.Story) -> str:
    return story.console.file.getvalue()  # type: ignore[attr-defined]


def test_the_faulty_build_is_stopped_in_plain_words(story: Callable[..., demo_story.Story]) -> None:
    told = story(MEASURING, MEASURING, ("offline_ci", 0, "frozen"))
    told.stop_the_faulty_build()
    assert told.api.calls == [f"start {SHORT.faulty}"]
    assert "Frozen in offline CI. S1 kl on slice all is 0.4, limit 0.02" in printed(told)


def test_a_faulty_build_that_gets_on_fails_the_demo(story: Callable[..., demo_story.Story]) -> None:
    with pytest.raises(CliError, match="was not stopped: it is measuring in shadow"):
        story(MEASURING, ("shadow", 0, "measuring")).stop_the_faulty_build()


def test_the_good_build_goes_through_every_stage(story: Callable[..., demo_story.Story]) -> None:
    told = story(
        MEASURING, ("shadow", 0, "measuring"), ("shadow", 0, "measuring"), ("canary", 0, "measuring"),
        ("canary", 0, "awaiting_approval"), ("full", 0, "measuring"), ("full", 0, "promoted"),
    )  # fmt: skip
    told.promote_the_good_build()
    assert told.api.calls == [f"start {SHORT.candidate}", "approve"]
    text = printed(told)
    assert [f"table of {stage}" in text for stage in ("offline_ci", "shadow", "canary", "full")] == [True] * 4
    assert "Promoted." in text


@pytest.mark.parametrize("status", ["frozen", "fallen_back", "aborted", "expired"])
def test_a_good_build_that_stops_fails_the_demo(story: Callable[..., demo_story.Story], status: str) -> None:
    with pytest.raises(CliError, match=rf"is {status} in shadow: S1 is violated"):
        story(MEASURING, ("shadow", 0, "measuring"), ("shadow", 0, status)).promote_the_good_build()


def test_undecided_offline_is_not_promoted(story: Callable[..., demo_story.Story]) -> None:
    told = story(MEASURING)
    told.api.undecided = "sha256:0"
    with pytest.raises(CliError, match="is measuring in offline_ci"):
        told.promote_the_good_build()


@pytest.mark.parametrize(("stage", "needed"), [("shadow", 3), ("canary", 10), ("full", 12)])
def test_users_ask_as_often_as_the_stage_needs(
    story: Callable[..., demo_story.Story], stage: str, needed: int
) -> None:
    told = story((stage, 0, "promoted"))
    told.live("p1", {"stage": stage, "step": 0, "status": "measuring", "plans": PLANS}, Users())
    assert Users.sent == [needed]


def test_a_stage_that_never_decides_ends(
    story: Callable[..., demo_story.Story], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = story(("shadow", 0, "measuring"))
    monkeypatch.setattr(told, "look", lambda identity, *_: told.api.promotion(identity))
    with pytest.raises(CliError, match="requests were not enough to decide shadow"):
        told.live("p1", told.api.promotion("p1"), Users())
    assert sum(Users.sent) <= SHORT.most


def test_how_this_program_is_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/there/bin")
    here = Path("/here")
    for program, called in {
        ".venv/bin/kc": ".venv/bin/kc",
        "/here/.venv/bin/kc": ".venv/bin/kc",
        "/a b/bin/kc": "'/a b/bin/kc'",
        "/there/bin/kc": "kc",
        "/here/app/cli/main.py": "kc",
    }.items():
        assert demo_story._command(Path(program), here) == called
