"""`llama-perplexity` as the benchmark runs it: its two steps, its file, its report and its arithmetic."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workers.checkpoint_import import GGUF, PACKAGE


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
        said(*self.common(kept), *base)
        return printed(said(*self.common(kept), *other, "--kl-divergence"))

    def common(self, kept: Path) -> list[str]:
        return [
            str(self.bin / "llama-perplexity"), "-f", str(self.text), "-c", str(self.chunk),
            "--chunks", str(self.chunks), "-t", str(self.threads), "--kl-divergence-base", str(kept),
        ]  # fmt: skip


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


def models(work: Path, tools: Path) -> tuple[Path, Path]:
    """SmolLM2 as float32, the weights of the demo's checkpoint, and as Q8_0: from the Q4_1 of its package."""
    package = next(Path(p) / PACKAGE for p in sys.path if (Path(p) / PACKAGE / GGUF).is_file())
    base, other = work / "smollm2-f32.gguf", work / "smollm2-q8_0.gguf"
    said(str(tools / "llama-quantize"), "--allow-requantize", str(package / GGUF), str(base), "F32")
    said(str(tools / "llama-quantize"), str(base), str(other), "Q8_0")
    return base, other
