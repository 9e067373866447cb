"""Contracts, evidence and judgements in a line, for tests of the judge."""

from contracts.collect import Collector
from contracts.evidence import Provenance
from contracts.judge import judge
from contracts.metrics import METRICS
from contracts.model import Contract, Phase
from contracts.slices import Attributes
from contracts.verdicts import Outcome

DECODE = Phase.DECODE
PLAIN = Attributes(prompt_tokens=10)
HOLDS, VIOLATED, INCONCLUSIVE, NO_DATA, UNMEASURABLE = Outcome
STAGES = ["offline_ci", "shadow"]


def clause(metric="kl", limit=None, **more):
    base = {
        "id": "C0",
        "family": METRICS[metric].family.value,
        "metric": metric,
        "limit": limit or {"lte": 0.1},
    }
    return (
        base | {"kind": "soft" if "exceedance" in more else "hard", "level": "L2", "phase": "decode"} | more
    )


def service(metric, limit, **more):
    return {k: v for k, v in clause(metric, limit, **more).items() if k != "phase"}


def contract(*clauses, **more):
    document = {
        "apiVersion": "kernel-contracts/v1",
        "kind": "KernelContract",
        "metadata": {"name": "t", "version": "1.0.0"},
        "pair": {"train": {"engine": "torch"}, "inference": {"engine": "torch"}},
        "slices": {"long": {"where": {"prompt_tokens": {"gte": 512}}}},
        "clauses": [c | {"id": f"C{i}"} for i, c in enumerate(clauses)],
    }
    return Contract.model_validate(document | more)


def collector(document, stage="offline_ci", shard="x"):
    provenance = Provenance(
        contract="sha256:c", checkpoint="k", train_build="t", inference_build="i", suite="s", stage=stage
    )
    return Collector(document, provenance, shard)


def judged(document, prompts, stage="offline_ci", metric="kl"):
    c = collector(document, stage)
    for i, values in enumerate(prompts):
        c.add_prompt(f"p{i:05}", PLAIN, DECODE, {metric: values})
    return judge(document, c.evidence(), contract_digest="sha256:c")


def only(judgement):
    (verdict,) = judgement.verdicts
    return verdict


def soft(exceedance=0.05, **more):
    return contract(clause(exceedance=exceedance, **more))


GOOD, BAD = [0.0, 0.05], [0.0, 0.5]
PER_PROMPT = {"per": "prompt", "aggregate": "max"}
