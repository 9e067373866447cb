"""Is any bound of theory.md sections 2.1, 3 and 4 ever exceeded, and how tight can it be made?

    python -m benchmarks.bounds_search [--pairs 100000] [--quick]

Random and adversarial kernel pairs up to V = 151,936: Gaussian, heavy-tailed, sparse and two-valued
logit differences, the extremal pairs of the theory hidden among other tokens, and a hill climb for
each bound from the tightest pair so far. A pair is (z_inf, d, T), z_train = z_inf + d. Quantities are
float64 without cancellation (log w from d, KL by terms that are never negative); the tightest pair of
each bound is worked out again by mpmath at 50 digits.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import mpmath as mp
import numpy as np

from benchmarks._report import machine, table
from contracts import bounds

RESULT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks" / "bounds_search.md"
SEED = 20260102
RELATIVE, ABSOLUTE = 1e-10, 1e-15  # what rounding may add; the tightest pairs are settled by mpmath
REAL_VOCABULARY = 151_936
SHARES = {2: 0.16, 3: 0.1, 4: 0.1, 8: 0.14, 32: 0.14, 128: 0.1, 1024: 0.045, 8192: 0.008, 32_000: 0.004,
          REAL_VOCABULARY: 0.003}  # fmt: skip
CLIMB = 0.2  # of all pairs
EXACT_UP_TO = 1024
LARGEST = 50.0  # logits of difference; every bound on TV is 1 long before

Floats = np.ndarray
Quantities = dict[str, Floats]


@dataclass(frozen=True)
class Pairs:
    """Logits of inference [B, V], differences train − inference [B, V], temperatures [B]."""

    z: Floats
    d: Floats
    t: Floats

    def __getitem__(self, rows) -> Pairs:
        return Pairs(self.z[rows], self.d[rows], self.t[rows])


def measure(pairs: Pairs) -> Quantities:
    """The drift quantities of every pair, float64 [B]."""
    z, d = pairs.z / pairs.t[:, None], pairs.d / pairs.t[:, None]
    log_q = z - z.max(axis=1, keepdims=True)
    log_q -= np.log(np.exp(log_q).sum(axis=1, keepdims=True))
    q = np.exp(log_q)
    centred = d - (q * d).sum(axis=1, keepdims=True)
    top = centred.max(axis=1, keepdims=True)
    peak = (log_q + centred).max(axis=1, keepdims=True)
    far = peak + np.log(np.exp(log_q + centred - peak).sum(axis=1, keepdims=True))
    near = np.log1p(np.maximum((q * np.expm1(np.minimum(centred, 1.0))).sum(axis=1, keepdims=True), -0.9))
    log_w = centred - np.where(np.ptp(d, axis=1, keepdims=True) < 1.0, near, far)  # log E_q e^centred
    around = pairs.d - pairs.d.mean(axis=1, keepdims=True)
    out = {
        "tv": 0.5 * (q * np.abs(np.expm1(log_w))).sum(axis=1),
        "kl": (q * _excess(log_w, lambda x: x * np.exp(x) - np.expm1(x), lambda k: k - 1)).sum(axis=1),
        "kl_reverse": (q * _excess(log_w, lambda x: np.expm1(x) - x, lambda _: 1)).sum(axis=1),
        "log_w": np.abs(log_w).max(axis=1),
        "chi2": ((np.exp(0.5 * log_q) * np.expm1(log_w)) ** 2).sum(axis=1),
        "w2": np.exp(2.0 * log_w + log_q).sum(axis=1),
        "weight": np.abs(np.expm1(log_w)).max(axis=1),
        "h": np.ptp(d, axis=1),
        "osc": np.ptp(pairs.d, axis=1),
        "linf": np.abs(pairs.d).max(axis=1),
        "eps2": np.sqrt((around * around).sum(axis=1)),
        "s": np.sqrt((q * centred * centred).sum(axis=1)) * pairs.t,
        "b": top[:, 0] * pairs.t,
        "t": pairs.t,
    }
    for c in (0.0, 0.2):
        out[f"excess{c}"] = (q * np.maximum(np.abs(np.expm1(log_w)) - c, 0.0)).sum(axis=1)
    return out


def _excess(x: Floats, direct: Callable[[Floats], Floats], numerator: Callable[[int], int]) -> Floats:
    """Σ_{k≥2} numerator(k)·x^k/k!, by the series where the closed form cancels."""
    small = np.abs(x) < 0.05
    series = sum(numerator(k) * np.where(small, x, 0.0) ** k / math.factorial(k) for k in range(2, 11))
    return np.where(small, series, direct(np.where(small, 1.0, x)))


Check = tuple[str, str, Callable[[dict], float], Callable[[dict], float]]
CHECKS: tuple[Check, ...] = (
    ("B1", "osc ≤ √2·ε₂", lambda x: x["osc"], lambda x: bounds.osc_from_l2(x["eps2"])),
    ("B1", "osc ≤ 2‖d‖∞", lambda x: x["osc"], lambda x: bounds.osc_from_linf(x["linf"])),
    ("B1", "TV ≤ tanh(h/4)", lambda x: x["tv"], lambda x: bounds.tv_from_osc(x["h"])),
    ("B1", "TV ≤ tanh(ε₂/2√2T)", lambda x: x["tv"], lambda x: bounds.tv_from_l2(x["eps2"], x["t"])),
    ("B1", "TV ≤ ε₂/2√2T", lambda x: x["tv"], lambda x: bounds.tv_from_l2_linear(x["eps2"], x["t"])),
    ("B2", "KL(p‖q) ≤ h²/8", lambda x: x["kl"], lambda x: bounds.kl_from_osc(x["h"])),
    ("B2", "KL(q‖p) ≤ h²/8", lambda x: x["kl_reverse"], lambda x: bounds.kl_from_osc(x["h"])),
    ("B2", "KL ≤ ε₂²/4T²", lambda x: x["kl"], lambda x: bounds.kl_from_l2(x["eps2"], x["t"])),
    ("B2", "TV ≤ √(KL/2)", lambda x: x["tv"], lambda x: bounds.tv_from_kl(x["kl"])),
    ("B3", "|log w| ≤ h", lambda x: x["log_w"], lambda x: bounds.log_ratio_from_osc(x["h"])),
    ("B3", "|log w| ≤ √2·ε₂/T", lambda x: x["log_w"], lambda x: bounds.log_ratio_from_l2(x["eps2"], x["t"])),
    ("B4", "χ² ≤ sinh²(h/2)", lambda x: x["chi2"], lambda x: bounds.chi2_from_osc(x["h"])),
    ("B4", "E w² ≤ cosh²(h/2)", lambda x: x["w2"], lambda x: bounds.second_moment_from_osc(x["h"])),
    # the worst reward and the worst advantage are the sign of p − q, which makes these equalities in TV
    ("B5", "Δr ≤ R·TV", lambda x: 3.0 * x["tv"], lambda x: bounds.reward_from_tv(x["tv"], 3.0)),
    ("B7", "Δr ≤ ρ_r at τ(ρ_r)", lambda x: 3.0 * x["tv"] * bounds.l2_for_reward(1.0, 3.0, x["t"]),
     lambda x: x["eps2"]),
    ("B8", "Δr ≤ R·((1−ρ)·tanh + ρ)", lambda x: 3.0 * (0.9 * x["tv"] + 0.1),
     lambda x: bounds.reward_from_soft_clause(x["eps2"], 0.1, 3.0, x["t"])),
    ("B9", "KL(q‖p) ≤ (s²/T²)·φ(b/T)", lambda x: x["kl_reverse"],
     lambda x: bounds.kl_from_weighted(x["s"], x["b"], x["t"])),
    ("B9", "TV ≤ √(KL/2) of it", lambda x: x["tv"],
     lambda x: bounds.tv_from_weighted(x["s"], x["b"], x["t"])),
    ("R1", "bias ≤ 2·G·A·TV", lambda x: 6.0 * x["excess0.0"],
     lambda x: bounds.gradient_bias_from_tv(x["tv"], 2.0, 3.0)),
    ("R2", "bias ≤ e_w·G·A", lambda x: 6.0 * x["excess0.0"],
     lambda x: bounds.gradient_bias_from_weight(x["weight"], 2.0, 3.0)),
    ("R2", "bias ≤ 2·tanh(h/4)·G·A", lambda x: 6.0 * x["excess0.0"],
     lambda x: bounds.gradient_bias_from_osc(x["h"], 2.0, 3.0)),
    ("R3", "clipped bias ≤ G·A·(e_w − c)₊", lambda x: 6.0 * x["excess0.2"],
     lambda x: bounds.gradient_bias_clipped(max(x["weight"] - 0.2, 0.0), 2.0, 3.0)),
)  # fmt: skip


# The pairs


def random_pairs(rng: np.random.Generator, size: int, vocabulary: int) -> Pairs:
    shape = (size, vocabulary)
    z = rng.normal(size=shape) * 10.0 ** rng.uniform(-1, 1.5, (size, 1))
    scale = 10.0 ** rng.uniform(-5, 1, (size, 1))
    kind = rng.integers(0, 4, size)
    d = rng.normal(size=shape)
    d[kind == 1] = rng.standard_cauchy(size=d[kind == 1].shape)
    d[kind == 2] *= rng.random(d[kind == 2].shape) < 3.0 / vocabulary
    d[kind == 3] = np.sign(d[kind == 3])
    d = np.clip(scale * d, -LARGEST, LARGEST)
    return Pairs(z, d, 10.0 ** rng.uniform(-0.5, 0.5, size))


def extremal_pairs(rng: np.random.Generator, size: int, vocabulary: int) -> Pairs:
    """Two-valued differences with the mass where [B1] and [B3] are equalities."""
    t = 10.0 ** rng.uniform(-0.5, 0.5, size)
    h = 10.0 ** rng.uniform(-5, 1.3, size)
    first = rng.integers(1, vocabulary, size)
    in_first = np.arange(vocabulary) < first[:, None]
    mass = 1.0 / (1.0 + np.exp(h / 2.0))  # tanh(h/4) is attained
    corner = rng.random(size) < 0.3
    mass[corner] = 10.0 ** rng.uniform(-12, -3, int(corner.sum()))  # log w comes near h
    weight = np.where(
        in_first, mass[:, None] / first[:, None], (1.0 - mass[:, None]) / (vocabulary - first[:, None])
    )
    d = np.where(in_first, (h * t)[:, None], 0.0)
    alone = rng.random(size) < 0.4  # two tokens carry everything: ε₂ is no larger than it must be
    hidden = rng.normal(-60.0, 1.0, (size, vocabulary))
    hidden[:, 0], hidden[:, 1] = np.log(mass), np.log1p(-mass)
    apart = np.zeros_like(d)
    apart[:, 0], apart[:, 1] = h * t / 2.0, -h * t / 2.0
    z = np.where(alone[:, None], hidden, np.log(weight)) * t[:, None]
    return Pairs(z, np.where(alone[:, None], apart, d), t)


def neighbours(rng: np.random.Generator, pair: Pairs, size: int) -> Pairs:
    shape = (size, pair.z.shape[1])
    step = 10.0 ** rng.uniform(-4, 0, (size, 1))
    spread = np.ptp(pair.d, axis=1, keepdims=True) + 1e-9
    some = rng.random(shape) < 0.5
    return Pairs(
        np.clip(pair.z + step * rng.normal(size=shape) * some, -100.0, 100.0),
        np.clip(pair.d + step * spread * rng.normal(size=shape) * ~some, -LARGEST, LARGEST),
        np.repeat(pair.t, size),
    )


# The search


@dataclass
class Record:
    """One bound's search: the tightest ratio by vocabulary, and the tightest pair fit for mpmath."""

    by_vocabulary: dict[int, float] = field(default_factory=dict)
    ratio: float = -math.inf
    pair: Pairs | None = None
    exceeded: int = 0
    seen: int = 0

    def see(self, ratio: float, pairs: Pairs, row: int) -> None:
        vocabulary = pairs.z.shape[1]
        self.by_vocabulary[vocabulary] = max(ratio, self.by_vocabulary.get(vocabulary, -math.inf))
        if ratio > self.ratio and vocabulary <= EXACT_UP_TO:
            self.ratio, self.pair = ratio, pairs[row : row + 1]


def check(pairs: Pairs, records: list[Record]) -> None:
    """Every bound on every pair; keeps the tightest ones and counts what is exceeded."""
    x = measure(pairs)
    rows = [dict(zip(x, map(float, row), strict=True)) for row in zip(*x.values(), strict=True)]
    for (_, _, value, bound), record in zip(CHECKS, records, strict=True):
        values, limits = [value(r) for r in rows], [bound(r) for r in rows]
        for i, (v, limit) in enumerate(zip(values, limits, strict=True)):
            record.seen += 1
            record.exceeded += not v <= limit * (1.0 + RELATIVE) + ABSOLUTE
            if limit > 1e-6:  # below, rounding is all there is to see
                record.see(v / limit, pairs, i)


def search(pairs: int, seed: int = SEED, largest: int = REAL_VOCABULARY) -> list[Record]:
    """About `pairs` pairs through every bound."""
    rng = np.random.default_rng(seed)
    records = [Record() for _ in CHECKS]
    for vocabulary, share in SHARES.items():
        if vocabulary > largest:
            continue
        left, batch = math.ceil(pairs * share), max(1, min(2000, 2_000_000 // vocabulary))
        while left > 0:
            size = min(batch, left)
            for made in (random_pairs(rng, size - size // 2, vocabulary),
                         extremal_pairs(rng, size // 2, vocabulary)):  # fmt: skip
                if len(made.t):
                    check(made, records)
            left -= size
    rounds = math.ceil(pairs * CLIMB / (len(CHECKS) * 50))
    for index in range(len(CHECKS)):
        for _ in range(rounds):
            pair = records[index].pair
            if pair is not None:
                check(neighbours(rng, pair, 50), records)
    return records


def truncated(
    rng: np.random.Generator, pairs: int, largest: int = REAL_VOCABULARY
) -> tuple[int, float, float]:
    """[C1] on the largest K of random pairs: times exceeded, and how near both ends come.

    One pair in 200 has a vocabulary up to the largest.
    """
    exceeded, near_low, near_high = 0, math.inf, math.inf
    for index in range(pairs):
        vocabulary = int(rng.integers(3, 400) if index % 200 else rng.integers(400, largest + 1))
        p, q = (rng.dirichlet(np.full(vocabulary, 10.0 ** rng.uniform(-2, 1))) for _ in range(2))
        kept = np.argsort(p)[::-1][: rng.integers(1, min(vocabulary, 1000))]
        tv = 0.5 * np.abs(p - q).sum()
        low, high = bounds.truncated_tv(p[kept].tolist(), q[kept].tolist())
        exceeded += not low - 1e-12 <= tv <= high + 1e-12
        near_low, near_high = min(near_low, tv - low), min(near_high, high - tv)
    return exceeded, near_low, near_high


def sequences(rng: np.random.Generator, pairs: int) -> tuple[int, float, int, float]:
    """[B6] and [R5] on all 64 sequences of three tokens whose conditionals depend on the past."""
    out, tightest_tv, tightest_ess = [0, 0], 0.0, 0.0
    for _ in range(pairs):
        scale = 10.0 ** rng.uniform(-3, 0.7)
        steps = [Pairs(rng.normal(size=(4**i, 4)) * 2, rng.normal(size=(4**i, 4)) * scale, np.ones(4**i))
                 for i in range(3)]  # fmt: skip
        found = [measure(step) for step in steps]
        tvs, kls, hs = ([float(x[k].max()) for x in found] for k in ("tv", "kl", "h"))
        joint = []
        for sign in (1.0, 0.0):
            whole = np.ones(1)
            for step in steps:
                z = step.z + sign * step.d
                conditional = np.exp(z - z.max(axis=1, keepdims=True))
                whole = (whole[:, None] * conditional / conditional.sum(axis=1, keepdims=True)).ravel()
            joint.append(whole)
        p, q = joint
        tv, limit = 0.5 * np.abs(p - q).sum(), bounds.sequence_tv(tvs, kls)
        size, least = 1.0 / (p * p / q).sum(), bounds.trajectory_ess(hs)
        out[0] += not tv <= limit * (1 + 1e-9) + 1e-14
        out[1] += not least <= size * (1 + 1e-9)
        out[1] += not np.abs(np.log(p / q)).max() <= bounds.trajectory_log_ratio(hs) * (1 + 1e-9) + 1e-12
        tightest_tv, tightest_ess = max(tightest_tv, tv / limit), max(tightest_ess, least / size)
    return out[0], tightest_tv, out[1], tightest_ess


def exactly(pair: Pairs) -> dict:
    """The quantities of one pair by mpmath at the working precision."""
    z, d = [mp.mpf(float(v)) for v in pair.z[0]], [mp.mpf(float(v)) for v in pair.d[0]]
    t = mp.mpf(float(pair.t[0]))
    q_raw, p_raw = [mp.exp(a / t) for a in z], [mp.exp((a + b) / t) for a, b in zip(z, d, strict=True)]
    q, p = [v / mp.fsum(q_raw) for v in q_raw], [v / mp.fsum(p_raw) for v in p_raw]
    w = [a / b for a, b in zip(p, q, strict=True)]
    mean, mean_q = mp.fsum(d) / len(d), mp.fsum(a * b for a, b in zip(q, d, strict=True))
    spread = mp.fsum(a * (b - mean_q) ** 2 for a, b in zip(q, d, strict=True))
    return {
        "tv": mp.fsum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2,
        "kl": mp.fsum(a * mp.log(b) for a, b in zip(p, w, strict=True)),
        "kl_reverse": -mp.fsum(a * mp.log(b) for a, b in zip(q, w, strict=True)),
        "log_w": max(abs(mp.log(v)) for v in w),
        "chi2": mp.fsum(a * (b - 1) ** 2 for a, b in zip(q, w, strict=True)),
        "w2": mp.fsum(a * b * b for a, b in zip(q, w, strict=True)),
        "weight": max(abs(v - 1) for v in w),
        "h": (max(d) - min(d)) / t,
        "osc": max(d) - min(d),
        "linf": max(abs(v) for v in d),
        "eps2": mp.sqrt(mp.fsum((v - mean) ** 2 for v in d)),
        "s": mp.sqrt(spread),
        "b": max(d) - mean_q,
        "t": t,
        "excess0.0": mp.fsum(a * abs(b - 1) for a, b in zip(q, w, strict=True)),
        "excess0.2": mp.fsum(a * max(abs(b - 1) - mp.mpf("0.2"), 0) for a, b in zip(q, w, strict=True)),
    }


def exact_ratios(records: list[Record]) -> Iterator[float]:
    """Quantity over bound of each tightest pair, the quantity at 50 digits."""
    with mp.workdps(50):
        for (_, _, value, bound), record in zip(CHECKS, records, strict=True):
            if record.pair is None:
                yield math.nan
                continue
            x = exactly(record.pair)
            rounded = {name: float(v) for name, v in x.items()}
            yield float(value(x) / mp.mpf(bound(rounded)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help=f"a smoke run; {RESULT.name} is left alone")
    arguments = parser.parse_args()
    pairs, largest = (2_000, 1024) if arguments.quick else (arguments.pairs, REAL_VOCABULARY)
    started, rng = time.perf_counter(), np.random.default_rng(SEED + 1)
    records = search(pairs, largest=largest)
    rows = [
        [f"[{label}]", claim, f"{record.seen:,}", f"{record.exceeded}",
         f"{max(record.by_vocabulary.values()):.6f}",
         f"{record.by_vocabulary.get(REAL_VOCABULARY, math.nan):.6f}", f"{exact:.12f}"]
        for (label, claim, _, _), record, exact in zip(CHECKS, records, exact_ratios(records), strict=True)
    ]  # fmt: skip
    beyond, low, high = truncated(rng, pairs, largest)
    rows.append(["[C1]", "tv_K ≤ TV ≤ tv_K + min tail", f"{pairs:,}", f"{beyond}",
                 f"gaps {low:.1e}, {high:.1e}", "–", "–"])  # fmt: skip
    tv_out, tv_ratio, ess_out, ess_ratio = sequences(rng, pairs)
    for label, claim, out, ratio in (("B6", "TV of sequences", tv_out, tv_ratio),
                                     ("R5", "trajectory ratio and ESS", ess_out, ess_ratio)):  # fmt: skip
        rows.append([f"[{label}]", claim, f"{pairs:,}", f"{out}", f"{ratio:.6f}", "–", "–"])
    head = ["bound", "claim", "pairs", "exceeded", "tightest", "at V = 151,936", "at 50 digits, V ≤ 1,024"]
    text = TEXT.format(
        seed=SEED, seconds=time.perf_counter() - started, machine=machine(), table=table(head, rows)
    )
    print(text)
    if not arguments.quick:
        RESULT.write_text(text, encoding="utf-8")
    if any(row[3] != "0" for row in rows):
        raise SystemExit("a bound was exceeded")


TEXT = """\
# Search for pairs that exceed a bound

Written by `python -m benchmarks.bounds_search` (seed {seed}) in {seconds:.0f} s on {machine}.

*Exceeded* counts pairs whose quantity is above the bound by more than rounding (1e-10 relatively);
*tightest* is the largest quantity over bound, over all vocabularies and at a real one; the last column
works the tightest pair of at most 1,024 tokens out again with mpmath. [B1] in h and in ε₂, [B3] and
[C1] (whose two ends come within rounding of TV) are attained: they cannot be improved. [B5] and [R1]
are equalities here, the reward and the advantage being the worst ones.

{table}
"""


if __name__ == "__main__":
    main()
