"""The chain of bounds from logits to rewards and policy gradients: theory.md sections 2.1, 3 and 4.

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


def gradient_bias_from_tv(tv: float, score: float, advantage: float) -> float:
    """‖g − ĝ‖ ≤ 2·G·A_max·TV of the uncorrected estimator [R1].

    `score` is G ≥ ‖∇log π‖, `advantage` A_max ≥ |A|, `tv` the expected total variation.
    """
    return 2.0 * score * advantage * tv


def gradient_bias_from_weight(e_w: float, score: float, advantage: float) -> float:
    """‖g − ĝ‖ ≤ e_w·G·A_max where |w − 1| ≤ e_w everywhere [R2]."""
    return e_w * score * advantage


def gradient_bias_from_osc(h: float, score: float, advantage: float) -> float:
    """‖g − ĝ‖ ≤ 2·tanh(h/4)·G·A_max from the logits [R2]."""
    return gradient_bias_from_tv(tv_from_osc(h), score, advantage)


def gradient_bias_clipped(excess: float, score: float, advantage: float) -> float:
    """‖g − ĝ‖ ≤ G·A_max·E_inf[(|w − 1| − c)₊] with the weight clipped to [1 − c, 1 + c] [R3].

    `excess` is that expectation. Where |w − 1| ≤ e_w it is at most max(e_w − c, 0): exactly 0 once
    e_w ≤ c. c = 0 is the uncorrected estimator, so [R1].
    """
    return score * advantage * excess


def clip_room(low: float, high: float) -> float:
    """min(−log(1 − ε_lo), log(1 + ε_hi)), nats: the κ at which PPO's clip leaves no update [R4].

    Raises ValueError unless 0 < ε_lo < 1 and ε_hi > 0.
    """
    if not (0.0 < low < 1.0 and high > 0.0):
        raise ValueError(f"a clip range needs 0 < low < 1 and high > 0, got {low}, {high}")
    return min(-math.log1p(-low), math.log1p(high))


def update_range(kappa: float, low: float, high: float) -> tuple[float, float] | None:
    """[log(1 − ε_lo) + κ, log(1 + ε_hi) − κ], what |log w| ≤ κ leaves of log u, nats [R4].

    None where κ ≥ `clip_room` and one side is gone.
    """
    if kappa >= clip_room(low, high):
        return None
    return math.log1p(-low) + kappa, math.log1p(high) - kappa


def budget_share(kappa: float, low: float, high: float) -> float:
    """Share κ/`clip_room` of the clip range the kernel pair may spend; 1 or more leaves nothing [R4]."""
    return kappa / clip_room(low, high)


def trajectory_log_ratio(hs: Sequence[float]) -> float:
    """|log w(y)| ≤ Σ h_t over the tokens of a trajectory, nats; math.fsum [R5]."""
    return math.fsum(hs)


def trajectory_ess(hs: Sequence[float]) -> float:
    """ESS/N ≥ Π sech²(h_t/2) of whole-trajectory weights, as N grows [R5]."""
    return math.exp(-2.0 * math.fsum(_log_cosh(h / 2.0) for h in hs))


def _log_cosh(x: float) -> float:
    return abs(x) + math.log1p(math.exp(-2.0 * abs(x))) - math.log(2.0)
