"""Fixed-sample bounds: valid at one look at a sample whose size was fixed beforehand [S2].

Every bound is one-sided at its own alpha. Shares inside [0, 1] that are not 0/1 use the
e-value of :mod:`contracts.sequential`, which holds for fixed samples by Markov's inequality.
All numbers float64; the special functions are scipy's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from contracts.accumulators import Moments, Sketch
from contracts.paired_accumulators import CALIBRATION_UNIT, Bin, Calibration, Weights
from contracts.sequential import invert_quantile, smallest, studentised

ASYMPTOTIC_MINIMUM = 30  # prompts below which a normal approximation is not believed


def clopper_pearson(events: float, trials: float, alpha: float) -> tuple[float, float]:
    """Exact binomial bounds on a probability, each end one-sided at alpha [S2].

    `events` and `trials` may be real, to say what a longer sample of the same kind would give.
    Without trials the bounds are (0, 1).
    """
    from scipy.special import betaincinv

    if trials <= 0:
        return 0.0, 1.0
    low = float(betaincinv(events, trials - events + 1, alpha)) if events > 0 else 0.0
    high = float(betaincinv(events + 1, trials - events, 1.0 - alpha)) if events < trials else 1.0
    return low, high


def binomial_p_value(events: int, trials: int, rho: float) -> float:
    """P(Bin(trials, rho) >= events): the p-value of "the probability is at most rho"."""
    from scipy.special import betainc

    if events <= 0 or rho >= 1.0:
        return 1.0
    return float(betainc(events, trials - events + 1, rho)) if rho > 0.0 else 0.0


def prompts_needed(rho: float, alpha: float, exceeding: int = 0) -> int | None:
    """Fewest prompts with `exceeding` of them beyond the limit whose upper bound is <= rho [S2].

    rho = .01 at alpha = .05 needs 299, 473, 628, 773 for 0, 1, 2, 3 exceedances. None beyond ten
    million. Raises ValueError unless 0 < rho < 1 and 0 < alpha < 1.
    """
    if not (0.0 < rho < 1.0 and 0.0 < alpha < 1.0 and exceeding >= 0):
        raise ValueError(f"need 0 < rho < 1, 0 < alpha < 1, exceeding >= 0; got {rho}, {alpha}, {exceeding}")
    if exceeding == 0:
        return hard_sample_size(rho, alpha)
    return smallest(lambda n: clopper_pearson(exceeding, n, alpha)[1] <= rho, exceeding + 1)


def hard_sample_size(rho: float, alpha: float) -> int:
    """Prompts without a counterexample that certify exceedance < rho: ⌈ln α / ln(1 − ρ)⌉ [S2].

    Valid at every peek too: "none among the first n" can only become false.
    """
    return math.ceil(math.log(alpha) / math.log1p(-rho))


def student_t(moments: Moments, alpha: float) -> tuple[float, float]:
    """Bounds on the mean of unbounded per-prompt values, each end one-sided at alpha.

    Method "student-t": exact for normal values, asymptotic for any others with a finite
    variance, and corrected for their skewness (`sequential.studentised`). (−inf, inf) below two
    prompts.
    """
    from scipy.special import stdtrit

    if moments.n < 2:
        return -math.inf, math.inf
    return studentised(moments, float(stdtrit(moments.n - 1, 1.0 - alpha)))


def quantile_bounds(sketch: Sketch, q: float, alpha: float) -> tuple[float, float]:
    """Order-statistic bounds on the q-quantile, each end one-sided at alpha.

    The number of values at or below the quantile is Bin(n, q), whatever their distribution.
    Taken from a sketch, each end moves outwards to its bucket's edge (at most 1 %). (0, inf)
    where n is too small:
    an upper bound needs 1 − q^n >= 1 − alpha, that is 299 values for p99 at alpha = .05.
    """
    n = sketch.n
    return invert_quantile(
        sketch,
        lambda beyond: binomial_p_value(beyond, n, 1.0 - q) <= alpha,
        lambda beyond: binomial_p_value(n - beyond, n, q) <= alpha,
    )


def sketch_quantile(sketch: Sketch, q: float) -> tuple[float, float]:
    """The range the q-quantile of the values seen lies in: the edges of its bucket.

    Raises ValueError for an empty sketch.
    """
    rank, seen = max(math.ceil(q * sketch.n), 1), 0
    for bucket, count in sketch.buckets:
        seen += count
        if seen >= rank:
            return Sketch.edges(bucket)
    raise ValueError("an empty sketch has no quantile")


def sketch_moments(sketch: Sketch) -> tuple[Moments, float]:
    """Moments of the bucket middles, and the relative error their mean can have (0.5 %)."""
    total, squares, cubes = Fraction(0), Fraction(0), Fraction(0)
    for bucket, count in sketch.buckets:
        middle = Fraction(sum(Sketch.edges(bucket)) / 2.0)
        total, squares = total + middle * count, squares + middle * middle * count
        cubes += middle**3 * count
    return Moments(n=sketch.n, total=total, squares=squares, cubes=cubes), Sketch.ERROR


def calibration_gap(calibration: Calibration, groups: int | None = None) -> tuple[float, Moments]:
    """Signed ECE(train) − ECE(inference) [Q11], and what its variance over prompts is made of [S11].

    ECE = Σ_b |confidence_b − hits_b| / N. With the sign of each bin fixed at its estimate the
    gap is a ratio of sums over prompts, A/N; the moments returned are those of
    n·(a_i − gap·n_i)/N, mean 0, so that `student_t` of them is the delta-method interval with
    prompts as draws and the pairing kept. Asymptotic, and rough where a bin's own gap is near
    zero on one side only. With `groups` the bins of each side are first joined into as many of
    about equal mass. Exact rational arithmetic, rounded once. Raises ZeroDivisionError when empty.
    """
    decisions = calibration.decisions
    train, ece_train = _signs(calibration.train, groups)
    inference, ece_inference = _signs(calibration.inference, groups)
    gap = (ece_train - ece_inference) / decisions
    direction: list[Fraction] = [-gap, *map(Fraction, train), *(Fraction(-s) for s in inference)]
    pairs = itertools.combinations_with_replacement(range(len(direction)), 2)
    squares = sum(
        (
            direction[i] * direction[j] * moment * (1 if i == j else 2)
            for (i, j), moment in zip(pairs, calibration.cross, strict=True)
            if moment
        ),
        Fraction(0),
    )
    scale = Fraction(calibration.prompts, decisions * CALIBRATION_UNIT)
    return float(gap), Moments(n=calibration.prompts, squares=max(squares, Fraction(0)) * scale * scale)


def _signs(bins: Sequence[Bin], groups: int | None) -> tuple[list[int], Fraction]:
    """The sign of confidence − hits of the group each bin is in, and Σ over groups of its size."""
    total, seen, edge = sum(b.count for b in bins), 0, 0
    signs: list[int] = []
    size, member = Fraction(0), Fraction(0)
    pending = 0
    for b in bins:
        member, pending, seen = member + b.confidence - b.hits, pending + 1, seen + b.count
        if groups is None or seen * groups >= (edge + 1) * total:
            edge = seen * groups // total if groups and total else edge
            signs += [(member > 0) - (member < 0)] * pending
            size, member, pending = size + abs(member), Fraction(0), 0
    return signs + [0] * pending, size  # what is left after the last group is empty


def effective_sample_size(weights: Weights) -> tuple[float, Moments]:
    """ESS (Σw)²/(n Σw²) in [0, 1] over all decisions [Q16], and what its variance is made of.

    The moments returned are those of ESS·P·(2aᵢ/A − nᵢ/N − bᵢ/B) over P prompts, mean 0, with
    (n, a, b) = (decisions, Σw, Σw²) of a prompt and N, A, B their sums: the delta method with
    prompts as draws. Asymptotic, and blind to a weight so rare that none was seen. Exact rational
    arithmetic, rounded once. Raises ZeroDivisionError when empty or all weights are 0.
    """
    decisions, total, squares = weights.sums
    size = total * total / (decisions * squares)
    direction = (-1 / decisions, 2 / total, -1 / squares)
    pairs = itertools.combinations_with_replacement(range(3), 2)
    spread = sum(
        (
            direction[i] * direction[j] * moment * (1 if i == j else 2)
            for (i, j), moment in zip(pairs, weights.cross, strict=True)
        ),
        Fraction(0),
    )
    scale = size * weights.prompts
    return float(size), Moments(n=weights.prompts, squares=max(spread, Fraction(0)) * scale * scale)


def mcnemar_p_value(train_only: int, inference_only: int) -> float:
    """Exact two-sided McNemar test that flips go either way equally often [Q13]."""
    flips = train_only + inference_only
    return min(1.0, 2.0 * binomial_p_value(max(train_only, inference_only), flips, 0.5))


def p_by_inversion(excludes: Callable[[float], bool]) -> float:
    """The smallest alpha, to a factor of 1.01, at which a bound excludes the limit; 1.0 if none.

    `excludes(alpha)` must stay true as alpha grows. Never reports less than 1e-12.
    """
    low, high = math.log(1e-12), math.log(0.5)
    if not excludes(0.5):
        return 1.0
    while high - low > 0.01:
        middle = (low + high) / 2.0
        low, high = (low, middle) if excludes(math.exp(middle)) else (middle, high)
    return math.exp(high)
