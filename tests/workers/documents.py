"""Contracts for tests, and what evaluations of the tiny checkpoint need."""

from contracts.document import read
from contracts.evidence import Provenance
from contracts.model import Stage

DIGEST = "sha256:" + "0" * 64
CLAUSES = """\
  - {id: N1, family: numerical, metric: abs_log_ratio, limit: {lte: 10}, kind: soft, exceedance: 0.5,
     slices: [all], level: L2}
  - {id: N3, family: numerical, metric: unmeasurable, limit: {lte: 0}, kind: hard, slices: [all], level: L3}
  - {id: S1, family: statistical, metric: kl, statistic: mean, limit: {lte: 1}, kind: hard,
     slices: [all, safety], level: L2}
  - {id: S3, family: statistical, metric: topk_agreement, k: 5, limit: {gte: 0.1}, per: prompt,
     aggregate: min, kind: soft, exceedance: 0.5, slices: [all], level: L2}
  - {id: S4, family: statistical, metric: ece_gap, bins: 10, limit: {lte: 0.5}, kind: hard,
     slices: [all], level: L1}
  - {id: S5, family: statistical, metric: ppl_ratio, limit: {lte: 2}, kind: hard,
     slices: [all], level: L1}
  - {id: R1, family: runtime, metric: latency, statistic: p90, limit: {lte: 600 s}, kind: hard,
     slices: [all], level: L1}
  - {id: R2, family: runtime, metric: failure_rate, limit: {lte: 0.5}, kind: hard,
     slices: [all], level: L3}
"""


def contract_text(
    clauses=CLAUSES, *, train="float32", inference="bfloat16", sampling="{temperature: 1.0}", census=True
):
    return f"""\
apiVersion: kernel-contracts/v1
kind: KernelContract
metadata: {{name: tiny, version: 1.0.0}}
pair:
  train: {{engine: torch, dtype: {train}}}
  inference: {{engine: torch-serving, dtype: {inference}}}
sampling: {sampling}
slices:
  all: {{}}
  safety: {{where: {{tags: {{contains: safety}}}}}}
clauses:
{clauses}
escalation: {{L1: [log], L2: [log, freeze], L3: [log, fallback, freeze]}}
fallback: {{build: steady}}
stages:
  offline_ci: {{min_prompts: 1, census: {str(census).lower()}}}
"""


def contract(*args, **kwargs):
    return read(contract_text(*args, **kwargs).encode()).contract


def provenance(stage=Stage.OFFLINE_CI):
    names = ("contract", "checkpoint", "train_build", "inference_build", "suite")
    return Provenance(**dict.fromkeys(names, DIGEST), stage=stage)
