"""Contracts for tests of lint, explain, compare and mutation: a head, clauses, what else is wanted."""

from __future__ import annotations

import random

from contracts.builds import Fingerprint
from contracts.diagnostics import Diagnostic
from contracts.document import Document, read
from contracts.lint import lint
from contracts.model import Clause

HEAD = """\
apiVersion: kernel-contracts/v1
kind: KernelContract
metadata: {name: small, version: 1.0.0}
pair: {train: {engine: torch}, inference: {engine: torch-serving}}
certainty: {alpha: 0.05}
fallback: {build: safe}
guard: {build: safe}
clauses:
"""
# keeps contracts of one clause free of findings about missing clauses
WATCH = (
    "{id: W, family: observability, metric: telemetry_age, limit: {lte: 300 s}, kind: hard, level: L1, "
    "stages: [shadow, canary, full]}"
)
TV = "{id: S, family: statistical, metric: tv, limit: {lte: 0.1}, kind: hard, statistic: mean, level: L1}"
RL = "rl: {clip: {low: 0.2, high: 0.2}, kernel_budget_share: 0.25}\n"


def clause(metric: str, limit: str, **keys: object) -> str:
    """A clause in flow style: hard, level L1, id C, unless `keys` say otherwise."""
    families = {"logit": "numerical", "log_": "numerical", "abs_": "numerical"}
    family = next((f for start, f in families.items() if metric.startswith(start)), "statistical")
    fields: dict[str, object] = {"id": "C", "family": family, "metric": metric, "limit": f"{{{limit}}}"}
    fields |= {"kind": "soft" if "exceedance" in keys else "hard", "level": "L1"} | keys
    return "{" + ", ".join(f"{key}: {value}" for key, value in fields.items()) + "}"


def document(*clauses: str, tail: str = "", head: str = HEAD) -> Document:
    text = head + "".join(f"- {one}\n" for one in clauses) + tail
    return read(text.encode(), "c.yaml")


def found(
    *clauses: str, tail: str = "", head: str = HEAD, watch: bool = True, **builds: Fingerprint
) -> list[Diagnostic]:
    """What lint says of a contract with these clauses, and one that watches all."""
    return lint(document(*clauses, *([WATCH] if watch else []), tail=tail, head=head), builds)


def codes(diagnostics: list[Diagnostic]) -> list[str]:
    return [d.code for d in diagnostics]


def forms(metric: str = "tv") -> list[str]:
    """A clause without its id and limit, in every form a decision metric can have."""
    forms: list[dict[str, object]] = [{}, {"statistic": "mean"}]
    for exceedance in (0.1, 0.3):
        forms.append({"exceedance": exceedance})
        forms += [
            {"exceedance": exceedance, "per": "prompt", "aggregate": aggregate}
            for aggregate in ("max", "min", "mean")
        ]
    limits = ["lte: 0.2", "lte: 0.4", "gte: 0.2", "gte: 0.4"]
    return [clause(metric, limit, id="@", **form) for form in forms for limit in limits]


def keeps(one: Clause, prompts: list[list[float]]) -> bool:
    """Whether a population of prompts, each a list of its decisions' values, keeps the clause."""
    means = [sum(values) / len(values) for values in prompts]
    if one.statistic is not None:
        return not one.limit.exceeded_by(sum(means) / len(means))
    if one.per == "prompt":
        pick = {"max": max, "min": min, "mean": lambda values: sum(values) / len(values)}[
            one.aggregate or "max"
        ]
        shares = [float(one.limit.exceeded_by(pick(values))) for values in prompts]
    else:
        shares = [sum(map(one.limit.exceeded_by, values)) / len(values) for values in prompts]
    return sum(shares) / len(shares) <= (one.exceedance or 0.0)


def populations(count: int) -> list[list[list[float]]]:
    """Small populations with values on, between and beyond the limits of `forms`; the same always."""
    rng = random.Random(5)
    values = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0]
    return [
        [[rng.choice(values) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(1, 6))]
        for _ in range(count)
    ]
