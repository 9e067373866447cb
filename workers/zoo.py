"""`kc test-contract --zoo`: which faults of real engines a contract would catch, on one's own checkpoint.

Torch kernels stand in for whichever engine serves; see `workers.trials`.

Exit status: 0 nothing applicable is missed and no control alarmed, 1 otherwise, 2 bad usage or contract,
4 could not be measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.services.checkpoints import CONFIG, TOKENIZER, InvalidCheckpoint, checkpoint_digests
from app.services.suites import InvalidSuite, read_suite
from contracts.builds import DTYPES, InvalidBuild
from contracts.document import InvalidContract, read
from contracts.evidence import Provenance
from contracts.model import Stage
from workers import evaluate as command
from workers.draws import InvalidEvaluation, suite_draws
from workers.kernels.builds import read_build
from workers.kernels.faults import FAULTS, parse_faults
from workers.kernels.faults.attention import WINDOW
from workers.kernels.protocol import KernelError
from workers.paired import PairingError
from workers.progress import bar, silent
from workers.stdlib_suite import Counts, NotEnoughText, build_suite
from workers.tokens import BadTokenizer, load_tokenizer
from workers.trials import ALARMED, BAD, CAUGHT, MISSED, NOT_APPLICABLE, PASSED, Result, Zoo, examine

if TYPE_CHECKING:
    from rich.table import Table

COUNTS = Counts(function=18, docstring=4, safety=4, long=6)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a contract against the zoo as the arguments say; returns the exit status."""
    given = _parser().parse_args(argv)
    try:
        with nullcontext(silent) if given.quiet else bar("the zoo") as progress:
            zoo, faults = _opened(given)
            try:
                results = examine(zoo, faults, progress)
            finally:
                zoo.close()
    except command.BadUsage as error:
        print(f"kc test-contract: {error}", file=sys.stderr)
        return command.USAGE
    except (KernelError, PairingError) as error:
        print(f"kc test-contract: could not be measured: {error}", file=sys.stderr)
        return command.NOT_MEASURED
    bad = [one for one in results if one.outcome in BAD]
    if given.json:
        print(json.dumps({"sound": not bad, "results": [asdict(one) for one in results]}, indent=2))
    else:
        _print(results)
    return 1 if bad else 0


def _opened(given: argparse.Namespace) -> tuple[Zoo, tuple[str, ...]]:
    """Everything read and checked, and the two kernels loaded. Raises BadUsage."""
    try:
        document = read(given.contract.read_bytes(), str(given.contract))
        pair = document.contract.pair
        train = read_build(given.train or f"torch:dtype={_dtype(pair.train, 'float32')}")
        inference = read_build(given.inference or f"torch-serving:dtype={_dtype(pair.inference, 'bfloat16')}")
        for build in (train, inference):
            if build.engine not in ("torch", "torch-serving") or "fault" in build.options:
                raise command.BadUsage(
                    f"{build}: the zoo breaks clean kernels of engines torch and torch-serving"
                )
        faults = parse_faults(given.faults.replace(",", "+")) if given.faults else tuple(FAULTS)
        digests = checkpoint_digests(given.checkpoint)
        with tempfile.TemporaryDirectory() as folder:
            suite = read_suite(
                given.suite or _default_suite(given.checkpoint, Path(folder)), digests.tokenizer
            )
        draws = suite_draws(suite, given.checkpoint)
        provenance = Provenance(
            contract=document.digest, checkpoint=digests.digest, train_build=train.digest,
            inference_build=inference.digest, suite=suite.digest, stage=Stage.OFFLINE_CI,
        )  # fmt: skip
    except OSError as error:
        raise command.BadUsage(f"{error.filename}: {error.strerror or error}") from None
    except InvalidContract as error:
        raise command.BadUsage(f"the contract has errors\n{error}") from None
    except (
        InvalidBuild,
        InvalidCheckpoint,
        InvalidSuite,
        InvalidEvaluation,
        BadTokenizer,
        NotEnoughText,
    ) as error:
        raise command.BadUsage(str(error)) from None
    return Zoo(document.contract, provenance, given.checkpoint, train, inference, draws), faults


def _dtype(predicate: dict[str, Any], default: str) -> str:
    asked = predicate.get("dtype")
    return str(asked) if asked in DTYPES else default


def _default_suite(checkpoint: Path, folder: Path) -> Path:
    """Prompts cut from the standard library, long ones where the model has room for them."""
    context = json.loads((checkpoint / CONFIG).read_bytes()).get("max_position_embeddings") or 2**31
    counts = COUNTS if context > WINDOW + 64 else replace(COUNTS, long=0)
    file = folder / "suite.jsonl"
    build_suite(load_tokenizer(checkpoint / TOKENIZER), file, counts)
    return file


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kc test-contract --zoo", description=__doc__, allow_abbrev=False)
    parser.add_argument("--contract", type=Path, required=True, help="the contract, a YAML file")
    parser.add_argument("--checkpoint", type=Path, required=True, help="directory of weights and tokenizer")
    parser.add_argument("--train", help="training kernel; by default torch at the contract's dtype")
    parser.add_argument(
        "--inference", help="serving kernel; by default torch-serving at the contract's dtype"
    )
    parser.add_argument("--suite", type=Path, help="prompts; by default some of Python's standard library")
    parser.add_argument("--faults", help="F1,F8,...; all of them without")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


def _print(results: Sequence[Result]) -> None:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, command.WIDTH)  # a file or a log has no width to fold into
    console.print(_table(results))
    for one in results:
        if one.outcome in (MISSED, ALARMED, NOT_APPLICABLE):
            console.print(f"{one.id} {one.outcome}: {one.reason}", markup=False, highlight=False)
    count = {word: sum(one.outcome == word for one in results) for word in (CAUGHT, MISSED, NOT_APPLICABLE)}
    alarms = sum(one.outcome == ALARMED for one in results)
    told = ", ".join(f"{n} {word}" for word, n in count.items())
    console.print(f"{told}; {alarms} false alarms.", markup=False, highlight=False)


def _table(results: Sequence[Result]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    styles = {CAUGHT: "green", PASSED: "green", MISSED: "bold red", ALARMED: "bold red"}
    table = Table(box=box.SIMPLE_HEAD)
    columns = ("id", "name", "outcome", "clause", "metric", "slice", "phase", "observed", "limit")
    for column in columns:
        table.add_column("fault" if column == "id" else column, overflow="fold")
    for one in results:
        cells = [Text(getattr(one, column)) for column in columns]
        cells[2].stylize(styles.get(one.outcome, "yellow"))
        table.add_row(*cells)
    return table


if __name__ == "__main__":
    sys.exit(main())
