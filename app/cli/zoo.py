"""`kc test-contract --zoo`: checks what it was given, then runs `python -m workers.zoo`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from app.cli.builds import spec
from app.cli.contracts import contract
from app.cli.errors import USAGE, CliError
from app.cli.evaluate import measure
from app.cli.processes import need_measurement


def run(file: Path, prompts: int | None, options: Mapping[str, object], *, as_json: bool, quiet: bool) -> int:
    """Exit status: 0 nothing that applies is missed, 1 something is, 2 bad usage, 4 not measured.

    Args:
        prompts: must be None: how many prompts there are, the suite says.
        options: checkpoint, and train, inference, suite and faults or None.

    Raises CliError before anything heavy is loaded when a file is missing, a build or fault cannot be, or
    the contract has errors.
    """
    contract(file)
    if prompts is not None:
        raise CliError("--prompts is for power on synthetic pairs; with --zoo the suite says how many", USAGE)
    checkpoint, suite = options.get("checkpoint"), options.get("suite")
    if not isinstance(checkpoint, Path) or not checkpoint.is_dir():
        raise CliError(
            f"--zoo needs --checkpoint, a directory of weights and tokenizer, not {checkpoint}", USAGE
        )
    if isinstance(suite, Path) and not suite.is_file():
        raise CliError(f"{suite}: no such suite", USAGE)
    arguments = ["--contract", str(file), "--checkpoint", str(checkpoint)]
    for name in ("train", "inference"):
        if options.get(name) is not None:
            arguments += [f"--{name}", spec(str(options[name]))]
    if suite is not None:
        arguments += ["--suite", str(suite)]
    if options.get("faults") is not None:
        faults = str(options["faults"])
        spec("torch", faults.split(","))
        arguments += ["--faults", faults]
    need_measurement()
    arguments += ["--json"] * as_json + ["--quiet"] * quiet
    return measure(arguments, "workers.zoo")
