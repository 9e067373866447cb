"""Measure a kernel pair against a contract and say whether it converges; needs no server.

Exit status: 0 converged, 1 violated, 3 inconclusive or no data, 2 bad usage or contract,
4 could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.services.checkpoints import InvalidCheckpoint, checkpoint_digests
from app.services.suites import InvalidSuite, Suite, read_suite
from contracts.builds import BuildSpec, InvalidBuild
from contracts.document import Document, InvalidContract, read
from contracts.evidence import Evidence, Provenance
from contracts.generations import Form
from contracts.model import Stage
from contracts.verdicts import Judgement
from workers.progress import Report, bar, silent

if TYPE_CHECKING:
    from rich.table import Table

CONVERGED, VIOLATED, USAGE, INCONCLUSIVE, NOT_MEASURED = 0, 1, 2, 3, 4
INTERRUPTED = 130
SHARD = "suite"
WIDTH = 150
_SHOWN = ("clause", "metric", "slice", "phase", "observed", "limit", "n", "interval", "verdict")


class BadUsage(Exception):
    """What was given cannot be evaluated; the message is for the person who gave it."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything read and checked, before anything heavy is loaded."""

    document: Document
    checkpoint: Path
    train: BuildSpec
    inference: BuildSpec
    suite: Suite
    provenance: Provenance


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate as the arguments say; returns the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        inputs = read_inputs(arguments)
        evidence, judgement = _measure(
            inputs, arguments.out, rewards=arguments.rewards, quiet=arguments.quiet
        )
    except BadUsage as error:
        print(f"kc evaluate: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("kc evaluate: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - whatever it is, it was not measured
        print(f"kc evaluate: could not be measured: {type(error).__name__}: {error}", file=sys.stderr)
        return NOT_MEASURED
    if arguments.out is not None:
        try:
            write(arguments.out / "run.json", _run_of(inputs))
            write(arguments.out / "evidence.json", evidence.canonical())
            write(arguments.out / "judgement.json", judgement.model_dump_json(indent=2).encode())
        except OSError as error:
            print(f"kc evaluate: {arguments.out}: cannot be written: {error}", file=sys.stderr)
            return NOT_MEASURED
    show(judgement, as_json=arguments.json)
    return status(judgement)


def status(judgement: Judgement) -> int:
    """The exit status that says how the pair was judged."""
    return {True: CONVERGED, False: VIOLATED, None: INCONCLUSIVE}[judgement.converged]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kc evaluate", description=__doc__, allow_abbrev=False)
    parser.add_argument("--contract", type=Path, required=True, help="the contract, a YAML file")
    parser.add_argument("--checkpoint", type=Path, required=True, help="directory of weights and tokenizer")
    parser.add_argument("--train", required=True, help="training kernel: engine:key=value,... or a JSON file")
    parser.add_argument("--inference", required=True, help="serving kernel, likewise")
    parser.add_argument("--suite", type=Path, required=True, help="prompts, one JSON object a line")
    parser.add_argument("--out", type=Path, help="directory for evidence, judgement and records")
    parser.add_argument(
        "--rewards",
        choices=("paired", "weighted"),
        help="how clauses on rewards are measured; paired without",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


def read_inputs(arguments: argparse.Namespace) -> Inputs:
    """Read and check everything given, cheapest first. Raises BadUsage."""
    document = _contract(arguments.contract)
    train, inference = _build("train", arguments.train), _build("inference", arguments.inference)
    _writable(arguments.out)
    from workers.draws import InvalidEvaluation
    from workers.pair import refuse_other_builds, refuse_truncated_ratios

    try:
        refuse_truncated_ratios(document.contract, Stage.OFFLINE_CI)
        refuse_other_builds(document.contract, train, inference)
        suite = read_suite(arguments.suite)
        digests = checkpoint_digests(arguments.checkpoint)
        suite = read_suite(arguments.suite, digests.tokenizer)
    except InvalidSuite as error:
        raise BadUsage(f"the suite cannot be used\n{error}") from None
    except InvalidCheckpoint as error:
        raise BadUsage(f"the checkpoint cannot be used: {error}") from None
    except InvalidEvaluation as error:
        raise BadUsage(str(error)) from None
    provenance = Provenance(
        contract=document.digest,
        checkpoint=digests.digest,
        train_build=train.digest,
        inference_build=inference.digest,
        suite=suite.digest,
        stage=Stage.OFFLINE_CI,
    )
    return Inputs(document, arguments.checkpoint, train, inference, suite, provenance)


def _contract(file: Path) -> Document:
    try:
        text = file.read_bytes()
    except OSError as error:
        raise BadUsage(f"{file}: {error.strerror or error}") from None
    try:
        return read(text, str(file))
    except InvalidContract as error:
        raise BadUsage(f"the contract has errors\n{error}") from None


def _build(side: str, text: str) -> BuildSpec:
    from workers.kernels.builds import read_build

    try:
        return read_build(text)
    except InvalidBuild as error:
        raise BadUsage(f"--{side} {text}: {error}") from None


def _writable(out: Path | None) -> None:
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadUsage(f"--out {out}: {error.strerror or error}") from None


def _measure(
    inputs: Inputs, out: Path | None, *, rewards: Form | None = None, quiet: bool
) -> tuple[Evidence, Judgement]:
    from contracts.judge import judge
    from workers.draws import InvalidEvaluation, suite_draws
    from workers.evaluation import evaluate
    from workers.partial import anywhere
    from workers.tokens import BadTokenizer

    contract, provenance = inputs.document.contract, inputs.provenance
    with nullcontext(silent) if quiet else bar("evaluating") as progress:
        report: Report = progress
        try:
            draws = suite_draws(inputs.suite, inputs.checkpoint)
            evidence = evaluate(
                contract,
                provenance,
                inputs.checkpoint,
                inputs.train,
                inputs.inference,
                draws,
                shard=SHARD,
                records=out / "records.parquet" if out else None,
                rewards=rewards,
                progress=report,
                connect=anywhere,  # whoever types the command names the server
            )
        except (InvalidEvaluation, BadTokenizer) as error:
            raise BadUsage(str(error)) from None
    return evidence, judge(contract, evidence, contract_digest=provenance.contract)


def _run_of(inputs: Inputs) -> bytes:
    """What was measured, by its names, for those who look at the records later."""
    names = {
        "checkpoint": str(inputs.checkpoint.absolute()),
        "train": str(inputs.train),
        "inference": str(inputs.inference),
    }
    return json.dumps(names, indent=2).encode()


def write(file: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def for_machines(judgement: Judgement) -> dict[str, Any]:
    """The judgement as `--json` prints it: an interval is [low, high], null where it is open."""
    # Through pydantic's JSON, in which a number that is not finite is null.
    values: dict[str, Any] = json.loads(judgement.model_dump_json())
    for verdict in values["verdicts"]:
        verdict["interval"] = [verdict["interval"]["low"], verdict["interval"]["high"]]
    return values


def show(judgement: Judgement, *, as_json: bool) -> None:
    """Print a judgement: its verdicts as a table with a headline, or as JSON."""
    if as_json:
        print(json.dumps(for_machines(judgement), indent=2, ensure_ascii=False, allow_nan=False))
        return
    from rich.console import Console

    from contracts import report

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)  # a file or a log has no width to fold into
    console.print(_table(judgement))
    console.print(report.headline(judgement), markup=False, highlight=False)


def _table(judgement: Judgement) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from contracts import report

    styles = {"HOLDS": "green", "VIOLATED": "bold red", "UNMEASURABLE": "bold red"}
    table = Table(box=box.SIMPLE_HEAD)
    for column in _SHOWN:
        right = column in {"observed", "limit", "n", "interval"}
        table.add_column(column, justify="right" if right else "left", no_wrap=not right, overflow="fold")
    for row in report.rows(judgement):
        cells = [Text(getattr(row, column)) for column in _SHOWN]
        cells[-1].stylize(styles.get(row.verdict, "yellow"))
        table.add_row(*cells)
    return table


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # half-written files go, as on an interrupt
    sys.exit(main())
