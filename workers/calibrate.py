"""`kc calibrate`: the noise floor of each kernel, and limits a contract could state above it.

A kernel is run against itself: again, one request at a time, in another order, with other chunks, with
prefix caching. What differs is not the pair's drift but the engine's own arithmetic, reduced in another
order (F7). A limit below it would be broken by a kernel against itself; proposals stand above it, and
above what the pair showed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from app.services.checkpoints import InvalidCheckpoint, checkpoint_digests
from app.services.suites import InvalidSuite, read_suite
from contracts.builds import ENGINES, BuildSpec, Fingerprint, InvalidBuild, parse_build
from contracts.metrics import METRICS
from contracts.model import Phase, Sampling
from workers import evaluate
from workers.draws import InvalidEvaluation, suite_draws
from workers.kept import KeptKernels, Opener, fresh
from workers.kernels.builds import read_build
from workers.kernels.protocol import Kernel, KernelError, Request, Trace
from workers.paired import PairingError, paired
from workers.progress import Report, bar, silent
from workers.tokens import BadTokenizer

if TYPE_CHECKING:
    from torch import Tensor

K = 10  # of topk_agreement
SHOWN = ("logit_osc", "abs_log_ratio", "kl", "tv", f"topk_agreement@{K}", "top1_flip")
# Far enough above what was seen that the next suite is not expected beyond it.
ABOVE_PAIR, ABOVE_FLOOR, EXCEEDANCE = 1.25, 3.0, 0.02

Values = dict[tuple[Phase, str], "np.ndarray"]


@dataclass(frozen=True, slots=True)
class Variant:
    """Another way of running the same build.

    Attributes:
        name: `repeat`, `alone`, `reversed`, or the option that is another.
        build: to be loaded.
        reorder: how requests are handed over: `same`, `alone` or `reversed`.
    """

    name: str
    build: BuildSpec
    reorder: str = "same"


@dataclass(frozen=True, slots=True)
class Spread:
    """What one metric was over all decisions of one phase; `n` of them, the unmeasurable left out.

    `p50`, `p99` and `worst` go in the direction in which drift grows.
    """

    kernel: str
    variant: str
    phase: Phase
    metric: str
    n: int
    unmeasurable: int
    p50: float
    p99: float
    worst: float


class Reordered:
    """A kernel whose requests are handed over in another order, or one at a time."""

    def __init__(self, kernel: Kernel, reorder: str) -> None:
        self._kernel, self._reorder = kernel, reorder

    def fingerprint(self) -> Fingerprint:
        """Of the kernel."""
        return self._kernel.fingerprint()

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._kernel.vocab_size

    def trace(self, requests: Sequence[Request], sampling: Sampling) -> list[Trace]:
        """Run the requests; one trace each, in their order."""
        if self._reorder == "alone":
            return [trace for one in requests for trace in self._kernel.trace([one], sampling)]
        if self._reorder == "reversed":
            return self._kernel.trace(requests[::-1], sampling)[::-1]
        return self._kernel.trace(requests, sampling)

    def logits(self, states: Tensor) -> Tensor:
        """Raw logits [n, >= V] of hidden states [n, d]."""
        return self._kernel.logits(states)

    def close(self) -> None:
        """Nothing: who opened the kernel closes it."""


def variants(build: BuildSpec) -> list[Variant]:
    """Ways of running a build that change no promise of it."""
    found = [
        Variant("repeat", build),
        Variant("alone", build, "alone"),
        Variant("reversed", build, "reversed"),
    ]
    for option, other in (("chunk", 64), ("n_ubatch", 64), ("prefix_caching", "on")):
        if option in ENGINES[build.engine] and build.options.get(option) != other:
            changed = {"engine": build.engine, **build.options, option: other}
            found.append(Variant(f"{option}={other}", parse_build(changed)))
    return found


def calibrate(
    checkpoint: Path,
    digest: str,
    train: BuildSpec,
    inference: BuildSpec,
    requests: Sequence[Request],
    sampling: Sampling,
    *,
    progress: Report = silent,
    opened: Opener = fresh,
) -> list[Spread]:
    """Run both kernels against themselves, and against each other; what was seen.

    Outputs are generated once, by the inference kernel; every run after is on those token ids. The
    pair's own drift has the kernel name `pair`.

    Args:
        digest: of the checkpoint's content.

    Raises KernelError, PairingError and InvalidBuild as an evaluation does.
    """
    with opened(inference, checkpoint, digest) as kernel:
        progress(0.0, "generating")
        given = [_given(trace) for trace in kernel.trace(requests, sampling)]
    plan = [("train", v) for v in variants(train)] + [("inference", v) for v in variants(inference)]
    found: list[Spread] = []
    for done, (side, variant) in enumerate(plan):
        progress(done / (len(plan) + 1), f"{side}, {variant.name}")
        base = train if side == "train" else inference
        with (
            opened(base, checkpoint, digest) as one,
            _other(one, base, variant, checkpoint, digest, opened) as other,
        ):
            found += _spreads(side, variant.name, _run(one, other, given, sampling))
    progress(len(plan) / (len(plan) + 1), "the pair")
    with opened(train, checkpoint, digest) as one, opened(inference, checkpoint, digest) as other:
        found += _spreads("pair", "drift", _run(one, other, given, sampling))
    return found


def _given(trace: Trace) -> Request:
    return Request(
        trace.request,
        tuple(trace.token_ids[: trace.prompt_tokens]),
        tuple(trace.token_ids[trace.prompt_tokens :]),
    )


@contextmanager
def _other(
    kernel: Kernel, base: BuildSpec, variant: Variant, checkpoint: Path, digest: str, opened: Opener
) -> Iterator[Kernel]:
    """The variant of a kernel that is open: the same one reordered, or another one loaded."""
    if variant.build == base:
        yield Reordered(kernel, variant.reorder)
    else:
        with opened(variant.build, checkpoint, digest) as other:
            yield Reordered(other, variant.reorder)


def _run(one: Kernel, other: Kernel, requests: Sequence[Request], sampling: Sampling) -> Values:
    parts: dict[tuple[Phase, str], list[np.ndarray]] = {}
    for prompt in paired(one, other, requests, sampling, ks=(K,)):
        for phase, drift in prompt.phases.items():
            for metric in SHOWN:
                parts.setdefault((phase, metric), []).append(drift.values[metric])
    return {key: np.concatenate(values) for key, values in parts.items()}


def _spreads(kernel: str, variant: str, values: Values) -> list[Spread]:
    found = []
    for (phase, metric), seen in values.items():
        known = seen[np.isfinite(seen)]
        down = METRICS[metric.partition("@")[0]].worse == "down"
        # float64; the empirical quantile from the side where drift grows.
        p50, p99, worst = (
            float(np.quantile(known, 1 - q if down else q, method="higher" if not down else "lower"))
            if known.size
            else math.nan
            for q in (0.5, 0.99, 1.0)
        )
        found.append(
            Spread(
                kernel, variant, phase, metric, int(known.size), int(seen.size - known.size), p50, p99, worst
            )
        )
    return found


def proposals(spreads: Sequence[Spread]) -> dict[str, float]:
    """A limit for each metric a contract usually bounds.

    Above the pair's 99 % quantile by `ABOVE_PAIR` and above the worst of either kernel against itself
    by `ABOVE_FLOOR`, in the worse phase, rounded away from what was seen to two digits. An agreement
    is 1 minus such a distance.
    """
    found: dict[str, float] = {}
    for metric in ("logit_osc", "abs_log_ratio", "kl", "tv", f"topk_agreement@{K}"):
        down = METRICS[metric.partition("@")[0]].worse == "down"
        ideal = 1.0 if down else 0.0
        pair = [abs(ideal - s.p99) for s in spreads if s.kernel == "pair" and s.metric == metric and s.n]
        floor = [abs(ideal - s.worst) for s in spreads if s.kernel != "pair" and s.metric == metric and s.n]
        if not pair:
            continue
        distance = _round_up(max(ABOVE_PAIR * max(pair), ABOVE_FLOOR * max(floor, default=0.0), 1e-6))
        top = METRICS[metric.partition("@")[0]].high
        found[metric] = max(0.0, round(1.0 - distance, 6)) if down else min(distance, top)
    return found


def _round_up(value: float) -> float:
    scale = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / scale - 1e-9) * scale:.12g}")


def clauses(limits: Mapping[str, float]) -> str:
    """The proposals as clauses of a contract, in YAML."""
    lines = ["clauses:"]
    for number, (key, limit) in enumerate(limits.items(), start=1):
        metric, _, k = key.partition("@")
        known = METRICS[metric]
        comparator = "gte" if known.worse == "down" else "lte"
        unit = f" {known.unit}" if known.unit else ""
        more = f", k: {k}" if k else ""
        lines.append(
            f"  - {{id: C{number}, family: {known.family.value}, metric: {metric}{more}, "
            f"limit: {{{comparator}: {limit:g}{unit}}}, kind: soft, exceedance: {EXCEEDANCE:g}, "
            "slices: [all], level: L2}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Calibrate as the arguments say; returns 0, 2 on bad usage, 4 when it could not be measured."""
    given = _parser().parse_args(argv)
    try:
        train, inference = read_build(given.train), read_build(given.inference)
        digests = checkpoint_digests(given.checkpoint)
        draws = suite_draws(read_suite(given.suite, digests.tokenizer), given.checkpoint)
        sampling = Sampling(temperature=given.temperature)
    except (
        InvalidBuild,
        InvalidCheckpoint,
        InvalidSuite,
        InvalidEvaluation,
        BadTokenizer,
        ValueError,
    ) as error:
        print(f"kc calibrate: {error}", file=sys.stderr)
        return evaluate.USAGE
    requests = [draw.request for draw in draws]
    try:
        with bar("calibrating") if not given.quiet else _quiet() as progress:
            found = calibrate(
                given.checkpoint, digests.digest, train, inference, requests, sampling,
                progress=progress, opened=KeptKernels(),
            )  # fmt: skip
    except (KernelError, PairingError, InvalidBuild) as error:
        print(f"kc calibrate: could not be measured: {error}", file=sys.stderr)
        return evaluate.NOT_MEASURED
    limits = proposals(found)
    if given.json:
        print(
            json.dumps({"spreads": [_plain(s) for s in found], "limits": limits}, indent=2, allow_nan=False)
        )
    else:
        _print(found, limits, len(requests))
    return evaluate.CONVERGED


@contextmanager
def _quiet() -> Iterator[Report]:
    yield silent


def _plain(spread: Spread) -> dict[str, Any]:
    row = {name: getattr(spread, name) for name in Spread.__slots__}
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in row.items()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kc calibrate", description=__doc__, allow_abbrev=False)
    parser.add_argument("--checkpoint", type=Path, required=True, help="directory of weights and tokenizer")
    parser.add_argument("--train", required=True, help="training kernel: engine:key=value,... or a JSON file")
    parser.add_argument("--inference", required=True, help="serving kernel, likewise")
    parser.add_argument("--suite", type=Path, required=True, help="prompts, one JSON object a line")
    parser.add_argument(
        "--temperature", type=float, default=1.0, help="of sampling and of both distributions"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


def _print(found: Sequence[Spread], limits: Mapping[str, float], prompts: int) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, evaluate.WIDTH)  # a file has no width to fold into
    table = Table(box=box.SIMPLE_HEAD, title=f"{prompts} prompts", title_justify="left")
    for column in ("kernel", "against itself", "phase", "metric", "n", "p50", "p99", "worst"):
        table.add_column(column, justify="right" if column in ("n", "p50", "p99", "worst") else "left")
    for one in found:
        numbers = (f"{value:.3g}" for value in (one.p50, one.p99, one.worst))
        how = "–" if one.kernel == "pair" else one.variant
        table.add_row(one.kernel, how, one.phase.value, one.metric, f"{one.n:,}", *numbers)
    console.print(table)
    broken = sum(one.unmeasurable for one in found if one.metric == SHOWN[0])
    if broken:
        console.print(f"[bold red]{broken} decisions were unmeasurable: a logit was no number.[/]")
    console.print(
        f"Proposed: {ABOVE_PAIR:g} × the pair's 99 % quantile, at least {ABOVE_FLOOR:g} × what a kernel does "
        "to itself. A start for a contract, not a reason for one.",
        highlight=False,
    )
    print(clauses(limits))


if __name__ == "__main__":
    sys.exit(main())
