"""How often the judge is wrong, how soon it sees a fault, how often it certifies a good pair.

    python -m benchmarks.decision_quality [--runs 2000] [--quick]

Every decision is the product's: `contracts.sequential` and `contracts.intervals`, checked against
`contracts.judge.judge` itself on random peeks of every cell. Beside each figure stands what a naive
test does: decisions counted as independent draws, the fixed-sample Clopper-Pearson interval, looked
at after every prompt. Seeded: the same table on every machine, up to the times.

A prompt has `TOKENS` decisions whose exceedance rate is beta-distributed around the true exceedance,
with the intra-prompt correlation stated; `per: prompt` clauses have one 0/1 a prompt.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks._report import machine, table
from contracts import intervals
from contracts.accumulators import Draws, Moments
from contracts.evidence import Cell, Evidence, Provenance
from contracts.judge import judge
from contracts.model import Contract, Phase
from contracts.sequential import Betting, Running, binary
from contracts.verdicts import Outcome

RESULT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks" / "decision_quality.md"
ALPHA, TOKENS, SEED = 0.05, 50, 20260101
THRESHOLD = -math.log(ALPHA)
JUST_ABOVE = 1.0001
EACH, AVERAGE = 1.65, 1.5  # targets: mean delay over Wald's floor
CHECKS = 25  # peeks a cell that `judge` itself is asked about

Floats = np.ndarray


# The world


def rates(rng: np.random.Generator, mean: float, correlation: float, runs: int) -> Floats:
    if correlation == 0.0:
        return np.full(runs, mean)
    scale = 1.0 / correlation - 1.0
    return rng.beta(mean * scale, (1.0 - mean) * scale, runs)


def prompts(
    rng: np.random.Generator, mean: float, correlation: float | None, runs: int
) -> Iterator[tuple[Floats, int]]:
    """Endless prompts: exceeding decisions [runs], of how many; correlation None is one 0/1 a prompt."""
    while True:
        if correlation is None:
            yield (rng.random(runs) < mean).astype(np.int64), 1
        else:
            yield rng.binomial(TOKENS, rates(rng, mean, correlation, runs)), TOKENS


# The two tests


def naive_limits(rho: float, trials: Floats, *, above: bool) -> Floats:
    """Clopper-Pearson on pooled decisions: fewest exceeding that alarm, or most that certify."""
    if above:
        return stats.binom.isf(ALPHA, trials, rho) + 1  # P(X >= k) < alpha
    most = stats.binom.ppf(ALPHA, trials, rho) - 1
    return np.where(stats.binom.cdf(most + 1, trials, rho) <= ALPHA, most + 1, most)


@dataclass(frozen=True)
class Peeked:
    """Shares of runs that ever decided within the horizon, and what a naive test does."""

    ours: float
    naive: float
    runs: int

    @property
    def noise(self) -> float:
        """Three standard errors at alpha."""
        return 3.0 * math.sqrt(ALPHA * (1.0 - ALPHA) / self.runs)


def peeked(
    rng: np.random.Generator, rho: float, mean: float, correlation: float | None, runs: int, horizon: int,
    *, above: bool,
) -> Peeked:  # fmt: skip
    """A stream looked at after every prompt, by both tests on the same draws."""
    running = Running(rho, runs, above=above)
    source = prompts(rng, mean, correlation, runs)
    decided, naive = np.zeros(runs, bool), np.zeros(runs, bool)
    pooled = np.zeros(runs, np.int64)
    size = 1 if correlation is None else TOKENS
    limits = naive_limits(rho, size * np.arange(1, horizon + 1), above=above)
    asked = rng.integers(0, runs, CHECKS), rng.integers(1, horizon + 1, CHECKS)
    history = np.zeros((CHECKS, horizon), np.int64)
    said = np.zeros(CHECKS, bool)
    for n in range(horizon):
        exceeding, _ = next(source)
        running.add(exceeding / size)
        now = running.log_e() >= THRESHOLD
        decided |= now
        pooled += exceeding
        naive |= (pooled >= limits[n]) if above else (pooled <= limits[n])
        history[:, n] = exceeding[asked[0]]
        said[asked[1] == n + 1] = now[asked[0][asked[1] == n + 1]]
    for row, last, ours in zip(history, asked[1], said, strict=True):
        draws = Draws.of((int(k), size) for k in row[:last])
        outcome = judged(draws, rho, "shadow", per_prompt=correlation is None)
        assert ours == (outcome is (Outcome.VIOLATED if above else Outcome.HOLDS)), "judge() disagrees"
    return Peeked(float(decided.mean()), float(naive.mean()), runs)


def judged(draws: Draws, rho: float, stage: str, *, per_prompt: bool) -> Outcome:
    """What `judge` says of one soft clause on these draws."""
    clause = {
        "id": "S", "family": "statistical", "metric": "tv", "limit": {"lte": 0.1}, "kind": "soft",
        "exceedance": rho, "level": "L2", "phase": "decode",
    } | ({"per": "prompt", "aggregate": "max"} if per_prompt else {})  # fmt: skip
    contract = Contract.model_validate(
        {
            "apiVersion": "kernel-contracts/v1", "kind": "KernelContract",
            "metadata": {"name": "benchmark", "version": "1.0.0"},
            "pair": {"train": {}, "inference": {}}, "clauses": [clause], "certainty": {"alpha": ALPHA},
        }
    )  # fmt: skip
    provenance = Provenance(
        contract="c", checkpoint="k", train_build="t", inference_build="i", suite="s", stage=stage
    )
    cell = Cell(clause="S", slice="all", phase=Phase.DECODE, draws=draws)
    evidence = Evidence(provenance=provenance, shards=("x",), prompts=draws.n, cells=(cell,))
    return judge(contract, evidence, contract_digest="c").verdicts[0].verdict


# Detection


def wald(p: float, rho: float) -> float:
    """log(1/alpha)/KL(Bern(p)||Bern(rho)): no test of level alpha is faster on average."""
    return THRESHOLD / (p * math.log(p / rho) + (1.0 - p) * math.log((1.0 - p) / (1.0 - rho)))


def boundary(rho: float, horizon: int) -> Floats:
    """Fewest exceedances among n = 1..horizon 0/1 draws whose e-value alarms."""
    curve, k = np.zeros(horizon, np.int64), 0
    for n in range(1, horizon + 1):
        while k <= n and Betting(binary(k, n)).log_e_above(rho) < THRESHOLD:
            k += 1
        curve[n - 1] = k
    return curve


def first_crossing(rng: np.random.Generator, p: float, curve: Floats, runs: int) -> Floats:
    """When each run's count first reaches the curve [runs]; the horizon + 1 where it never does."""
    out = np.full(runs, len(curve) + 1)
    count, alive = np.zeros(runs, np.int64), np.arange(runs)
    block = 512
    for start in range(0, len(curve), block):
        part = curve[start : start + block]
        path = count[alive, None] + np.cumsum(rng.random((alive.size, len(part))) < p, axis=1)
        crossed = path >= part
        hit = crossed.any(axis=1)
        out[alive[hit]] = start + crossed.argmax(axis=1)[hit] + 1
        count[alive] = path[:, -1]
        alive = alive[~hit]
        if not alive.size:
            break
    return out


# Tables


def named(correlation: float | None) -> str:
    return "one 0/1 a prompt" if correlation is None else f"{TOKENS} decisions, correlation {correlation:g}"


def wrong_decisions(
    rng: np.random.Generator, runs: int, horizon: Callable[[float], int], *, above: bool
) -> tuple[str, bool]:
    rows, fine = [], True
    for rho in (0.1, 0.01):
        for correlation in (None, 0.0, 0.3, 0.9):
            mean = rho if above else rho * JUST_ABOVE
            found = peeked(rng, rho, mean, correlation, runs, horizon(rho), above=above)
            fine &= found.ours <= ALPHA + found.noise
            cells = [f"{rho:g}", named(correlation), f"{horizon(rho):,}", f"{found.ours:.4f}"]
            rows.append([*cells, f"{found.naive:.3f}"])
    what = "false alarm" if above else "false pass"
    return table(["ρ", "draws", "peeks", f"{what} rate", "naive"], rows), fine


def delays(rng: np.random.Generator, runs: int) -> tuple[str, bool]:
    rows, ratios = [], []
    for rho in (0.1, 0.01):
        horizon = int(wald(2 * rho, rho) * 12)
        curve = boundary(rho, horizon)
        naive = naive_limits(rho, np.arange(1, horizon + 1), above=True)
        false = np.mean(first_crossing(rng, rho, naive, runs) <= horizon)
        for factor in (2, 5, 20):
            p, floor = min(factor * rho, 0.5), wald(min(factor * rho, 0.5), rho)
            ours, theirs = first_crossing(rng, p, curve, runs), first_crossing(rng, p, naive, runs)
            ratio = ours.mean() / floor
            ratios.append(ratio)
            rows.append(
                [f"{rho:g}", f"{p:g}", f"{floor:.1f}", f"{ours.mean():.1f}", f"{ratio:.2f}",
                 f"{np.quantile(ours, 0.95):.0f}", f"{np.mean(ours <= horizon):.4f}",
                 f"{theirs.mean():.1f}", f"{false:.2f}"]
            )  # fmt: skip
    rows.append(["", "average", "", "", f"{np.mean(ratios):.2f}", "", "", "", ""])
    head = ["ρ", "p₁", "floor", "mean delay", "over floor", "95th percentile", "detected",
            "naive delay", "its false alarms at p₁ = ρ"]  # fmt: skip
    return table(head, rows), max(ratios) <= EACH and float(np.mean(ratios)) <= AVERAGE


def sample(
    rng: np.random.Generator, mean: float, correlation: float | None, runs: int, n: int
) -> tuple[Floats, int]:
    """Exceeding decisions [runs, n], and of how many a prompt."""
    if correlation is None:
        return (rng.random((runs, n)) < mean).astype(np.int64), 1
    return rng.binomial(TOKENS, rates(rng, mean, correlation, runs * n).reshape(runs, n)), TOKENS


def naively(counts: Floats, size: int, rho: float) -> float:
    pooled = np.array([counts.shape[1] * size])
    return float(np.mean(counts.sum(axis=1) <= naive_limits(rho, pooled, above=False)[0]))


def certified(rho: float, counts: Floats, size: int) -> tuple[float, float]:
    """Shares of runs certified at one look: a fixed sample's, a stream's."""
    runs, n = counts.shape
    fixed, stream = np.zeros(runs, bool), np.zeros(runs, bool)
    for run, row in enumerate(counts):
        values, times = np.unique(row, return_counts=True)
        draws = Draws(shares=tuple(zip(values.tolist(), [size] * len(values), times.tolist(), strict=True)))
        stream[run] = Betting(draws).log_e_below(rho) >= THRESHOLD
        exact = size == 1
        fixed[run] = intervals.clopper_pearson(int(row.sum()), n, ALPHA)[1] <= rho if exact else stream[run]
        if run < CHECKS:
            for stage, ours in (("offline_ci", fixed[run]), ("shadow", stream[run])):
                assert ours == (judged(draws, rho, stage, per_prompt=exact) is Outcome.HOLDS)
    return float(fixed.mean()), float(stream.mean())


def power(rng: np.random.Generator, runs: int, sizes: Iterable[int]) -> str:
    rows = []
    for rho, n in ((rho, n) for rho in (0.1, 0.05, 0.02, 0.01) for n in sizes):
        for correlation in (None, 0.0, 0.3, 0.9):
            good, size = sample(rng, rho / 2, correlation, runs, n)
            fixed, stream = certified(rho, good, size)
            naive = naively(good, size, rho)
            wrong = naively(*sample(rng, rho * JUST_ABOVE, correlation, runs, n), rho)
            cells = [f"{rho:g}", f"{n:,}", named(correlation), f"{fixed:.3f}", f"{stream:.3f}"]
            rows.append([*cells, f"{fixed * stream**3:.3f}", f"{naive:.3f}", f"{wrong:.3f}"])
    stages = ["offline CI", "a stream stage", "all four stages"]
    head = ["ρ", "min_prompts", "draws", *stages, "naive, one stage", "naive at 1.0001 ρ"]
    return table(head, rows)


def skewed(rng: np.random.Generator, runs: int) -> str:
    rows = []
    for sigma in (0.5, 1.0, 1.5):
        for n in (60, 480):
            values, truth = rng.lognormal(0.0, sigma, (runs, n)), math.exp(sigma * sigma / 2)
            plain = values.mean(axis=1) + stats.t.ppf(1 - ALPHA, n - 1) * stats.sem(values, axis=1)
            ours = np.array([intervals.student_t(Moments.of(row), ALPHA)[1] for row in values])
            rows.append(
                [f"{sigma:g}", f"{n}", f"{np.mean(ours < truth):.3f}", f"{np.mean(plain < truth):.3f}"]
            )
    head = ["σ of the logarithm", "prompts", "false pass rate at the mean", "plain Student t"]
    return table(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000, help="simulated runs a cell")
    parser.add_argument("--quick", action="store_true", help=f"a smoke run; {RESULT.name} is left alone")
    arguments = parser.parse_args()
    runs = 100 if arguments.quick else arguments.runs
    started, rng = time.perf_counter(), np.random.default_rng(SEED)

    def horizon(rho: float) -> int:
        return (100 if arguments.quick else 1000) if rho >= 0.1 else (200 if arguments.quick else 2000)

    passes, passes_fine = wrong_decisions(rng, runs, horizon, above=False)
    alarms, alarms_fine = wrong_decisions(rng, runs, horizon, above=True)
    delay, delay_fine = delays(rng, runs * 2)
    strength = power(rng, runs, (100, 200) if arguments.quick else (480, 1000, 2000))
    skew = skewed(rng, runs)
    text = TEXT.format(
        runs=runs, alpha=ALPHA, just=JUST_ABOVE, each=EACH, average=AVERAGE, passes=passes, alarms=alarms,
        delay=delay, delay_runs=runs * 2, power=strength, skew=skew, seed=SEED, machine=machine(),
        seconds=time.perf_counter() - started, checks=CHECKS, noise=3 * math.sqrt(ALPHA * (1 - ALPHA) / runs),
    )  # fmt: skip
    print(text)
    if not arguments.quick:
        RESULT.parent.mkdir(parents=True, exist_ok=True)
        RESULT.write_text(text, encoding="utf-8")
    checks = {"false passes": passes_fine, "false alarms": alarms_fine, "detection delay": delay_fine}
    missed = [name for name, fine in checks.items() if not fine]
    if missed:
        raise SystemExit(f"target missed: {', '.join(missed)}")


TEXT = """\
# Decision quality

Written by `python -m benchmarks.decision_quality` (seed {seed}, {runs:,} runs a cell, α = {alpha}) in
{seconds:.0f} s on {machine}.

Decisions are those of `contracts.sequential` and `contracts.intervals`; `judge()` itself agreed on all
of its {checks} random peeks a cell. *Naive* counts decisions as independent draws and reads a
fixed-sample Clopper-Pearson interval after every prompt.

## False passes

True exceedance {just}·ρ, a peek after every prompt: the share of runs ever certified. Target: at most
α (three standard errors at this many runs are {noise:.4f}).

{passes}

## False alarms

True exceedance ρ, a peek after every prompt: the share of runs ever called VIOLATED. Target: at most α.

{alarms}

## Detection

0/1 draws with exceedance p₁, a peek after every draw, {delay_runs:,} runs; the floor is Wald's,
log(1/α)/KL(Bern(p₁)‖Bern(ρ)). Target: at most {each} in every row, {average} on average. The naive test
is sooner because it cries wolf: the last column is how often it alarms on a pair that conforms.

{delay}

## Power

True exceedance ρ/2: the share of conforming pairs certified at one look at `min_prompts`, at offline CI
(Clopper-Pearson on 0/1 draws, bets on shares), at one stream stage, and at four stages in a row on
samples of their own. A stage that has not decided goes on collecting until its deadline, so these are
the shares that pass without waiting. The naive test passes more of them, and of the pairs just beyond
the limit (last column), where α is promised.

{power}

## Skewed means

Lognormal per-prompt means of an unbounded metric, a limit at the true mean, a fixed sample: how often
the upper end is below the truth. Both are asymptotic, which the verdict's method says; α = {alpha} is
reached from above.

{skew}
"""


if __name__ == "__main__":
    main()
