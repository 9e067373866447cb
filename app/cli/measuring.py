"""The commands of `kc` that measure: signatures only, like `app.cli.main`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

measuring = typer.Typer()
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
ContractFile = Annotated[Path, typer.Option(help="The contract, a YAML file.")]
Checkpoint = Annotated[Path, typer.Option(help="Directory with safetensors weights and tokenizer.")]
Suite = Annotated[Path, typer.Option(help="Prompts, one JSON object a line.")]
Server = "A build to serve, `engine:key=value,...`, or a server's http:// address."


class Rewards(StrEnum):
    """How clauses on rewards are measured."""

    PAIRED = "paired"
    WEIGHTED = "weighted"


@measuring.command()
def evaluate(
    contract: ContractFile,
    checkpoint: Checkpoint,
    train: Annotated[str, typer.Option(help="Training kernel: `engine:key=value,...` or a file.")],
    inference: Annotated[str, typer.Option(help="Serving kernel: `engine:key=value,...` or a file.")],
    suite: Suite,
    out: Annotated[Path | None, typer.Option(help="Where evidence, judgement and records go.")] = None,
    fault: Annotated[
        list[str] | None, typer.Option(help="A fault, F1 to F18, put into the serving kernel; repeatable.")
    ] = None,
    rewards: Annotated[
        Rewards | None, typer.Option(help="How rewards are compared: `paired` generations, or `weighted`.")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure a kernel pair against a contract.

    Exit 0 converged, 1 violated, 3 inconclusive, 2 bad usage or contract, 4 could not be measured.
    """
    from app.cli.evaluate import run

    how = None if rewards is None else rewards.value
    raise typer.Exit(
        run(
            contract, checkpoint, train, inference, suite, out,
            faults=fault or [], rewards=how, as_json=json, quiet=quiet,
        )
    )  # fmt: skip


@measuring.command()
def judge(
    run: Annotated[Path, typer.Argument(help="Directory `kc evaluate --out` wrote.")],
    contract: ContractFile,
    json: Json = False,
) -> None:
    """Judge a recorded measurement under another contract.

    No kernel runs. Exit as `kc evaluate`.
    """
    from app.cli.evaluate import judge_again as run_again

    raise typer.Exit(run_again(run, contract, as_json=json))


@measuring.command()
def worst(
    run: Annotated[
        str, typer.Argument(help="Directory of `kc evaluate --out`, or a promotion's id or its beginning.")
    ],
    metric: Annotated[str, typer.Option(help="By which recorded metric.")] = "kl",
    most: Annotated[int, typer.Option("--most", "-n", min=1, help="How many decisions.")] = 10,
    phase: Annotated[str | None, typer.Option(help="Only `prefill` or `decode`.")] = None,
    language: Annotated[str | None, typer.Option(help="Only prompts in this language.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only prompts with this tag.")] = None,
    draw: Annotated[str | None, typer.Option(help="Only the prompt of this id.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Whose tokenizer gives the text.")] = None,
    context: Annotated[int, typer.Option(min=0, help="Tokens of text on either side.")] = 12,
    json: Json = False,
) -> None:
    """Show the decisions that drifted furthest, with their text."""
    from app.cli.worst import run as look

    options: dict[str, str | int | None] = {
        "metric": metric, "most": most, "phase": phase, "language": language, "tag": tag, "draw": draw,
        "context": context,
    }  # fmt: skip
    raise typer.Exit(look(run, checkpoint, options, as_json=json))


@measuring.command()
def probe(
    contract: ContractFile,
    checkpoint: Checkpoint,
    suite: Suite,
    candidate: Annotated[str, typer.Option(help=Server)],
    baseline: Annotated[str, typer.Option(help=Server)],
    rate: Annotated[float, typer.Option(help="Arrivals a second, a Poisson process.")],
    seconds: Annotated[float, typer.Option(help="Of load each server gets.")] = 120.0,
    warm_up: Annotated[float, typer.Option(help="Seconds of load before, which do not count.")] = 10.0,
    block: Annotated[float, typer.Option(help="Seconds of one server's turn.")] = 15.0,
    timeout: Annotated[float, typer.Option(help="Seconds after which a request has failed.")] = 120.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Length of an answer at most.")] = 32,
    seed: Annotated[int, typer.Option(help="Of arrivals and prompts.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Where evidence and judgement go.")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure runtime drift under load.

    Candidate and baseline are loaded in turns; the contract's runtime clauses are judged. Exit as
    `kc evaluate`.
    """
    from app.cli.evaluate import probe as run

    options = {
        "candidate": candidate, "baseline": baseline, "rate": rate, "seconds": seconds, "warm-up": warm_up,
        "block": block, "timeout": timeout, "max-tokens": max_tokens, "seed": seed, "out": out,
    }  # fmt: skip
    raise typer.Exit(run(contract, checkpoint, suite, options, as_json=json, quiet=quiet))


@measuring.command()
def calibrate(
    checkpoint: Checkpoint,
    train: Annotated[str, typer.Option(help="Training kernel: `engine:key=value,...` or a file.")],
    inference: Annotated[str, typer.Option(help="Serving kernel: `engine:key=value,...` or a file.")],
    suite: Suite,
    temperature: Annotated[float, typer.Option(help="Of sampling and of both distributions.")] = 1.0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure each kernel's noise floor.

    Runs each kernel against itself and proposes limits for a contract. Exit 0 measured, 2 bad usage,
    4 could not be measured.
    """
    from app.cli.evaluate import calibrate as run

    raise typer.Exit(run(checkpoint, train, inference, suite, temperature, as_json=json, quiet=quiet))
