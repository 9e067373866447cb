"""How fast is the paired evaluation, against the two bare forward passes it cannot do without?

    python -m benchmarks.paired_evaluation [CHECKPOINT] [--tokens 6000] [--threads 2] [--write]

One run, one set of requests, two workloads (teacher-forced prefill; prefill and decode). For each:
r_train and r_inf are tokens/s of each kernel giving the logits of every position and doing nothing
with them; the paired evaluation does both and all drift metrics. No way of doing both in turn is
faster than 1 / (1/r_train + 1/r_inf) (theory.md section 6). Runs are interleaved and the best of
`--repeats` counts. On a machine that others use too, `--clock cpu --threads 1` counts this process's
CPU seconds instead of the wall's.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from contracts.builds import parse_build
from contracts.model import Sampling
from workers.checkpoint_import import import_checkpoint
from workers.drift import compiled
from workers.kernels.loading import load
from workers.kernels.protocol import Kernel, Request
from workers.paired import paired

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "docs" / "benchmarks" / "paired_evaluation.md"
DEMO = ROOT / ".kc" / "demo" / "artifacts" / "checkpoints"
TARGET, ALLOWANCE = 0.8, 10**9
BLOCK = 128
SAMPLING = Sampling()


@dataclass(frozen=True)
class Row:
    workload: str
    tokens: int
    r_train: float
    r_inf: float
    paired: float

    @property
    def bound(self) -> float:
        return 1 / (1 / self.r_train + 1 / self.r_inf)


def workloads(tokens: int, vocab_size: int) -> dict[str, list[Request]]:
    source = random.Random(0)

    def requests(prompt: tuple[int, int], output: int, share: float) -> list[Request]:
        made: list[Request] = []
        while sum(r.most_tokens for r in made) < tokens * share:
            prompt_ids = tuple(source.randrange(vocab_size) for _ in range(source.randint(*prompt)))
            output_ids = tuple(source.randrange(vocab_size) for _ in range(output))
            made.append(Request(f"r{len(made)}", prompt_ids, output_ids))
        return made

    return {
        "prefill, prompts of 64 to 640 tokens": requests((64, 640), 0, 1.0),
        "prompts of 32 to 128 tokens, 32 decoded": requests((32, 128), 32, 0.5),
    }


def bare(kernel: Kernel, requests: Sequence[Request]) -> None:
    with torch.inference_mode():
        for trace in kernel.trace(requests, SAMPLING):
            for start in range(0, len(trace.states), BLOCK):
                kernel.logits(trace.states[start : start + BLOCK])


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def seconds(run: Callable[[], object], clock: Callable[[], float]) -> float:
    started = clock()
    run()
    return clock() - started


def measure(
    name: str, train: Kernel, inference: Kernel, requests: list[Request], repeats: int, clock: str
) -> Row:
    runs = (
        lambda: bare(train, requests),
        lambda: bare(inference, requests),
        lambda: sum(prompt.decisions for prompt in paired(train, inference, requests, SAMPLING, ks=(10,))),
    )
    best = [
        min(times)
        for times in zip(
            *([seconds(run, CLOCKS[clock]) for run in runs] for _ in range(repeats)), strict=True
        )
    ]
    decisions = sum(r.most_tokens - 1 for r in requests)
    return Row(name, decisions, *(decisions / t for t in best))


def machine(threads: int) -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    cpu = next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
    return f"{cpu}, {threads} threads, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def table(
    rows: Sequence[Row], builds: tuple[str, str], weights: int, peak: int, setting: str, again: str
) -> str:
    lines = [
        "# Paired evaluation against its bound", "",
        f"{setting}; training `{builds[0]}`, inference `{builds[1]}`.", "",
        "Tokens a second of that clock: the bare forward passes with all logits, and the paired",
        "evaluation with every drift metric over the full vocabulary; its share of the bound",
        f"1 / (1/r_train + 1/r_inf), to reach: {TARGET}.", "",
        "| workload | tokens | r_train | r_inf | bound | paired | share |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *(f"| {r.workload} | {r.tokens} | {r.r_train:.0f} | {r.r_inf:.0f} | {r.bound:.0f} | {r.paired:.0f} "
          f"| {r.paired / r.bound:.2f} |" for r in rows), "",
        f"Peak resident memory {peak / 1e9:.2f} GB; weights {weights / 1e9:.2f} GB on disk, "
        f"to stay below twice that and 1 GB: {(2 * weights + ALLOWANCE) / 1e9:.2f} GB.", "",
        f"Again: `python -m benchmarks.paired_evaluation {again} --write`.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, nargs="?", help="a directory; the demo's when left out")
    parser.add_argument("--train", default="torch:dtype=float32")
    parser.add_argument("--inference", default="torch-serving:dtype=bfloat16")
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    given = parser.parse_args()
    given.checkpoint = given.checkpoint or import_checkpoint(DEMO)
    torch.set_num_threads(given.threads)
    train = load(parse_build(given.train), given.checkpoint)
    inference = load(parse_build(given.inference), given.checkpoint)
    compiled()  # as an evaluation of this size and more does; its seconds are not the pair's
    warm = [replace(r, output_ids=(5, 6, 7)) for r in workloads(200, inference.vocab_size).popitem()[1]]
    list(paired(train, inference, warm, SAMPLING, ks=(10,)))
    rows = [
        measure(name, train, inference, requests, given.repeats, given.clock)
        for name, requests in workloads(given.tokens, inference.vocab_size).items()
    ]
    weights = sum(file.stat().st_size for file in given.checkpoint.glob("*.safetensors"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    setting = f"{machine(given.threads)}, {given.clock} clock"
    again = f"--tokens {given.tokens} --threads {given.threads} --clock {given.clock}"
    text = table(rows, (given.train, given.inference), weights, peak, setting, again)
    print(text)
    if given.write:
        RESULT.parent.mkdir(parents=True, exist_ok=True)
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
