"""How long does it take to judge a million decisions?

    python -m benchmarks.judging [--decisions 1000000] [--profile]

2,000 prompts of random length with every kind of clause, two slices, as a fixed sample and as a
stream; the best of three, so that other work on the machine weighs less. Target: under one second.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from pathlib import Path

import numpy as np

from benchmarks._report import machine, table
from contracts.calibration import Calibrated
from contracts.collect import Collector
from contracts.evidence import Evidence, Provenance
from contracts.judge import judge
from contracts.model import Contract, Phase
from contracts.slices import Attributes

RESULT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks" / "judging.md"
SEED, PROMPTS, TARGET_S = 20260103, 2000, 1.0


def clause(id: str, metric: str, limit: dict, family: str = "statistical", **more) -> dict:
    base = {"id": id, "family": family, "metric": metric, "limit": limit, "kind": "hard", "level": "L2"}
    return base | {"slices": ["all", "long"]} | more


SOFT = {"kind": "soft", "exceedance": 0.02, "phase": "decode"}
CONTRACT = Contract.model_validate(
    {
        "apiVersion": "kernel-contracts/v1",
        "kind": "KernelContract",
        "metadata": {"name": "benchmark", "version": "1.0.0"},
        "pair": {"train": {}, "inference": {}},
        "slices": {"long": {"where": {"prompt_tokens": {"gte": 512}}}},
        "reward": {"range": [0, 1], "grader": "g"},
        "clauses": [
            clause("N1", "logit_osc", {"lte": 4.0}, "numerical", **SOFT),
            clause("N2", "abs_log_ratio", {"lte": 0.2}, "numerical", **SOFT),
            clause("N3", "unmeasurable", {"lte": 0}, "numerical", phase="decode"),
            clause("S1", "kl", {"lte": 0.01}, statistic="mean", phase="decode"),
            clause("S2", "tv", {"lte": 0.1}, **SOFT),
            clause("S3", "tv", {"lte": 0.2}, statistic="mean", phase="decode"),
            clause("S4", "topk_agreement", {"gte": 0.8}, k=10, per="prompt", aggregate="min", **SOFT),
            clause("S5", "ece_gap", {"lte": 0.02}, phase="decode"),
            clause("S6", "ppl_ratio", {"lte": 1.01}, phase="decode"),
            clause("S7", "ess", {"gte": 0.9}, phase="decode"),
            clause("S8", "reward_drift", {"abs_lte": 0.05}),
            clause("S9", "flip_rate", {"lte": 0.1}),
            clause("R1", "latency", {"lte": 1.2}, "runtime", statistic="p99", relative_to="baseline"),
            clause("R2", "failure_rate", {"lte": 0.001}, "runtime"),
        ],
    }
)


def evidence(stage: str, decisions: int) -> Evidence:
    """Evidence of about `decisions` decisions."""
    rng = np.random.default_rng(SEED)
    provenance = Provenance(
        contract="c", checkpoint="k", train_build="t", inference_build="i", suite="s", stage=stage
    )
    collector = Collector(CONTRACT, provenance, "x")
    lengths = rng.multinomial(decisions, np.full(PROMPTS, 1 / PROMPTS))
    for i, n in enumerate(lengths):
        drift, ratio = rng.beta(0.5, 20.0, n), rng.normal(0.0, 0.05, n)
        confidence, nll = rng.random(n), rng.exponential(1.0, n)
        values = {
            "logit_osc": 40 * drift, "abs_log_ratio": np.abs(ratio), "log_ratio": ratio,
            "kl": drift**2, "tv": drift, "topk_agreement@10": np.where(rng.random(n) < 1e-5, 0.7, 0.9),
        }  # fmt: skip
        at = Attributes(prompt_tokens=int(rng.integers(1, 1024)))
        hits = [(rng.random(n) < confidence).astype(float) for _ in range(2)]
        sides = Calibrated(confidence, hits[0], confidence, hits[1])
        collector.add_prompt(
            f"p{i:05}", at, Phase.DECODE, values, calibration=sides, nll=(nll, nll + drift / 50)
        )
        rewards = rng.integers(0, 2, 2)
        collector.add_rewards(f"p{i:05}", at, float(rewards[0]), float(rewards[int(rng.random() < 0.05)]))
        collector.add_outcome(f"p{i:05}", at, bool(rewards[0]), bool(rewards[int(rng.random() < 0.05)]))
        for role in ("baseline", "candidate"):
            collector.add_request(at, role=role, ok=True, latency_s=float(rng.lognormal(0.0, 0.3)))
    return collector.evidence()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--decisions", type=int, default=1_000_000)
    parser.add_argument("--profile", action="store_true", help="print where the time goes; write nothing")
    arguments = parser.parse_args()
    rows, slowest = [], 0.0
    for stage in ("offline_ci", "shadow"):
        found = evidence(stage, arguments.decisions)
        if arguments.profile:
            profile = cProfile.Profile()
            profile.runcall(judge, CONTRACT, found, contract_digest="c")
            pstats.Stats(profile).sort_stats("cumtime").print_stats(30)
            continue
        times = []
        for _ in range(3):
            started = time.perf_counter()
            judgement = judge(CONTRACT, found, contract_digest="c")
            times.append(time.perf_counter() - started)
        slowest = max(slowest, min(times))
        size = len(found.canonical()) / 1024
        rows.append(
            [
                stage,
                f"{arguments.decisions:,}",
                f"{len(judgement.verdicts)}",
                f"{size:,.0f}",
                f"{min(times):.2f}",
            ]
        )
    if arguments.profile:
        return
    text = TEXT.format(
        machine=machine(), prompts=PROMPTS, seed=SEED,
        table=table(["stage", "decisions", "verdicts", "evidence, KiB", "judged in, s"], rows),
    )  # fmt: skip
    print(text)
    if arguments.decisions == parser.get_default("decisions"):
        RESULT.write_text(text, encoding="utf-8")
    if slowest > TARGET_S:
        raise SystemExit(f"target missed: {slowest:.2f} s")


TEXT = """\
# Judging a million decisions

Written by `python -m benchmarks.judging` (seed {seed}) on {machine}: {prompts:,} prompts, 14 clauses of
every kind on two slices, from evidence to verdicts with their reasons. Target: under one second.

{table}
"""


if __name__ == "__main__":
    main()
