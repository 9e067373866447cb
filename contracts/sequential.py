"""Anytime-valid bounds on the mean of draws in [0, 1]: the e-process of [S3].

For a null mean ρ and an alternative p > ρ the bet `1 + (p − ρ)/(ρ(1 − ρ))·(x − ρ)` has
expectation <= 1 for every x in [0, 1] with mean <= ρ, so its product over draws is a
non-negative supermartingale, and so is any mixture over p. For x in {0, 1} it is exactly the
likelihood ratio (p/ρ)^k ((1 − p)/(1 − ρ))^(n − k). The bets are constant, so the e-value is a
function of the multiset of draws: order, sharding and the times one looked do not enter.

The mixture is p = ρ^(1 − u), u uniform on (0, 1), which is log-uniform on (ρ, 1); with
g = (ρ^−u − 1)/(1 − ρ) the bet is 1 + g(x − ρ). For fixed u both p/ρ and (1 − p)/(1 − ρ)
decrease in ρ, hence so does the e-value, and the ρ it rejects form an interval. The mirrored
process (x → 1 − x, ρ → 1 − ρ) rejects "mean >= ρ"; it has mass `MASS_AT_ZERO` on p = 0, so
that draws without any exceedance certify quickly.

All reductions in float64, sums of logarithms with logsumexp.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from contracts.accumulators import Draws, Moments, Sketch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NODES = 64
MASS_AT_ZERO = 0.4
MOST_PROMPTS = 10_000_000


@cache
def _mixture() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Exponents u with log-weights for alarms and for certification, each summing to 1.

    Any nodes give a valid e-process; u = t² at midpoints t puts more of them near u = 0,
    where long runs tell p from ρ apart. The last node is u = 1.
    """
    import numpy as np

    t = (np.arange(NODES) + 0.5) / NODES
    nodes = np.append(t * t, 1.0)
    above = np.append(t, 0.0)
    below = np.append(t**3, 0.0)
    below *= (1.0 - MASS_AT_ZERO) / below.sum()
    below[-1] = MASS_AT_ZERO
    with np.errstate(divide="ignore"):
        return nodes, np.log(above / above.sum()), np.log(below / below.sum())


def _grouped(draws: Draws) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Distinct shares, ascending, and how many prompts have each, both float64 [m]."""
    import numpy as np

    counts: Counter[float] = Counter()
    for exceeding, decisions, prompts in draws.shares:
        counts[exceeding / decisions] += prompts
    ordered = sorted(counts)
    return np.array(ordered, dtype=np.float64), np.array([counts[s] for s in ordered], dtype=np.float64)


def _log_mixture(
    log_weights: NDArray[np.float64],
    bets: NDArray[np.float64],
    gains: NDArray[np.float64],
    counts: NDArray[np.float64],
) -> float:
    """Log Σ_j w_j Π_i (1 + bets_j·gains_i)^counts_i."""
    if not counts.size:
        return 0.0
    return float(_log_sum_exp(log_weights + _growth(bets, gains).T @ counts))


def _growth(bets: NDArray[np.float64], gains: NDArray[np.float64]) -> NDArray[np.float64]:
    """log(1 + bet·gain), float64 [gains, bets]; its absolute error is a few 1e-16, like log1p's."""
    import numpy as np

    factors = np.outer(gains, bets)
    factors += 1.0
    np.maximum(factors, 0.0, out=factors)
    with np.errstate(divide="ignore"):
        return np.log(factors, out=factors)


def _log_sum_exp(exponents: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over the last axis, which has a finite largest element; float64."""
    import numpy as np

    peak = exponents.max(axis=-1, keepdims=True)
    total: NDArray[np.float64] = peak[..., 0] + np.log(np.exp(exponents - peak).sum(axis=-1))
    return total


def _bets_above(rho: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Log-weights and bets (ρ^−u − 1)/(1 − ρ) on gains x − ρ, each [NODES + 1]."""
    import numpy as np

    nodes, weights, _ = _mixture()
    return weights, np.expm1(-nodes * math.log(rho)) / (1.0 - rho)


def _bets_below(rho: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mirror image: log-weights and bets on gains ρ − x."""
    import numpy as np

    nodes, _, weights = _mixture()
    return weights, np.expm1(-nodes * math.log1p(-rho)) / rho


class Betting:
    """E-values of one multiset of draws in [0, 1], against any null mean.

    `weight` scales every count: the evidence there would be after `weight` times as many
    draws of the same kind, used only to say how many more are needed.
    """

    def __init__(self, draws: Draws, weight: float = 1.0) -> None:
        self._shares, counts = _grouped(draws)
        self._counts = counts * weight
        self.n = int(counts.sum())
        self.mean = float(self._shares @ counts) / self.n if self.n else math.nan

    def log_e_above(self, rho: float) -> float:
        """Log of the e-value against H0: mean <= rho; large when the mean is above [S3]."""
        if self.n == 0 or rho >= 1.0:
            return 0.0
        if rho <= 0.0:
            return math.inf if self._shares[-1] > rho else 0.0
        weights, bets = _bets_above(rho)
        return _log_mixture(weights, bets, self._shares - rho, self._counts)

    def log_e_below(self, rho: float) -> float:
        """Log of the e-value against H0: mean >= rho; large when the mean is below."""
        if self.n == 0 or rho <= 0.0:
            return 0.0
        if rho >= 1.0:
            return math.inf if self._shares[0] < rho else 0.0
        weights, bets = _bets_below(rho)
        return _log_mixture(weights, bets, rho - self._shares, self._counts)

    def lower(self, alpha: float) -> float:
        """Lower confidence sequence of the mean: valid at all times at once at 1 − alpha."""
        if self.n == 0 or self.mean <= 0.0:
            return 0.0
        if self.log_e_above(self.mean * 1e-12) < -math.log(alpha):
            return 0.0
        return _last_rejected(self.log_e_above, self.mean * 1e-12, self.mean, -math.log(alpha))

    def upper(self, alpha: float) -> float:
        """Upper confidence sequence of the mean: valid at all times at once at 1 − alpha."""
        top = 1.0 - 1e-12
        if self.n == 0 or self.mean >= top or self.log_e_below(top) < -math.log(alpha):
            return 1.0
        return _last_rejected(self.log_e_below, top, max(self.mean, 0.0), -math.log(alpha))


class Running:
    """One side of the same e-values, one draw at a time, for many streams at once.

    After any draws `log_e` is what `Betting` says of the same multiset at the null mean `rho`; a
    peek costs O(NODES) a stream, however many draws there were.

    Args:
        rho: null mean in (0, 1). Raises ValueError outside.
        streams: how many independent streams.
        above: whether to test H0: mean <= rho (an alarm), or H0: mean >= rho (a certification).
    """

    def __init__(self, rho: float, streams: int, *, above: bool) -> None:
        import numpy as np

        if not 0.0 < rho < 1.0:
            raise ValueError(f"need 0 < rho < 1, got {rho}")
        self._rho, self._sign = rho, 1.0 if above else -1.0
        weights, self._bets = (_bets_above if above else _bets_below)(rho)
        self._exponents = np.tile(weights, (streams, 1))

    def add(self, draws: NDArray[np.float64]) -> None:
        """One draw in [0, 1] for every stream, float64 [streams]."""
        self._exponents += _growth(self._bets, self._sign * (draws - self._rho))

    def log_e(self) -> NDArray[np.float64]:
        """Log e-values so far, float64 [streams]."""
        return _log_sum_exp(self._exponents)

    def keep(self, streams: NDArray[np.bool_]) -> None:
        """Go on with the marked streams only, bool [streams]."""
        self._exponents = self._exponents[streams]


def _last_rejected(log_e: Callable[[float], float], rejected: float, kept: float, threshold: float) -> float:
    """The last null mean with log_e >= threshold on the way to `kept`, within 1e-9 relative.

    False position on the clipped excess with the Illinois rule; the end returned is a
    rejected one, so that rounding only widens the interval.
    """

    def excess(mean: float) -> float:
        return min(max(log_e(mean) - threshold, -50.0), 50.0)

    a, fa, b, fb = rejected, excess(rejected), kept, excess(kept)
    side = 0
    for step in range(200):
        if abs(b - a) <= 1e-9 * max(abs(a), abs(b)):
            break
        middle = (a + b) / 2.0 if step % 4 == 3 or fa == fb else b - fb * (b - a) / (fb - fa)
        middle = middle if min(a, b) < middle < max(a, b) else (a + b) / 2.0
        fm = excess(middle)
        if fm >= 0.0:
            a, fa, fb, side = middle, fm, fb / 2.0 if side == 1 else fb, 1
        else:
            b, fb, fa, side = middle, fm, fa / 2.0 if side == -1 else fa, -1
    return a


def prompts_needed(rho: float, alpha: float, exceeding: int = 0) -> int | None:
    """Fewest 0/1 draws with `exceeding` ones whose e-value certifies mean < rho at level alpha.

    None beyond `MOST_PROMPTS`. Raises ValueError unless 0 < rho < 1 and 0 < alpha < 1.
    """
    if not (0.0 < rho < 1.0 and 0.0 < alpha < 1.0 and exceeding >= 0):
        raise ValueError(f"need 0 < rho < 1, 0 < alpha < 1, exceeding >= 0; got {rho}, {alpha}, {exceeding}")

    def certifies(n: int) -> bool:
        return Betting(binary(exceeding, n)).log_e_below(rho) >= -math.log(alpha)

    return smallest(certifies, exceeding + 1)


def smallest(decides: Callable[[int], bool], start: int) -> int | None:
    """The smallest n >= start with decides(n), for a predicate that stays true; None if too large."""
    high = max(start, 1)
    while not decides(high):
        high *= 2
        if high > MOST_PROMPTS:
            return None
    low = max(high // 2, start)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle + 1, high)
    return high


def binary(events: int, trials: int) -> Draws:
    """`trials` draws of which `events` are 1 and the others 0."""
    return Draws(shares=tuple(s for s in ((0, 1, trials - events), (1, 1, events)) if s[2]))


def studentised(moments: Moments, z: float) -> tuple[float, float]:
    """μ̂ ± z·σ̂/√n, each end moved outwards where the sample's skewness γ asks for it.

    The one-sided Edgeworth correction γ(1 + 2z²)/(6n)·σ̂: without it the upper end of a
    right-skewed mean is too low, and a clause on it passes too often. Never moved inwards.
    """
    n, deviation = moments.n, math.sqrt(moments.variance)
    shift = moments.skewness * (1.0 + 2.0 * z * z) / (6.0 * n) * deviation
    width = z * deviation / math.sqrt(n)
    return moments.mean - width + min(shift, 0.0), moments.mean + width + max(shift, 0.0)


def asymptotic_cs(moments: Moments, alpha: float, at: int) -> tuple[float, float]:
    """Asymptotic confidence sequence of an unbounded mean, each end one-sided at alpha.

    Method "asymptotic-cs": μ̂ ± σ̂·√(2(nη² + 1)/(n²η²)·log(1 + √(nη² + 1)/(2α))), the normal
    mixture boundary with η chosen so that it is tightest near n = `at` draws, which must not
    depend on the data, and the ends corrected for skewness (`studentised`). Its coverage is
    asymptotic: it assumes nothing but a finite variance, and promises nothing at small n. Moments
    exact, the rest float64. n < 2 gives (−inf, inf).
    """
    n = moments.n
    if n < 2:
        return -math.inf, math.inf
    level = min(2.0 * alpha, 0.99)
    eta2 = (-2.0 * math.log(level) + math.log(-2.0 * math.log(level) + 1.0)) / max(at, 2)
    spread = 2.0 * (n * eta2 + 1.0) / (n * n * eta2)
    z2 = n * spread * math.log1p(math.sqrt(n * eta2 + 1.0) / (2.0 * alpha))
    return studentised(moments, math.sqrt(z2))


def quantile_bounds(sketch: Sketch, q: float, alpha: float) -> tuple[float, float]:
    """Confidence sequence of the q-quantile, each end one-sided at alpha, valid at all times.

    At threshold t the indicators 1[x > t] are 0/1 draws; t lies below the quantile when their
    mean is certified above 1 − q, and above it when certified below. Inverted over bucket
    edges, so conservative by at most a bucket's width (1 %). (0, inf) where nothing is certified.
    """
    needed, n = -math.log(alpha), sketch.n
    return invert_quantile(
        sketch,
        lambda beyond: Betting(binary(beyond, n)).log_e_above(1.0 - q) >= needed,
        lambda beyond: Betting(binary(beyond, n)).log_e_below(1.0 - q) >= needed,
    )


def invert_quantile(
    sketch: Sketch, above: Callable[[int], bool], below: Callable[[int], bool]
) -> tuple[float, float]:
    """The edges between which a quantile is not excluded.

    `above(k)` says whether k values beyond a threshold put the quantile above it (true for
    large k), `below(k)` whether they put it at or below (true for small k).
    """
    beyond = [sketch.n]
    for _, count in sketch.buckets:
        beyond.append(beyond[-1] - count)
    too_low = bisect.bisect_left(beyond[:-1], True, key=lambda k: not above(k))
    high_enough = bisect.bisect_left(beyond[1:], True, key=below)
    return (
        Sketch.edges(sketch.buckets[too_low - 1][0])[0] if too_low else 0.0,
        Sketch.edges(sketch.buckets[high_enough][0])[1] if high_enough < len(sketch.buckets) else math.inf,
    )
