"""The chain of bounds from logits to rewards: theory.md sections 2.1 and 3.

Plain float64 functions. `h` is logit_osc/T in nats, `eps2` the centred logit distance ‖dc‖₂ in
logits, `t` the temperature > 0; probabilities, shares and total variations are in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

ROOT_2 = math.sqrt(2.0)


def truncated_tv(p: Sequence[float], q: Sequence[float]) -> tuple[float, float]:
    """Bounds on TV from both sides' probabilities on one set S of tokens [C1].

    tv_K = ½ Σ_S |p − q| + ½ |p(S^c) − q(S^c)|; tv_K ≤ TV ≤ tv_K + min(p(S^c), q(S^c)). Both ends
    are attained. Sums with math.fsum. Raises ValueError on different lengths, a probability
    outside [0, 1], or a mass above 1 by more than 1e-9.
    """
    if len(p) != len(q):
        raise ValueError(f"both sides must give the same tokens: {len(p)} and {len(q)} probabilities")
    if not all(0.0 <= v <= 1.0 for v in (*p, *q)):
        raise ValueError("probabilities must lie in [0, 1]")
    mass_p, mass_q = math.fsum(p), math.fsum(q)
    if max(mass_p, mass_q) > 1.0 + 1e-9:
        raise ValueError(f"probabilities sum to {max(mass_p, mass_q)}, above 1")
    tail_p, tail_q = max(0.0, 1.0 - mass_p), max(0.0, 1.0 - mass_q)
    low = 0.5 * (math.fsum(abs(a - b) for a, b in zip(p, q, strict=True)) + abs(tail_p - tail_q))
    return min(low, 1.0), min(low + min(tail_p, tail_q), 1.0)


def osc_from_l2(eps2: float) -> float:
    """Oscillation from the centred distance: osc ≤ √2·ε₂, in logits."""
    return ROOT_2 * eps2


def osc_from_linf(linf: float) -> float:
    """Oscillation from the largest difference: osc ≤ 2‖d‖_∞, in logits."""
    return 2.0 * linf


def tv_from_osc(h: float) -> float:
    """TV ≤ tanh(h/4) [B1]; equality at d = (ε, −ε) around symmetric logits of two tokens."""
    return math.tanh(h / 4.0)


def tv_from_l2(eps2: float, t: float = 1.0) -> float:
    """TV ≤ tanh(ε₂/(2√2·T)) [B1]."""
    return math.tanh(eps2 / (2.0 * ROOT_2 * t))


def tv_from_l2_linear(eps2: float, t: float = 1.0) -> float:
    """TV ≤ ε₂/(2√2·T), the linear form of [B1]; vacuous above 1, where 1 is returned."""
    return min(1.0, eps2 / (2.0 * ROOT_2 * t))


def kl_from_osc(h: float) -> float:
    """KL ≤ h²/8, nats, either direction [B2]."""
    return h * h / 8.0


def kl_from_l2(eps2: float, t: float = 1.0) -> float:
    """KL ≤ ε₂²/(4T²), nats [B2]."""
    return eps2 * eps2 / (4.0 * t * t)


def tv_from_kl(kl: float) -> float:
    """Pinsker: TV ≤ √(KL/2), at most 1; a KL that rounding made negative counts as 0 [B2]."""
    return min(1.0, math.sqrt(max(kl, 0.0) / 2.0))


def log_ratio_from_osc(h: float) -> float:
    """|log w| ≤ h, nats [B3]; approached when all mass sits at one end of d."""
    return h


def log_ratio_from_l2(eps2: float, t: float = 1.0) -> float:
    """|log w| ≤ √2·ε₂/T, nats [B3]."""
    return ROOT_2 * eps2 / t


def chi2_from_osc(h: float) -> float:
    """χ²(p‖q) ≤ sinh²(h/2); inf where that overflows [B4]."""
    return math.sinh(h / 2.0) ** 2 if h < 700.0 else math.inf


def second_moment_from_osc(h: float) -> float:
    """E_q w² ≤ cosh²(h/2); inf where that overflows [B4]."""
    return math.cosh(h / 2.0) ** 2 if h < 700.0 else math.inf


def reward_from_tv(mean_tv: float, reward_range: float) -> float:
    """|Δ_r| ≤ R·E[TV] for one decision, in reward units [B5]."""
    return reward_range * mean_tv


def sequence_tv(tvs: Sequence[float], kls: Sequence[float]) -> float:
    """TV of whole sequences from per-token sup-TV and sup-KL (nats) [B6].

    min{1 − (1 − δ)^L, Σ TV_t, √(½ Σ KL_t)} with δ the largest TV, L = len(tvs). Sums with math.fsum.
    Raises ValueError on different lengths.
    """
    if len(tvs) != len(kls):
        raise ValueError(f"one TV and one KL a token: {len(tvs)} and {len(kls)}")
    if not tvs:
        return 0.0
    worst = max(tvs)
    union = 1.0 if worst >= 1.0 else -math.expm1(len(tvs) * math.log1p(-worst))
    return min(union, math.fsum(tvs), math.sqrt(math.fsum(kls) / 2.0), 1.0)


def l2_for_reward(rho_r: float, reward_range: float, t: float = 1.0) -> float:
    """The ε₂ limit τ = 2√2·T·ρ_r/R that guarantees |Δ_r| ≤ ρ_r per decision [B7]."""
    return 2.0 * ROOT_2 * t * rho_r / reward_range


def reward_from_soft_clause(tau: float, rho: float, reward_range: float, t: float = 1.0) -> float:
    """|Δ_r| ≤ R·((1 − ρ)·tanh(τ/(2√2·T)) + ρ) under Pr[ε₂ > τ] ≤ ρ [B8]."""
    return reward_range * ((1.0 - rho) * tv_from_l2(tau, t) + rho)


def kl_from_weighted(s: float, b: float, t: float = 1.0) -> float:
    """KL(q‖p) ≤ (s²/T²)·φ(b/T), nats, φ(x) = (eˣ − 1 − x)/x² [B9].

    `s` is logit_weighted = √Var_q(d) in logits, `b` = max(d − E_q d) ≥ 0 in logits, where
    d = z^tr − z^inf. Inf where φ overflows.
    """
    return (s / t) ** 2 * _phi(b / t)


def tv_from_weighted(s: float, b: float, t: float = 1.0) -> float:
    """TV ≤ √(KL/2) with the KL of `kl_from_weighted` [B9]."""
    return tv_from_kl(kl_from_weighted(s, b, t))


def _phi(x: float) -> float:
    if x > 700.0:
        return math.inf
    if abs(x) < 1e-3:  # the difference cancels; the series is exact to 1e-16 here
        return 0.5 + x / 6.0 + x * x / 24.0 + x**3 / 120.0 + x**4 / 720.0
    return (math.expm1(x) - x) / (x * x)
