"""How fast is torch float32 against vLLM bfloat16 over the full vocabulary, beside what it must do anyway?

    python -m benchmarks.vllm_pair [CHECKPOINT] [--tokens 6000] [--repeats 3] [--threads 2] [--write]

One run, one set of prompts, repeats interleaved, the best of each counts:

* r_train: torch float32, the logits of every position, nothing done with them;
* r_inf: vLLM bfloat16, the same, inside its own process;
* paired: both, and every drift metric of every decision, vLLM in its own process, as an evaluation
  has it; no way of doing both in turn is faster than 1 / (1/r_train + 1/r_inf) (theory.md section 6);
* its K_inf side alone: vLLM's logits of every position, handed to this process;
* the public API: vLLM asked for `prompt_logprobs=-1`, on the first prompts only.

On a machine that others use too, `--clock cpu --threads 1` counts CPU seconds of the processes at work.

Also bytes of records per decision, and peak memory after N and after 4 N prompts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import psutil
import torch

from benchmarks._report import machine, table
from contracts.builds import parse_build
from contracts.model import Sampling
from contracts.slices import Attributes
from workers.checkpoint_import import import_checkpoint
from workers.drift import compiled
from workers.environments import UnknownEnvironment, interpreter
from workers.kernels.loading import load
from workers.kernels.protocol import Kernel, Request
from workers.kernels.remote import RemoteKernel
from workers.paired import paired
from workers.records import RecordsWriter

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "docs" / "benchmarks" / "vllm_pair.md"
DEMO = ROOT / ".kc" / "demo" / "artifacts" / "checkpoints"
TRAIN, INFERENCE = "torch:dtype=float32", "vllm:dtype=bfloat16"
TARGET, TARGET_PUBLIC, TARGET_BYTES = 0.9, 15.0, 200
BLOCK = 128
SAMPLING = Sampling()


def prompts(tokens: int, vocab_size: int) -> list[Request]:
    source = random.Random(0)
    made: list[Request] = []
    while sum(request.most_tokens for request in made) < tokens:
        ids = tuple(source.randrange(vocab_size) for _ in range(source.randint(64, 640)))
        made.append(Request(f"r{len(made)}", ids, ()))
    return made


def every_logit(kernel: Kernel, requests: Sequence[Request]) -> None:
    with torch.inference_mode():
        for start in range(0, len(requests), 16):
            for trace in kernel.trace(requests[start : start + 16], SAMPLING):
                for at in range(0, len(trace.states), BLOCK):
                    kernel.logits(trace.states[at : at + BLOCK])


class Bare:
    """The engine alone, in its own process."""

    def __init__(self, checkpoint: Path, requests: Sequence[Request], threads: int, clock: str) -> None:
        self.clock = clock
        with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
            json.dump([request.prompt_ids for request in requests], file)
        self.file = Path(file.name)
        self.process = subprocess.Popen(
            [interpreter("vllm"), "-m", "benchmarks._vllm_bare", checkpoint, file.name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert "ready" in self.answer()

    def answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                found: dict[str, float] = json.loads(line)
                return found
        raise RuntimeError(f"the bare engine ended with status {self.process.wait()}")

    def seconds(self, what: str, count: int) -> float:
        assert self.process.stdin is not None
        print(what, count, file=self.process.stdin, flush=True)
        return self.answer()[self.clock]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.file.unlink()


class Clock:
    """Seconds of the wall, or CPU seconds of this process and the kernel's."""

    def __init__(self, name: str, kernel: RemoteKernel) -> None:
        self.cpu, self.kernel = name == "cpu", psutil.Process(kernel.pid)

    def now(self) -> float:
        if not self.cpu:
            return time.perf_counter()
        times = self.kernel.cpu_times()
        return time.process_time() + times.user + times.system

    def seconds(self, run: Callable[[], object]) -> float:
        started = self.now()
        run()
        return self.now() - started


@contextmanager
def closing(kernel: RemoteKernel) -> Iterator[RemoteKernel]:
    try:
        yield kernel
    finally:
        kernel.close()


def peak(kernel: RemoteKernel) -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + kernel.peak_bytes


def record(train: Kernel, inference: Kernel, requests: Sequence[Request]) -> float:
    """Bytes of the records, per decision."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "records.parquet"
        with RecordsWriter(file, ks=(10,)) as writer:
            for prompt in paired(train, inference, requests, SAMPLING, ks=(10,)):
                writer.add(prompt, Attributes(prompt_tokens=prompt.prompt_tokens, language="en"))
        return file.stat().st_size / sum(len(request.prompt_ids) - 1 for request in requests)


def measure(given: argparse.Namespace) -> str:
    train = load(parse_build(TRAIN), given.checkpoint)
    requests = prompts(given.tokens, train.vocab_size)
    decisions = sum(request.most_tokens - 1 for request in requests)
    few = requests[: given.public]
    few_decisions = sum(request.most_tokens - 1 for request in few)
    compiled()  # as an evaluation of this size and more does; its seconds are not the pair's
    bare = Bare(given.checkpoint, requests, given.threads, given.clock)
    try:
        with closing(
            RemoteKernel(parse_build(INFERENCE), given.checkpoint, interpreter("vllm"))
        ) as inference:
            print("both engines run; warming up", flush=True)
            warm = [replace(request, prompt_ids=request.prompt_ids[:200]) for request in requests[:4]]
            list(paired(train, inference, warm, SAMPLING, ks=(10,)))
            bare.seconds("bare", 4)
            clock, rounds = Clock(given.clock, inference), []
            for _ in range(given.repeats):
                rounds.append(
                    (
                        decisions / clock.seconds(lambda: every_logit(train, requests)),
                        decisions / bare.seconds("bare", len(requests)),
                        decisions
                        / clock.seconds(lambda: list(paired(train, inference, requests, SAMPLING, ks=(10,)))),
                        decisions / clock.seconds(lambda: every_logit(inference, requests)),
                        few_decisions / bare.seconds("public", len(few)),
                    )
                )
                print(" ".join(f"{rate:.0f}" for rate in rounds[-1]), flush=True)
            size = record(train, inference, requests)
            before = peak(inference)
            again = [replace(r, id=f"{r.id}-{n}") for n in range(4) for r in requests]
            list(paired(train, inference, again, SAMPLING, ks=(10,)))
            after = peak(inference)
    finally:
        bare.close()
    return page(given, decisions, rounds, size, (before, after))


def page(
    given: argparse.Namespace,
    decisions: int,
    rounds: Sequence[tuple[float, ...]],
    size: float,
    peaks: tuple[int, int],
) -> str:
    r_train, r_inf, both, side, public = (max(column) for column in zip(*rounds, strict=True))
    bound = 1 / (1 / r_train + 1 / r_inf)
    shares = [r[2] / (1 / (1 / r[0] + 1 / r[1])) for r in rounds]
    rows = [
        ["r_train: torch float32, all logits", f"{r_train:.0f}", ""],
        ["r_inf: vLLM bfloat16, all logits", f"{r_inf:.0f}", ""],
        ["bound 1 / (1/r_train + 1/r_inf)", f"{bound:.0f}", ""],
        ["paired, every metric", f"{both:.0f}", f"{both / bound:.2f} of the bound, to reach {TARGET}"],
        [
            "K_inf side alone",
            f"{side:.0f}",
            f"{side / public:.1f} x the public API, to reach {TARGET_PUBLIC:g}",
        ],
        ["public API, `prompt_logprobs=-1`", f"{public:.1f}", ""],
    ]
    text = [
        "# torch float32 against vLLM bfloat16", "",
        f"{machine()}, torch {torch.__version__}; {given.threads} threads a process, {given.clock} clock, "
        f"best of {len(rounds)} interleaved; {decisions} decisions, V = {given.vocabulary}.", "",
        table(["what", "tokens/s", "ratio"], rows), "",
        f"The paired share round by round: {', '.join(f'{share:.2f}' for share in shares)} "
        f"(median {statistics.median(shares):.2f}).", "",
        f"Records: {size:.0f} bytes per decision, to stay below {TARGET_BYTES}. Nothing else is written.", "",
        f"Peak resident memory of both processes: {peaks[0] / 1e9:.2f} GB after these prompts, "
        f"{peaks[1] / 1e9:.2f} GB after four times as many.", "",
        f"Again: `python -m benchmarks.vllm_pair --tokens {given.tokens} "
        f"--threads {given.threads} --clock {given.clock} --write`, with an environment `vllm`.", "",
    ]  # fmt: skip
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, nargs="?", help="a directory; the demo's when left out")
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--public", type=int, default=1, help="prompts of the public API")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    given = parser.parse_args()
    try:
        interpreter("vllm")
    except UnknownEnvironment as error:
        print(f"not measured: {error}")
        return
    given.checkpoint = given.checkpoint or import_checkpoint(DEMO)
    torch.set_num_threads(given.threads)
    given.vocabulary = json.loads((given.checkpoint / "config.json").read_text())["vocab_size"]
    text = measure(given)
    print(text)
    if given.write:
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
