"""Which faults of real engines does a contract catch, and which do generic checks let through?

    python -m benchmarks.fault_zoo CHECKPOINT [--faults F1,F8] [--out FILE] [--write FILE ...]

Each fault of the zoo goes into the bfloat16 serving program, on prompts cut from Python's standard
library. A contract (contracts/examples/every-fault.yaml) judges it, and so do three checks in common use:
perplexity of the prompts within 1 % of the clean serving program's, greedy text of short prompts equal to
the clean program's, and mean KL to the training graph below 0.01 nats. These run at temperature 1 and,
but for greedy text, teacher-forced on prompts alone, as such checks are run. `--out` keeps the rows as
JSON, so that a run can be in parts; `--write` makes the page of such files.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch

from app.services.checkpoints import TOKENIZER, checkpoint_digests
from app.services.suites import read_suite
from benchmarks._report import machine, table
from contracts.builds import parse_build
from contracts.document import read
from contracts.evidence import Provenance
from contracts.model import Sampling, Stage
from workers.draws import suite_draws
from workers.kernels.faults import FAULTS, Fault, FaultNotApplicable
from workers.kernels.protocol import Kernel, Request
from workers.paired import TokensDiffer, paired
from workers.stdlib_suite import Counts, build_suite
from workers.tokens import load_tokenizer
from workers.trials import Result, Zoo

ROOT = Path(__file__).resolve().parent.parent
CONTRACT = ROOT / "contracts" / "examples" / "every-fault.yaml"
RESULT = ROOT / "docs" / "benchmarks" / "fault_zoo.md"
TRAIN, INFERENCE = "torch:dtype=float32", "torch-serving:dtype=bfloat16"
COUNTS = Counts(function=18, docstring=4, safety=4, long=5)
GREEDY_PROMPTS, GREEDY_TOKENS = 6, 16
PERPLEXITY, MEAN_KL = 0.01, 0.01


@dataclass(frozen=True)
class Generic:
    """What the generic checks measured; None where nothing could be compared."""

    perplexity: float | None
    greedy: int | None
    mean_kl: float | None


@dataclass(frozen=True)
class Row:
    fault: str
    result: Result
    generic: Generic | None


class Checks:
    """The generic checks, against one clean pair."""

    def __init__(self, zoo: Zoo, requests: Sequence[Request]) -> None:
        self._zoo = zoo
        self._text = [replace(r, output_ids=()) for r in requests]
        short = sorted(requests, key=lambda r: len(r.prompt_ids))[-GREEDY_PROMPTS * 2 :][:GREEDY_PROMPTS]
        self._short = [replace(r, max_new_tokens=GREEDY_TOKENS) for r in short if len(r.prompt_ids) < 128]
        self._texts = self._greedy(zoo.sound)
        self._nll = self._teacher_forced(zoo.sound)[0]

    def of(self, kernel: Kernel) -> Generic:
        """Run them on a kernel."""
        nll, kl = self._teacher_forced(kernel)
        same = sum(a == b for a, b in zip(self._greedy(kernel), self._texts, strict=True))
        return Generic(float(np.exp(nll - self._nll)), same, kl)

    def _greedy(self, kernel: Kernel) -> list[list[int]]:
        return [t.token_ids for t in kernel.trace(self._short, Sampling(top_k=1))]

    def _teacher_forced(self, kernel: Kernel) -> tuple[float, float]:
        """Mean NLL and mean KL over all tokens that can be measured, float64."""
        found = [
            d for p in paired(self._zoo.train, kernel, self._text, Sampling()) for d in p.phases.values()
        ]
        nll = np.concatenate([d.sides["nll_inference"] for d in found])
        kl = np.concatenate([d.values["kl"] for d in found])
        return float(np.nanmean(nll)), float(np.nanmean(kl))  # as averages do that drop NaN


def run(checkpoint: Path, faults: Sequence[str]) -> list[Row]:
    document, digests = read(CONTRACT.read_bytes(), str(CONTRACT)), checkpoint_digests(checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "suite.jsonl"
        build_suite(load_tokenizer(checkpoint / TOKENIZER), file, COUNTS)
        suite = read_suite(file, digests.tokenizer)
    draws = suite_draws(suite, checkpoint)
    train, inference = parse_build(TRAIN), parse_build(INFERENCE)
    provenance = Provenance(
        contract=document.digest, checkpoint=digests.digest, train_build=train.digest,
        inference_build=inference.digest, suite=suite.digest, stage=Stage.OFFLINE_CI,
    )  # fmt: skip
    zoo = Zoo(document.contract, provenance, checkpoint, train, inference, draws)
    checks = Checks(zoo, [draw.request for draw in draws])
    rows = []
    if "clean" in faults:
        rows += [
            Row(one.id, one, checks.of(zoo.sound) if i == 0 else None) for i, one in enumerate(zoo.controls())
        ]
    for name in faults:
        if name in FAULTS:
            result = zoo.fault(FAULTS[name])
            rows.append(Row(name, result, generic(zoo, checks, FAULTS[name])))
            print(name, result.outcome, result.clause, result.observed, rows[-1].generic, flush=True)
    zoo.close()
    return rows


def generic(zoo: Zoo, checks: Checks, fault: Fault) -> Generic | None:
    try:
        with zoo.broken(fault) as kernel:
            return checks.of(kernel)
    except (FaultNotApplicable, TokensDiffer):
        return None


def page(rows: Sequence[dict[str, Any]]) -> str:
    head = ["fault", "", "by the contract", "clause", "slice, phase", "observed", "limit",
            "perplexity", "greedy text", "mean KL", "lets through"]  # fmt: skip
    order = [*FAULTS]
    rows = sorted(rows, key=lambda r: order.index(str(r["fault"])) if r["fault"] in order else -1)
    lines = [_line(row) for row in rows]
    return table(head, lines)


def _line(row: dict[str, Any]) -> list[str]:
    result, measured = row["result"], row["generic"]
    place = ", ".join(filter(None, (result["slice"], result["phase"])))
    clause = f"{result['clause']} {result['metric']}".strip()
    cells = [row["fault"], result["name"], result["outcome"], clause, place]
    cells += [result["observed"], result["limit"]]
    if measured is None:
        return [*cells, "", "", "", ""]
    off = abs(measured["perplexity"] - 1.0)
    passed = [
        name
        for name, ok in (
            ("perplexity", off <= PERPLEXITY),
            ("greedy", measured["greedy"] == GREEDY_PROMPTS),
            ("mean KL", measured["mean_kl"] <= MEAN_KL),
        )
        if ok
    ]
    numbers = [f"{100 * (measured['perplexity'] - 1):+.2f} %", f"{measured['greedy']} of {GREEDY_PROMPTS}",
               f"{measured['mean_kl']:.4f}"]  # fmt: skip
    return [*cells, *numbers, ", ".join(passed) or "none"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--faults", default="clean," + ",".join(FAULTS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--write", type=Path, nargs="+")
    given = parser.parse_args()
    if given.write:
        rows = [row for file in given.write for row in json.loads(file.read_text())]
        print(page(rows))
        _write(rows)
        return
    torch.set_num_threads(1)
    rows = [asdict(row) for row in run(given.checkpoint, given.faults.split(","))]
    print(page(rows))
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1))


def _write(rows: Sequence[dict[str, Any]]) -> None:
    through = {name: [] for name in ("perplexity", "greedy", "mean KL")}
    for row in rows:
        if row["fault"] in FAULTS and row["result"]["outcome"] == "caught" and row["generic"]:
            for name in set(_line(row)[-1].split(", ")) & through.keys():
                through[name].append(row["fault"])
    counts = "; ".join(f"{name} lets through {', '.join(found) or 'none'}" for name, found in through.items())
    short = COUNTS.function + COUNTS.docstring + COUNTS.safety
    RESULT.write_text(
        f"""# Faults of real engines: a contract, and three generic checks

SmolLM2-135M-Instruct, `{TRAIN}` against `{INFERENCE}` with each fault in it; {short} prompts
of 24 to 64 tokens and {COUNTS.long} of 512 to 540, 8 tokens generated after each. Contract:
`contracts/examples/every-fault.yaml`, at temperature 0.6. What the faults are: `docs/fault-zoo.md`.

The generic checks run at temperature 1. *Perplexity*: of the prompts, against the clean serving program;
passes within 1 %. *Greedy text*: {GREEDY_PROMPTS} short prompts, {GREEDY_TOKENS} tokens each, equal to the
clean program's. *Mean KL*: to the training graph over all prompt tokens; passes up to {MEAN_KL} nats.
The last column names those that let the fault through.

Of the faults that the contract catches, {counts}.

{page(rows)}

Machine: {machine()}, torch {torch.__version__}, one thread. Made by `python -m benchmarks.fault_zoo`.
"""
    )


if __name__ == "__main__":
    main()
