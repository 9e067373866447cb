"""`kc evaluate`: checks what it was given, then runs the measurement as `python -m workers.evaluate`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.cli.builds import spec
from app.cli.errors import NOT_MEASURED, USAGE, CliError
from app.cli.lint import findings, line
from app.cli.processes import need_measurement


def run(
    contract: Path,
    checkpoint: Path,
    train: str,
    inference: str,
    suite: Path,
    out: Path | None,
    *,
    as_json: bool,
    quiet: bool = False,
    faults: Sequence[str] = (),
    rewards: str | None = None,
) -> int:
    """Exit status of the measurement: 0 converged, 1 violated, 3 inconclusive, 2 bad usage, 4 not measured.

    Raises CliError before anything heavy is loaded when a file is missing, a build cannot be, or
    the contract has errors.
    """
    _check_contract(contract)
    train, inference = spec(train), spec(inference, faults)
    _check_paths(checkpoint, suite)
    need_measurement()
    arguments = ["--contract", str(contract), "--checkpoint", str(checkpoint)]
    arguments += ["--train", train, "--inference", inference, "--suite", str(suite)]
    if out is not None:
        arguments += ["--out", str(out)]
    if rewards is not None:
        arguments += ["--rewards", rewards]
    if as_json:
        arguments.append("--json")
    if quiet:
        arguments.append("--quiet")
    return measure(arguments)


def judge_again(folder: Path, contract: Path, *, as_json: bool) -> int:
    """Judge what an evaluation left in `folder` under another contract; exit status as :func:`run`.

    Raises CliError when a file is missing or the contract has errors.
    """
    _check_contract(contract)
    if not (folder / "evidence.json").is_file():
        raise CliError(f"{folder}: no evidence.json; give what `kc evaluate --out` wrote", USAGE)
    need_measurement()
    arguments = [str(folder), "--contract", str(contract)]
    return measure([*arguments, "--json"] if as_json else arguments, "workers.rejudge")


def probe(
    contract: Path,
    checkpoint: Path,
    suite: Path,
    options: Mapping[str, object],
    *,
    as_json: bool,
    quiet: bool,
) -> int:
    """Load a candidate and a baseline in turns; exit status as :func:`run`.

    Raises CliError when a file is missing, a build cannot be, or the contract has errors.
    """
    _check_contract(contract)
    _check_paths(checkpoint, suite)
    need_measurement()
    arguments = ["--contract", str(contract), "--checkpoint", str(checkpoint), "--suite", str(suite)]
    for name, value in options.items():
        if name in ("candidate", "baseline") and not str(value).startswith(("http://", "https://")):
            value = spec(str(value))  # noqa: PLW2901 - as it is written in one way
        if value is not None:
            arguments += [f"--{name}", str(value)]
    arguments += ["--json"] * as_json + ["--quiet"] * quiet
    return measure(arguments, "workers.probe")


def calibrate(
    checkpoint: Path,
    train: str,
    inference: str,
    suite: Path,
    temperature: float,
    *,
    as_json: bool,
    quiet: bool,
) -> int:
    """Run each kernel against itself; exit status 0 measured, 2 bad usage, 4 not measured.

    Raises CliError when a file is missing or a build cannot be.
    """
    train, inference = spec(train), spec(inference)
    _check_paths(checkpoint, suite)
    need_measurement()
    arguments = ["--checkpoint", str(checkpoint), "--train", train, "--inference", inference]
    arguments += ["--suite", str(suite), "--temperature", str(temperature)]
    arguments += ["--json"] * as_json + ["--quiet"] * quiet
    return measure(arguments, "workers.calibrate")


def measure(arguments: list[str], module: str = "workers.evaluate") -> int:
    """Run `python -m module` with these arguments; a signal that ended it becomes NOT_MEASURED."""
    process = subprocess.Popen([sys.executable, "-m", module, *arguments])
    try:
        status = process.wait()
    except KeyboardInterrupt:  # the terminal interrupted it as well: wait until it has cleaned up
        process.wait()
        raise
    return NOT_MEASURED if status < 0 else status


def _check_contract(contract: Path) -> None:
    try:
        text = contract.read_bytes()
    except OSError as error:
        raise CliError(f"{contract}: {error.strerror or error}", USAGE) from None
    errors = [one for one in findings(text, str(contract)) if one.severity == "error"]
    if errors:
        raise CliError("the contract has errors\n" + "\n".join(map(line, errors)), USAGE)


def _check_paths(checkpoint: Path, suite: Path) -> None:
    if not checkpoint.is_dir():
        raise CliError(f"{checkpoint}: no such checkpoint directory", USAGE)
    if not suite.exists() or suite.is_dir():
        raise CliError(f"{suite}: no such suite", USAGE)
