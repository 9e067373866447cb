"""What happens in the demo, in order, and how it is told."""

from __future__ import annotations

import math
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from app.cli.client import ControlPlane
from app.cli.demo_plan import BUILDS, CHECKPOINT, KNOWN_GOOD, TRAIN, Plan
from app.cli.demo_processes import Processes, free_port
from app.cli.demo_traffic import Users, read_prompts
from app.cli.errors import CliError
from app.cli.render import TITLES, headline, judgement_table

HOST = "127.0.0.1"
SERVER_S = 240.0  # a serving engine takes its time to start
OFFLINE_S = 600.0  # an evaluation that takes longer is not going to end
LIVE_S = 300.0  # so does one of live traffic
POLL_S = 0.5
STILL = 8  # looks without anything new, after which nothing more is on its way
STOPPED = ("frozen", "fallen_back")


class Story:
    """The demo's acts. `home` is where everything of it is kept."""

    def __init__(self, console: Console, processes: Processes, home: Path, plan: Plan) -> None:
        self.console = console
        self.processes = processes
        self.home = home
        self.plan = plan
        self.ports = {
            name: free_port(port) for name, port in zip(("api", "gateway"), (8321, 8322), strict=True)
        }
        self.endpoints = {
            build: f"http://{HOST}:{free_port(8331 + i)}" for i, build in enumerate(plan.served)
        }
        self.api = ControlPlane(f"http://{HOST}:{self.ports['api']}")
        self.builds = BUILDS | plan.builds
        self.contract = ""

    @property
    def checkpoint(self) -> Path:
        """Where the converted checkpoint is."""
        return self.home / "artifacts" / "checkpoints" / CHECKPOINT

    @property
    def suite(self) -> Path:
        """The evaluation suite's file."""
        return self.home / "artifacts" / "suites" / f"{self.plan.suite}.jsonl"

    @property
    def traffic(self) -> Path:
        """The prompts users send; none of them is in the suite."""
        return self.home / "artifacts" / "suites" / "traffic.jsonl"

    def play(self) -> None:
        """All of it. Raises CliError when something does not go as it should."""
        self.say("A real checkpoint and real prompts")
        self.prepare()
        self.say("The control plane, with everything registered")
        self.start_control_plane()
        self.register()
        self.start_servers()
        self.console.print(f"Watch it on the status page: {self.api.url}/", highlight=False)
        self.say(f"A faulty build: {self.plan.faulty}")
        self.console.print("Its rotary base is 10,000; the model was trained with 100,000.", highlight=False)
        self.stop_the_faulty_build()
        self.say(f"A good build: {self.plan.candidate}")
        self.console.print(
            f"{self.builds[self.plan.candidate]} against the known-good {KNOWN_GOOD}.", highlight=False
        )
        identity = self.promote_the_good_build()
        self.close(identity)

    def say(self, heading: str) -> None:
        """Begin an act."""
        self.console.print()
        self.console.rule(f"[bold]{heading}", align="left")

    def prepare(self) -> None:
        """Convert the checkpoint and cut the prompts, unless an earlier run did."""
        store = self.checkpoint.parent
        self.processes.run("the checkpoint", "workers.checkpoint_import", "--store", str(store))
        tokenizer = str(self.checkpoint / "tokenizer.json")
        counts = [word for kind, n in self.plan.prompts.items() for word in (f"--{kind}", str(n))]
        for pool, file, more in (("suite", self.suite, counts), ("traffic", self.traffic, ())):
            if file.exists():  # written in one piece, and the same every time
                continue
            arguments = ("--tokenizer", tokenizer, "--out", str(file), "--pool", pool, *more)
            self.processes.run(f"the {pool}", "workers.stdlib_suite", *arguments)

    def start_control_plane(self) -> None:
        """API, status page, scheduler and one worker."""
        port = str(self.ports["api"])
        self.processes.start("serve", "app.cli.main", "serve", "--host", HOST, "--port", port)
        self.processes.wait_healthy("serve", f"{self.api.url}/healthz")

    def register(self) -> None:
        """Everything by its content; what an earlier run registered is left as it is."""
        text = (Path(__file__).parents[2] / "contracts" / "examples" / self.plan.contract).read_bytes()
        made = self.api.register_contract(text)
        self.contract = f"{made['name']}@{made['version']}"
        self.api.register("checkpoints", name=CHECKPOINT, path=str(self.checkpoint))
        for name, spec in self.builds.items():
            self.api.register("kernel-builds", name=name, spec=spec)
        self.api.register("suites", name=self.plan.suite, path=str(self.suite))
        self.start_over()
        self.api.register(
            "deployments", name=self.plan.deployment, known_good=KNOWN_GOOD, endpoints=self.endpoints
        )

    def start_over(self) -> None:
        """End what an earlier run left active, so that the known-good build serves again."""
        for promotion in self.api.promotions():
            if promotion["deployment"] == self.plan.deployment and promotion["active"]:
                self.api.act(promotion["id"], "abort", reason="the demo starts over")

    def start_servers(self) -> None:
        """A kernel server for each build that may serve, and the gateway."""
        for build, url in self.endpoints.items():
            port = url.rpartition(":")[2]
            self.processes.start(
                build, "workers.serve",
                "--build", self.builds[build], "--checkpoint", str(self.checkpoint), "--port", port,
            )  # fmt: skip
        for build, url in self.endpoints.items():
            self.processes.wait_healthy(build, f"{url}/health", SERVER_S)
        port = str(self.ports["gateway"])
        self.processes.start(
            "gateway", "app.gateway.main", "--deployment", self.plan.deployment, "--port", port
        )
        self.processes.wait_healthy("gateway", f"http://{HOST}:{port}/healthz")

    def promote(self, build: str) -> str:
        """Start a promotion of `build`; its id."""
        started = self.api.start(
            deployment=self.plan.deployment,
            contract=self.contract,
            checkpoint=CHECKPOINT,
            train=TRAIN,
            inference=build,
            suite=self.plan.suite,
        )
        return str(started["id"])

    def stop_the_faulty_build(self) -> None:
        """Offline CI stops it before any user meets it."""
        identity = self.promote(self.plan.faulty)
        state = self.offline_ci(identity)
        judged = self.show(identity, "offline_ci", 0, state["plans"])
        if state["status"] not in STOPPED or state["stage"] != "offline_ci":
            raise CliError(f"the faulty build was not stopped: it is {state['status']} in {state['stage']}")
        self.console.print(f"[bold red]{_words(state)} in offline CI.[/] {headline(judged)}", highlight=False)

    def offline_ci(self, identity: str) -> Any:
        """Wait until offline CI is over; the promotion's state then."""
        with _bar(self.console) as progress:
            task = progress.add_task("paired evaluation of the suite", total=1.0)
            state = self.look(identity, _offline_is_over, OFFLINE_S, self.follow(identity, progress, task))
        if not _offline_is_over(state):
            raise CliError(f"the evaluation of promotion {identity} did not end in {OFFLINE_S:g} s")
        return state

    def promote_the_good_build(self) -> str:
        """Offline CI, shadow, canary, full; its id. Raises CliError when it is not PROMOTED."""
        identity = self.promote(self.plan.candidate)
        state = self.offline_ci(identity)
        self.show(identity, "offline_ci", 0, state["plans"])
        url = f"http://{HOST}:{self.ports['gateway']}"
        prompts = read_prompts(self.traffic)
        with Users(
            url, self.plan.deployment, prompts, at_once=self.plan.at_once, max_tokens=self.plan.max_tokens
        ) as users:
            while state["status"] != "promoted":
                if state["status"] == "awaiting_approval":
                    self.console.print(f"Approving the stage [bold]{TITLES[state['pending_approval']]}[/].")
                    state = self.api.act(identity, "approve")
                elif state["status"] == "measuring" and state["stage"] != "offline_ci":
                    state = self.live(identity, state, users)
                else:
                    raise CliError(
                        f"the good build is {state['status']} in {state['stage']}: {state['reason']}"
                    )
        self.console.print("[bold green]Promoted.[/] It serves every user now.")
        return identity

    def live(self, identity: str, state: Any, users: Users) -> Any:
        """Users go on asking until this stage (this canary step) is over; the state then."""
        stage, step, plans = state["stage"], state["step"], state["plans"]
        here = (stage, step, "measuring")
        sent, count = 0, _requests_needed(stage, step, plans)
        while _place(state) == here:
            if sent + count > self.plan.most:
                raise CliError(f"{sent} requests were not enough to decide {stage}")
            with _counting(self.console) as progress:
                task = progress.add_task(f"{TITLES[stage]}: users served", total=count)
                users.send(count, lambda: progress.advance(task))  # noqa: B023
            sent, count = sent + count, self.plan.batch
            state = self.measured(identity, here)
        self.show(identity, stage, step, plans)
        return state

    def measured(self, identity: str, here: tuple[str, int, str]) -> Any:
        """The state once what was served is judged, or is too little to be evaluated."""
        judged = len(self.api.judgements(identity))
        looks: list[int] = []

        def over(state: Any) -> bool:
            if _place(state) != here or len(self.api.judgements(identity)) > judged:
                return True
            if any(job["state"] in ("queued", "leased") for job in self.api.jobs(identity)):
                return False
            waiting = self.api.waiting(identity)
            looks.append(waiting["requests"])
            # Copies of what users were answered come in a little later.
            still = len(looks) > STILL and len(set(looks[-STILL:])) == 1
            return bool(still and waiting["dual_evaluated"] < waiting["min_prompts"])

        with _bar(self.console) as progress:
            task = progress.add_task(f"{TITLES[here[0]]}: paired evaluation of what was served", total=1.0)
            return self.look(identity, over, LIVE_S, self.follow(identity, progress, task))

    def follow(self, identity: str, progress: Progress, task: TaskID) -> Callable[[], None]:
        """What moves a bar to where the promotion's latest evaluation is."""

        def move() -> None:
            jobs = self.api.jobs(identity)
            if jobs and jobs[-1]["progress"] is not None:
                progress.update(task, completed=jobs[-1]["progress"])

        return move

    def look(
        self, identity: str, over: Callable[[Any], bool], seconds: float, meanwhile: Callable[[], None]
    ) -> Any:
        """The promotion's state once `over` says so, or after so many seconds."""
        ends = time.monotonic() + seconds
        while True:
            state = self.api.promotion(identity)
            if over(state) or time.monotonic() > ends:
                return state
            self.processes.check()
            meanwhile()
            time.sleep(POLL_S)

    def show(self, identity: str, stage: str, step: int, plans: Any) -> Any:
        """Print the last verdict table of a stage; the judgement."""
        judged = [
            one for one in self.api.judgements(identity) if (one["stage"], one["step"]) == (stage, step)
        ]
        if not judged:
            raise CliError(f"{stage} ended without a judgement: {self.api.promotion(identity)['reason']}")
        self.console.print(judgement_table(judged[-1], plans))
        return judged[-1]

    def close(self, identity: str) -> None:
        """Say where to look on."""
        home = self.home.relative_to(Path.cwd()) if self.home.is_relative_to(Path.cwd()) else self.home
        self.say("The status page")
        self.console.print(
            f"Everything above is kept in {home}. To look at it:\n\n"
            f"    KC_HOME={home} {_command(Path(sys.argv[0]), Path.cwd())} serve\n\n"
            f"and open http://{HOST}:8321/promotions/{identity}",
            highlight=False,
        )


def _command(program: Path, here: Path) -> str:
    """How this `kc` is called from `here`: `.venv/bin/kc` need not be on the PATH."""
    if program.name != "kc" or str(program.parent) in os.environ.get("PATH", "").split(os.pathsep):
        return "kc"
    return shlex.quote(str(program.relative_to(here) if program.is_relative_to(here) else program))


def _requests_needed(stage: str, step: int, plans: Any) -> int:
    """So many that about as many as the stage asks for are evaluated: those the candidate answers."""
    share = {
        "shadow": plans["shadow"]["mirror"],
        "canary": plans["canary"]["steps"][step],
        "full": plans["full"]["audit_rate"],
    }[stage]
    # Which ones is by chance: a few more, so that they are enough at once.
    margin = 0 if share == 1.0 else 8
    return margin + math.ceil(int(plans[stage]["min_prompts"]) / float(share))


def _offline_is_over(state: Any) -> bool:
    # More of the same suite would not decide it either: undecided is an outcome here.
    return _place(state) != ("offline_ci", 0, "measuring") or state["undecided"] is not None


def _words(state: Any) -> str:
    return str(state["status"]).replace("_", " ").capitalize()


def _place(state: Any) -> tuple[str, int, str]:
    return state["stage"], state["step"], state["status"]


def _bar(console: Console) -> Progress:
    bar = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    return Progress(SpinnerColumn(), TextColumn("{task.description}"), *bar, console=console)


def _counting(console: Console) -> Progress:
    bar = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(SpinnerColumn(), TextColumn("{task.description}"), *bar, console=console)
