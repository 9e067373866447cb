"""Do we and llama.cpp's `llama-perplexity --kl-divergence` measure the same, and how fast is each?

    make install-llamacpp && python -m benchmarks.llama_perplexity [--chunks 20] [--threads 2] [--write]

The tool works in two steps: one pass of the base model writes its log-probabilities to a file, in
16 bits each, and one pass of the quantised model reads them back. It cuts the text into chunks of
`--chunk` tokens and scores the second half of each but the last token. We read the chunks out of
its file, run both models on the very same ids, and compare on the very same positions: what the
tool prints, what its arithmetic makes of our logits, and the divergence itself in float64.

Speed is of the whole flow, interleaved, best of `--repeats`: the tool's two processes, and ours from
loading both kernels to the finished records of every decision, of which each chunk has one less than tokens.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import site
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch

from benchmarks._llama_tool import Scores, Tool, chunks_in, models, tool_arithmetic
from benchmarks._report import machine, table
from contracts.builds import parse_build
from contracts.model import Phase, Sampling
from contracts.slices import Attributes
from workers.checkpoint_import import import_checkpoint
from workers.drift import compiled
from workers.kernels.loading import load
from workers.kernels.protocol import Kernel, Request, Trace
from workers.paired import PairedPrompt, paired
from workers.records import RecordsWriter

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "docs" / "benchmarks" / "llama_perplexity.md"
ENVIRONMENT = ROOT / ".venv-llamacpp"
DEMO = ROOT / ".kc" / "demo" / "artifacts" / "checkpoints"
MODULES = ("argparse", "ast", "calendar", "configparser", "heapq", "textwrap")
SAMPLING = Sampling()
TARGET = 1.5
PAGE = """# Paired evaluation and `llama-perplexity --kl-divergence`

{machine}; threads: {threads}; {clock} clock; {version}; SmolLM2-135M-Instruct as GGUF. Text: the standard
library's {modules} (SHA-256 {digest}...), {chunks} chunks of {chunk} tokens.

## Agreement

The tool scores positions {first} to {last} of every chunk. Both ran those chunks' ids, on the same llama.cpp.
"Errors away" is the distance from what the tool prints, in the standard errors it prints.

{agreement}

What is left between the rows is arithmetic. The tool leaves ids less likely than e^-16 out of the sum; what
they would add is mostly negative, about -1e-5 nats here, a few thousandths of the mean. It keeps the base's
log-probabilities in 65,536 steps over 16 nats, by which one decision is off by up to 5e-5 either way and a
mean over hundreds by less than 1e-6; top-1 ties closer than a step go to the lower id. And it sums
differences of float32 logarithms and prints six decimals, so that a divergence below 1e-6 drowns. Ours is
float64 from the engine's float32 logits on, every term positive, over the whole vocabulary (theory.md
section 2).

## Speed

From loading both models to the last decision's record on disk, the tool's two processes and ours; not
counted are importing Python packages and compiling the reductions, seconds once. Interleaved, best of the
runs, by the clock named above (`--clock cpu --threads 1` where others use the machine too). The tool
scores half of each chunk, we every position; "text tokens/s" leaves that out. To reach:
{target} times the tool's scored tokens/s.

{speed}

Again: `make install-llamacpp`, then `python -m benchmarks.llama_perplexity {again} --write`.
"""


def requests_of(chunks: np.ndarray) -> list[Request]:
    return [Request(f"chunk-{i}", tuple(map(int, ids)), ()) for i, ids in enumerate(chunks)]


def measured(train: Kernel, inference: Kernel, chunks: np.ndarray, records: Path) -> Iterator[PairedPrompt]:
    """Every chunk as an evaluation measures and records it."""
    with RecordsWriter(records) as writer:
        for prompt in paired(train, inference, requests_of(chunks), SAMPLING):
            writer.add(prompt, Attributes(prompt_tokens=prompt.prompt_tokens))
            yield prompt


class Heard:
    """A kernel whose last traces can be looked at."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.states: dict[str, np.ndarray] = {}

    def trace(self, requests: Sequence[Request], sampling: Sampling) -> list[Trace]:
        found = self._kernel.trace(requests, sampling)
        self.states = {trace.request: np.asarray(trace.states) for trace in found}
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)


def cpu() -> float:
    """Seconds of processors this process and the ones it waited for have used."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


CLOCKS = {"wall": time.perf_counter, "cpu": cpu}


def best(runs: dict[str, Callable[[], object]], repeats: int, clock: Callable[[], float]) -> dict[str, float]:
    """Seconds by name, the least of the interleaved repeats."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            started = clock()
            run()
            times[name].append(clock() - started)
            print(f"{name}: {times[name][-1]:.1f} s", file=sys.stderr)
    return {name: min(found) for name, found in times.items()}


def text_of(work: Path) -> Path:
    path = work / "stdlib.txt"
    source = Path(os.__file__).parent
    path.write_text("".join((source / f"{name}.py").read_text(encoding="utf-8") for name in MODULES))
    return path


@dataclass(frozen=True)
class Case:
    """One comparison: the two builds, and the tool's options for each."""

    name: str
    builds: tuple[str, str]
    options: tuple[tuple[str, ...], tuple[str, ...]]


def cases(base: Path, other: Path, threads: int) -> list[Case]:
    fused = tuple(("-m", str(path), "-fa", "on") for path in (base, other))
    exact = ("-m", str(base), "-fa", "off", "-ctk", "f32", "-ctv", "f32")
    f32, q8 = (f"llamacpp:file={path.name},threads={threads}" for path in (base, other))
    return [
        Case("Q8_0 against float32 weights", (f32, q8), (fused[0], fused[1])),
        Case(
            "float16 cache and fused attention against float32 and none, float32 weights",
            (f"{f32},flash_attn=off,type_k=f32,type_v=f32", f32),
            (exact, fused[0]),
        ),
    ]


def agreement(case: Case, tool: Tool, work: Path) -> tuple[list[list[str]], np.ndarray]:
    """Rows of the table: what the tool prints, its arithmetic on our logits, ours; and the chunks."""
    rows = []
    first = tool.chunk // 2
    kept = work / "kept.bin"
    told = tool.run(*case.options, kept)
    chunks = chunks_in(kept)
    kept.unlink()
    with kernels(case.builds, (work, work)) as (train, inference):
        ours, theirs = [], []
        heard = Heard(train), Heard(inference)
        for prompt in measured(*heard, chunks, work / "records.parquet"):
            values = prompt.phases[Phase.PREFILL].values
            ours.append((values["kl"], values["top1_flip"] == 0))
            theirs.append(tool_arithmetic(*(kernel.states[prompt.request.id][first:] for kernel in heard)))
    kl, same = map(np.stack, zip(*ours, strict=True))
    for name, found, comparable in (
        ("`llama-perplexity`", told, False),
        ("its arithmetic on our logits", Scores.of(*map(np.stack, zip(*theirs, strict=True))), True),
        ("ours, the same positions", Scores.of(kl[:, first:], same[:, first:]), True),
        ("ours, every position", Scores.of(kl, same), False),
    ):
        rows.append([
            case.name, name,
            f"{found.kl:.3e} ± {found.kl_error:.1e}", away(found.kl - told.kl, told.kl_error * comparable),
            f"{found.same_top:.3%} ± {found.same_top_error:.3%}",
            away(found.same_top - told.same_top, told.same_top_error * comparable),
        ])  # fmt: skip
        print(*rows[-1], sep=" | ", file=sys.stderr)
    return rows, chunks


def away(distance: float, error: float) -> str:
    """In standard errors; a dash where there is none to count in."""
    return f"{abs(distance) / error:.2f}" if error else "-"


@contextmanager
def kernels(builds: Sequence[str], checkpoints: Sequence[Path]) -> Iterator[list[Kernel]]:
    loaded: list[Kernel] = []
    try:
        for build, checkpoint in zip(builds, checkpoints, strict=True):
            loaded.append(load(parse_build(build), checkpoint))
        yield loaded
    finally:
        for kernel in loaded:
            kernel.close()


def speed(
    case: Case, tool: Tool, work: Path, checkpoint: Path, chunks: np.ndarray,
    repeats: int, clock: str,
) -> Iterator[list[str]]:  # fmt: skip
    """Rows of the table: seconds, scored tokens/s and bytes a decision of each flow on the same text."""
    kept, records = work / "kept.bin", work / "records.parquet"

    def ours(builds: Sequence[str], checkpoints: Sequence[Path]) -> None:
        with kernels(builds, checkpoints) as (train, inference):
            deque(measured(train, inference, chunks, records), maxlen=0)

    torch_first = ("torch:dtype=float32", case.builds[1])
    found = best(
        {
            "`llama-perplexity`, two steps": lambda: tool.run(*case.options, kept),
            f"ours, `{case.builds[0]}` and `{case.builds[1]}`": lambda: ours(case.builds, (work, work)),
            f"ours, `{torch_first[0]}` and `{torch_first[1]}`": lambda: ours(torch_first, (checkpoint, work)),
        },
        repeats,
        CLOCKS[clock],
    )
    half, whole = tool.chunks * (tool.chunk - 1 - tool.chunk // 2), tool.chunks * (tool.chunk - 1)
    reference = half / next(iter(found.values()))
    for name, seconds in found.items():
        scored, file = (whole, records) if name.startswith("ours") else (half, kept)
        yield [
            name, f"{seconds:.1f}", f"{chunks.size / seconds:.0f}", f"{scored:,}", f"{scored / seconds:.0f}",
            f"{scored / seconds / reference:.2f}", f"{file.stat().st_size / scored:,.0f}",
        ]  # fmt: skip


def page(
    agreed: list[list[str]], fast: list[list[str]], tool: Tool, version: str, clock: str, again: str
) -> str:
    digest = hashlib.sha256(tool.text.read_bytes()).hexdigest()
    return PAGE.format(
        machine=machine(), threads=tool.threads, clock=clock, version=version,
        chunks=tool.chunks, chunk=tool.chunk,
        modules=", ".join(f"`{name}`" for name in MODULES), digest=digest[:16],
        first=tool.chunk // 2, last=tool.chunk - 2, target=TARGET, again=again,
        agreement=table(
            ["comparison", "by", "mean KL, nats", "errors away", "same top 1", "errors away"], agreed
        ),
        speed=table(
            ["flow", "seconds", "text tokens/s", "scored", "scored tokens/s", "ratio", "bytes a decision"],
            fast,
        ),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, nargs="?", help="of SmolLM2; the demo's when left out")
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--chunks", type=int, default=20)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    given = parser.parse_args()
    tools = ENVIRONMENT / "build" / "bin"
    if not (tools / "llama-perplexity").is_file():
        print(f"skipped: {tools} has no llama-perplexity; make install-llamacpp", file=sys.stderr)
        return
    # Last on the path: of that environment only what this one lacks, llama_cpp and its imports.
    site.addsitedir(str(next((ENVIRONMENT / "lib").glob("python*")) / "site-packages"))
    torch.set_num_threads(given.threads)
    checkpoint = given.checkpoint or import_checkpoint(DEMO)
    compiled()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        base, other = models(work, tools)
        tool = Tool(tools, text_of(work), given.chunk, given.chunks, given.threads)
        first, second = cases(base, other, given.threads)
        agreed, chunks = agreement(first, tool, work)
        agreed += agreement(second, tool, work)[0]
        fast = list(speed(first, tool, work, checkpoint, chunks, given.repeats, given.clock))
        with kernels(first.builds[1:], [work]) as (kernel,):
            printed = kernel.fingerprint()
        version = f"llama.cpp {printed.version} of llama-cpp-python {printed.flags['llama_cpp_python']}"
        again = f"--chunks {given.chunks} --threads {given.threads} --clock {given.clock}"
        text = page(agreed, fast, tool, version, given.clock, again)
    print(text)
    if given.write:
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
