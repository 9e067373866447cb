"""The metric registry: one entry a metric, everything else looks here.

`shape` says what a metric's evidence is made of:

* DECISION  one value a decision; soft clauses count exceedances, hard ones look at each
            decision, or at a `statistic` of the per-prompt means.
* PAIRED    a function of a whole slice (calibration gap, perplexity ratio ...).
* RUNTIME   one value a request, for the candidate and, where asked, a concurrent baseline.
* COUNT     events among trials (failures among requests, evaluations among served requests).
* GAUGE     one reading, the worst of which counts.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from enum import StrEnum

from contracts.model import Family, Statistic


class Shape(StrEnum):
    """What the evidence of a metric is made of."""

    DECISION = "decision"
    PAIRED = "paired"
    RUNTIME = "runtime"
    COUNT = "count"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """One registered metric.

    Attributes:
        id: the name used in YAML, database, API, page and docs.
        symbol: how formulas write it.
        unit: base unit of observed values and limits; "" is dimensionless.
        family: the clause family it may stand in.
        shape: what its evidence is made of.
        low, high: the closed range of possible values (infinite where unbounded).
        source: theory.md label.
        statistics: statistics a hard clause may ask for beyond "every value".
        aliases: names other tools use, with the exact relation.
        worse: the direction in which drift grows, "up" or "down".
        ideal: its value where both kernels are the same program; None where that says nothing (runtime).
        needs: sections of the contract, or circumstances, without which it cannot be measured: `rl`,
            `reward`, or `traffic` (users' requests, of which offline CI has none).
        parameter: the clause key only this metric takes, `k` or `bins`, and whether it must be given.
    """

    id: str
    symbol: str
    unit: str
    family: Family
    shape: Shape
    low: float
    high: float
    source: str
    summary: str
    statistics: tuple[Statistic, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    worse: str = "up"
    ideal: float | None = 0.0
    needs: tuple[str, ...] = ()
    parameter: tuple[str, bool] | None = None

    @property
    def phased(self) -> bool:
        """Whether it is measured once in each phase [S6]."""
        return self.shape in (Shape.DECISION, Shape.PAIRED) and "reward" not in self.needs

    @property
    def bounded(self) -> bool:
        """Whether the range is finite on both sides."""
        return math.isfinite(self.low) and math.isfinite(self.high)


_N, _S, _R, _O = Family.NUMERICAL, Family.STATISTICAL, Family.RUNTIME, Family.OBSERVABILITY
_MEAN = (Statistic.MEAN,)
_QUANTILES = (Statistic.P50, Statistic.P90, Statistic.P95, Statistic.P99)
_INF = math.inf


def _decision(
    id: str, symbol: str, unit: str, family: Family, source: str, summary: str,
    *, low: float = 0.0, high: float = _INF, worse: str = "up",
    aliases: tuple[tuple[str, str], ...] = (), ideal: float = 0.0, needs: tuple[str, ...] = (),
    parameter: tuple[str, bool] | None = None,
) -> Metric:  # fmt: skip
    return Metric(
        id, symbol, unit, family, Shape.DECISION, low, high, source, summary, _MEAN, aliases, worse,
        ideal, needs, parameter,
    )  # fmt: skip


METRICS: dict[str, Metric] = {
    metric.id: metric
    for metric in (
        _decision("logit_l2", "‖d‖₂", "logits", _N, "Q1", "Euclidean norm of the logit difference"),
        _decision("logit_l2_centered", "‖dc‖₂", "logits", _N, "Q2", "the same, mean difference removed"),
        _decision("logit_linf", "max|d|", "logits", _N, "Q3", "largest single logit difference"),
        _decision("logit_osc", "max d − min d", "logits", _N, "Q4", "oscillation of the logit difference"),
        _decision("logit_weighted", "√Var_q(d)", "logits", _N, "Q5", "standard deviation of the logit difference under π_inf"),
        _decision("log_ratio", "log p(y) − log q(y)", "nats", _N, "Q6", "log importance ratio of the realised token",
                  low=-_INF, aliases=(("trl:sampling/importance_sampling_ratio", "exp of it"),)),
        _decision("abs_log_ratio", "|log p(y) − log q(y)|", "nats", _N, "Q6", "absolute log importance ratio of the realised token",
                  aliases=(("slime:train_rollout_logprob_abs_diff", "its mean"), ("nemo-rl:token_mult_prob_error", "mean of exp of it"))),
        _decision("unmeasurable", "1[NaN or ±inf]", "", _N, "§2", "the decision has a logit that is not a number",
                  high=1.0),
        _decision("kl", "KL(p‖q)", "nats", _S, "Q7", "Kullback–Leibler divergence of inference from training",
                  aliases=(("verl:rollout_corr/kl", "its sampled estimate"), ("prime-rl:mismatch_kl", "its sampled estimate"), ("llama.cpp:Mean KLD", "its mean"))),
        _decision("kl_reverse", "KL(q‖p)", "nats", _S, "Q7", "Kullback–Leibler divergence of training from inference"),
        _decision("tv", "½ Σ|p − q|", "", _S, "Q8", "total variation distance", high=1.0),
        _decision("topk_agreement", "|TopK ∩ TopK|/k", "", _S, "Q9", "share of the k largest logits both sides agree on",
                  high=1.0, worse="down", ideal=1.0, parameter=("k", True)),
        _decision("top1_flip", "1[argmax differs]", "", _S, "Q10", "the most likely token differs",
                  high=1.0, aliases=(("llama.cpp:Same top p", "1 − its mean"),)),
        _decision("clip_fraction_at_zero", "1[w outside clip]", "", _N, "Q15", "w leaves the clip range before any update: purely kernel-caused",
                  high=1.0, needs=("rl",)),
        Metric("ece_gap", "|ECE(p) − ECE(q)|", "", _S, Shape.PAIRED, 0.0, 1.0, "Q11", "difference of the expected calibration errors", parameter=("bins", False)),
        Metric("reward_drift", "E_p r − E_q r", "reward", _S, Shape.PAIRED, -_INF, _INF, "Q12", "difference of expected rewards", needs=("reward",)),
        Metric("flip_rate", "Pr[outcome differs]", "", _S, Shape.PAIRED, 0.0, 1.0, "Q13", "share of tasks whose graded outcome differs", needs=("reward",)),
        Metric("ppl_ratio", "PPL_inf / PPL_train", "", _S, Shape.PAIRED, 0.0, _INF, "Q14", "ratio of the perplexities", ideal=1.0),
        Metric("ess", "(Σw)²/(nΣw²)", "", _S, Shape.PAIRED, 0.0, 1.0, "Q16", "effective sample size of the importance weights", worse="down", ideal=1.0),
        Metric("latency", "t", "s", _R, Shape.RUNTIME, 0.0, _INF, "Q17", "total latency of a request", (*_QUANTILES, Statistic.MEAN), ideal=None),
        Metric("ttft", "t₁", "s", _R, Shape.RUNTIME, 0.0, _INF, "Q17", "time to first token", (*_QUANTILES, Statistic.MEAN), ideal=None),
        Metric("itl", "Δt", "s", _R, Shape.RUNTIME, 0.0, _INF, "Q17", "inter-token latency, mean of a request", (*_QUANTILES, Statistic.MEAN), ideal=None),
        Metric("throughput", "tok/t", "tok/s", _R, Shape.RUNTIME, 0.0, _INF, "Q17", "generated tokens a second of a request", (*_QUANTILES, Statistic.MEAN), worse="down", ideal=None),
        Metric("peak_memory", "M", "B", _R, Shape.GAUGE, 0.0, _INF, "Q17", "peak resident memory of the kernel's process", ideal=None),
        Metric("failure_rate", "Pr[failed]", "", _R, Shape.COUNT, 0.0, 1.0, "Q17", "share of requests that failed"),
        Metric("dual_evaluation_coverage", "n_dual/n_served", "", _O, Shape.COUNT, 0.0, 1.0, "Q18", "share of served requests that were dual-evaluated", worse="down", ideal=1.0, needs=("traffic",)),
        Metric("logprob_capture_rate", "n_captured/n_served", "", _O, Shape.COUNT, 0.0, 1.0, "Q18", "share of served requests with log-probs captured", worse="down", ideal=1.0, needs=("traffic",)),
        Metric("telemetry_age", "now − t_last", "s", _O, Shape.GAUGE, 0.0, _INF, "Q18", "age of the newest telemetry", needs=("traffic",)),
        Metric("fingerprint_match", "1[running = registered]", "", _O, Shape.GAUGE, 0.0, 1.0, "Q18", "the running build's fingerprint is the registered one", worse="down", ideal=1.0),
    )
}  # fmt: skip

DECISION_METRICS: tuple[str, ...] = tuple(m.id for m in METRICS.values() if m.shape is Shape.DECISION)


def nearest(word: str, known: list[str] | tuple[str, ...]) -> str | None:
    """The most similar known word, or None when nothing is close."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return close[0] if close else None
