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
import re
import resource
import site
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch

from benchmarks._report import machine, table
from contracts.builds import parse_build
from contracts.model import Sampling
from contracts.slices import Attributes
from workers.checkpoint_import import GGUF, PACKAGE, import_checkpoint
from workers.drift import compiled
from workers.kernels.loading import load
from workers.kernels.protocol import Kernel, Request
from workers.paired import paired
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
mean over hundreds by less than 1e-6; top-1 ties closer than a step go to the lower id. And it sums differences
of float32 logarithms and prints six decimals, so that a divergence below 1e-6 drowns. Ours is float64 from the
engine's float32 logits on, every term positive, over the whole vocabulary (theory.md section 2).

## Speed

From loading both models to the last decision's record on disk, the tool's two processes and ours; not
counted are importing Python packages and compiling the reductions, seconds once. Interleaved, best of the
runs, by the clock named above (`--clock cpu --threads 1` where others use the machine too). The tool
scores half of each chunk, we every position; "text tokens/s" leaves that out. To reach:
{target} times the tool's scored tokens/s.

{speed}

Again: `make install-llamacpp`, then `python -m benchmarks.llama_perplexity {again} --write`.
"""


@dataclass(frozen=True)
class Scores:
    """Means over the scored positions, with the standard errors the tool states."""

    kl: float
    kl_error: float
    same_top: float
    same_top_error: float

    @classmethod
    def of(cls, kl: np.ndarray, same: np.ndarray) -> Scores:
        n, mean, share = kl.size, float(kl.mean()), float(same.mean())
        return cls(
            mean, float(kl.std() / np.sqrt(n - 1)), share, float(np.sqrt(share * (1 - share) / (n - 1)))
        )


@dataclass(frozen=True)
class Tool:
    """The tool and what both of its steps are given."""

    bin: Path
    text: Path
    chunk: int
    chunks: int
    threads: int

    def run(self, base: Sequence[str], other: Sequence[str], kept: Path) -> Scores:
        """Both steps, with the options of each model; `kept` is the file between them."""
        common = [
            str(self.bin / "llama-perplexity"), "-f", str(self.text), "-c", str(self.chunk),
            "--chunks", str(self.chunks), "-t", str(self.threads), "--kl-divergence-base", str(kept),
        ]  # fmt: skip
        said(*common, *base)
        return printed(said(*common, *other, "--kl-divergence"))


def said(*command: str) -> str:
    """Standard output and error of a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout + done.stderr


def printed(report: str) -> Scores:
    number = r"\s*(-?[0-9.]+) ±\s*([0-9.]+)"
    kl = re.search(r"Mean\s+KLD:" + number, report)
    top = re.search(r"Same top p:" + number, report)
    if kl is None or top is None:
        sys.exit(f"llama-perplexity gave no result:\n{report[-2000:]}")
    return Scores(float(kl[1]), float(kl[2]), float(top[1]) / 100, float(top[2]) / 100)


def chunks_in(kept: Path) -> np.ndarray:
    """Token ids [chunks, n_ctx] of a file of log-probabilities.

    The tool puts BOS in place of a chunk's first id for models that want one. The file has the id
    before that; SmolLM2 wants none.
    """
    with kept.open("rb") as file:
        magic, n_ctx, _vocabulary, n_chunk = struct.unpack("<8s3i", file.read(20))
        assert magic == b"_logits_", f"{kept} is no file of log-probabilities"
        return np.frombuffer(file.read(4 * n_ctx * n_chunk), dtype="<i4").reshape(n_chunk, n_ctx)


def requests_of(chunks: np.ndarray) -> list[Request]:
    return [Request(f"chunk-{i}", tuple(map(int, ids)), ()) for i, ids in enumerate(chunks)]


def measured(train: Kernel, inference: Kernel, chunks: np.ndarray, records: Path) -> tuple[np.ndarray, ...]:
    """KL and same-top-1 [chunks, n_ctx - 1] as an evaluation computes and records them."""
    kl, same = [], []
    with RecordsWriter(records) as writer:
        for prompt in paired(train, inference, requests_of(chunks), SAMPLING):
            (found,) = prompt.phases.values()
            kl.append(found.values["kl"])
            same.append(found.values["top1_flip"] == 0)
            writer.add(prompt, Attributes(prompt_tokens=prompt.prompt_tokens))
    return np.stack(kl), np.stack(same)


def as_the_tool(train: Kernel, inference: Kernel, chunks: np.ndarray) -> tuple[np.ndarray, ...]:
    """The tool's arithmetic, its 16-bit file included, on our kernels' logits at its positions."""
    first = chunks.shape[1] // 2
    rows = [
        tool_arithmetic(np.asarray(a.states)[first:], np.asarray(b.states)[first:])
        for request in requests_of(chunks)
        for a, b in zip(train.trace([request], SAMPLING), inference.trace([request], SAMPLING), strict=True)
    ]
    return tuple(np.stack(column) for column in zip(*rows, strict=True))


def tool_arithmetic(base: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`log_softmax` twice, as perplexity.cpp has it: float32, sums in float64."""
    high = base.max(1, keepdims=True)
    low = np.maximum(base.min(1, keepdims=True), high - np.float32(16))
    log_sum = np.log(np.exp(base - high).sum(1, keepdims=True, dtype=np.float64)).astype(np.float32)
    scale = (high - low) / np.float32(65535)
    steps = np.where(base > low, np.rint((base - low) / scale), 0).astype(np.uint16)
    kept = scale * steps.astype(np.float32) + (low - high - log_sum)

    top = other.max(1, keepdims=True)
    total = top + np.log(np.exp(other - top).sum(1, keepdims=True, dtype=np.float64)).astype(np.float32)
    terms = np.where(kept > -16, np.exp(kept) * (kept - other + total), 0)
    return terms.sum(1, dtype=np.float64), kept.argmax(1) == other.argmax(1)


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


def models(work: Path, tools: Path) -> tuple[Path, Path]:
    """SmolLM2 as float32, the weights of the demo's checkpoint, and as Q8_0: from the Q4_1 of its package."""
    package = next(Path(p) / PACKAGE for p in sys.path if (Path(p) / PACKAGE / GGUF).is_file())
    base, other = work / "smollm2-f32.gguf", work / "smollm2-q8_0.gguf"
    said(str(tools / "llama-quantize"), "--allow-requantize", str(package / GGUF), str(base), "F32")
    said(str(tools / "llama-quantize"), str(base), str(other), "Q8_0")
    return base, other


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


def agreement(case: Case, tool: Tool, work: Path) -> Iterator[list[str]]:
    """Rows of the table: what the tool prints, its arithmetic on our logits, and the divergence itself."""
    kept = work / "kept.bin"
    told = tool.run(*case.options, kept)
    chunks = chunks_in(kept)
    kept.unlink()
    with kernels(case.builds, (work, work)) as (train, inference):
        emulated = Scores.of(*as_the_tool(train, inference, chunks))
        kl, same = measured(train, inference, chunks, work / "records.parquet")
    first = tool.chunk // 2
    for name, found in (
        ("`llama-perplexity`", told),
        ("its arithmetic on our logits", emulated),
        ("ours, the same positions", Scores.of(kl[:, first:], same[:, first:])),
        ("ours, every position", Scores.of(kl, same)),
    ):
        yield [
            case.name, name,
            f"{found.kl:.3e} ± {found.kl_error:.1e}", away(found.kl - told.kl, told.kl_error),
            f"{found.same_top:.3%} ± {found.same_top_error:.3%}",
            away(found.same_top - told.same_top, told.same_top_error),
        ]  # fmt: skip


def away(distance: float, error: float) -> str:
    """In standard errors; a dash where the tool prints an error of nothing."""
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
    case: Case, tool: Tool, work: Path, checkpoint: Path, repeats: int, clock: str
) -> Iterator[list[str]]:
    """Rows of the table: seconds, scored tokens/s and bytes a decision of each flow on the same text."""
    kept, records = work / "kept.bin", work / "records.parquet"
    tool.run(*case.options, kept)
    chunks = chunks_in(kept)

    def ours(builds: Sequence[str], checkpoints: Sequence[Path]) -> None:
        with kernels(builds, checkpoints) as (train, inference):
            measured(train, inference, chunks, records)

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
        agreed = [row for case in (first, second) for row in agreement(case, tool, work)]
        fast = list(speed(first, tool, work, checkpoint, given.repeats, given.clock))
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
