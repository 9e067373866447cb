"""A contract in plain sentences: what each clause promises, what that implies, what it costs to show.

Everything is derived from the contract alone; `explain` returns values, `lines` the text of them.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from contracts import phrases
from contracts.chain import Step, chain, post_training
from contracts.implications import implications
from contracts.metrics import METRICS, Shape
from contracts.model import STAGES, Clause, ClauseKind, Comparator, Contract, Level, Stage
from contracts.reductions import limits_mean
from contracts.sample_sizes import Need, is_census, needs, one_violates


class Explained(BaseModel):
    """One clause explained."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    id: str
    level: Level
    promise: str
    needs: tuple[str, ...]


class Explanation(BaseModel):
    """A contract explained; `model_dump(mode="json")` is the machine-readable form.

    Attributes:
        title: name, version and pair in one sentence.
        clauses: in document order.
        implications: which clauses follow from which.
        chain: from logits to total variation to rewards, with this contract's numbers [B1]-[B9].
        post_training: bias and clip budget [R1]-[R5]; empty without an `rl` section.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    title: str
    clauses: tuple[Explained, ...]
    implications: tuple[str, ...]
    chain: tuple[Step, ...]
    post_training: tuple[Step, ...]


def explain(contract: Contract) -> Explanation:
    """Explain a contract that reads. Uses the same formulas as the judge and lint."""
    meta = contract.metadata
    sides = [
        f"{side} ({', '.join(f'{k} {v}' for k, v in predicate.items()) or 'any build'})"
        for side, predicate in (("training", contract.pair.train), ("inference", contract.pair.inference))
    ]
    return Explanation(
        title=f"{meta.name} {meta.version} limits how far {sides[1]} may drift from {sides[0]}.",
        clauses=tuple(
            Explained(
                id=clause.id,
                level=clause.level,
                promise=promise(clause, contract),
                needs=_needs_in_words(clause, contract),
            )
            for clause in contract.clauses
        ),
        implications=tuple(_follows(contract)),
        chain=tuple(chain(contract)),
        post_training=tuple(post_training(contract)),
    )


def lines(explanation: Explanation) -> list[str]:
    """The explanation as lines of text."""
    text = [explanation.title, "", "What each clause promises"]
    for clause in explanation.clauses:
        text += [f"  {clause.id}  {clause.promise}"]
        text += [f"      needs {need}" for need in clause.needs]
    text += ["", "Which clauses imply which"]
    text += [
        f"  {one}" for one in explanation.implications or ("none: each clause says something of its own",)
    ]
    text += ["", "From logits to total variation to rewards"]
    text += _steps(explanation.chain) or ["  nothing follows: no clause bounds logits or distributions"]
    if explanation.post_training:
        text += ["", "For post-training on its rollouts", *_steps(explanation.post_training)]
    return text


def _steps(steps: tuple[Step, ...]) -> list[str]:
    return [f"  [{step.label}] {step.text}" for step in steps]


# What a clause promises


def promise(clause: Clause, contract: Contract) -> str:
    """One sentence: where, what, within which limit, how sure, and what happens otherwise."""
    sure = f"{100.0 * (1.0 - contract.certainty.alpha):.4g}% sure"
    return f"{_where(clause)}, {_what(clause, contract)} ({sure}); {_otherwise(clause, contract)}."


def _where(clause: Clause) -> str:
    slices = "everywhere" if clause.slices == ("all",) else f"on {_and(clause.slices)}"
    phase = f" in {clause.phase}" if clause.phase else ""
    if set(clause.stages) == set(STAGES):
        return f"At every stage {slices}{phase}"
    return f"At {_and(clause.stages)} {slices}{phase}"


def _what(clause: Clause, contract: Contract) -> str:
    metric = METRICS[clause.metric]
    name = _name(clause)
    unit = "" if clause.relative_to else metric.unit
    value = phrases.number(clause.limit.value, unit)
    if metric.shape is Shape.COUNT or clause.metric == "flip_rate":
        value = phrases.percent(clause.limit.value)
    within, beyond = _within(clause, value), phrases.beyond(clause.limit.comparator, value)
    if clause.kind is ClauseKind.SOFT:
        share = phrases.percent(clause.exceedance or 0.0)
        if clause.per == "prompt":
            which = {"max": "largest", "min": "smallest", "mean": "mean"}[clause.aggregate or "max"]
            return f"at most {share} of prompts have a {which} {name} {beyond}"
        return f"on average over prompts at most {share} of the decisions have {_a(name)} {beyond}"
    if metric.shape is Shape.RUNTIME:
        of = f"{clause.statistic} of the {name}"
        return f"the {of} is {within}" + (" times the baseline's" if clause.relative_to else "")
    if metric.shape is Shape.DECISION and limits_mean(clause):
        return f"the mean over prompts of the {name} is {within}"
    if metric.shape is Shape.DECISION:
        sampled = (
            ""
            if contract.stages.offline_ci.census
            else (f", certified against exceedance {contract.certainty.hard_exceedance:g} over a sample")
        )
        if clause.metric == "unmeasurable" and clause.limit.value < 1.0:
            return f"no decision has a logit that is not a number (unmeasurable){sampled}"
        return f"every decision has {_a(name)} of {within}{sampled}"
    if metric.shape is Shape.GAUGE:
        return f"every reading of the {name} is {within}"
    return f"the {name} is {within}"


def _name(clause: Clause) -> str:
    """The metric's summary and id: `total variation distance (tv)`."""
    metric = METRICS[clause.metric]
    if clause.metric == "logit_l2_centered":
        return "Euclidean norm of the centred logit difference (logit_l2_centered)"
    if clause.metric == "unmeasurable":
        return "mark of a logit that is not a number (unmeasurable)"
    if clause.metric == "top1_flip":
        return "mark of a different most likely token (top1_flip)"
    if clause.metric == "clip_fraction_at_zero":
        return "mark of a ratio outside the clip range (clip_fraction_at_zero)"
    if clause.metric == "fingerprint_match":
        return "mark of the registered fingerprint (fingerprint_match)"
    parameter = f", k = {clause.k}" if clause.k else f", {clause.bins} bins" if clause.bins else ""
    parameter += ", of equal mass" if clause.binning == "equal_mass" else ""
    return f"{metric.summary} ({metric.id}{parameter})"


def _within(clause: Clause, value: str) -> str:
    words = {Comparator.LTE: "at most", Comparator.GTE: "at least", Comparator.ABS_LTE: "within ±"}
    return f"{words[clause.limit.comparator]} {value}".replace("± ", "±")


def _a(name: str) -> str:
    return f"an {name}" if name[0] in "aeiouE" else f"a {name}"


def _and(words: tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _otherwise(clause: Clause, contract: Contract) -> str:
    """What a violation sets in motion, told by stage only where stages differ."""
    by_actions: dict[tuple[str, ...], list[Stage]] = {}
    for stage in clause.stages:
        actions = tuple(action.value for action in contract.actions_at(clause.level, stage))
        by_actions.setdefault(actions, []).append(stage)
    parts = [
        f"{_and(actions) if actions else 'nothing'}"
        + (f" at {_and(tuple(stages))}" if len(by_actions) > 1 else "")
        for actions, stages in by_actions.items()
    ]
    return f"otherwise, as {clause.level}: {'; '.join(parts)}"


# What it takes to show it


def _needs_in_words(clause: Clause, contract: Contract) -> tuple[str, ...]:
    """One line for every group of stages that need the same."""
    groups: dict[str, list[Need]] = {}
    for need in needs(clause, contract):
        groups.setdefault(_need_in_words(need, clause, contract), []).append(need)
    return tuple(
        f"at {_and(tuple(n.stage for n in group))}: {text}"
        f" (min_prompts {', '.join(str(m) for m in dict.fromkeys(n.minimum for n in group))})"
        for text, group in groups.items()
    )


def _need_in_words(need: Need, clause: Clause, contract: Contract) -> str:
    if is_census(clause, contract, need.stage):
        return f"a complete count, from one {need.noun} on"
    if need.counts[0] is None:
        return f"more {need.noun}s than anyone has"
    first = f"{need.counts[0]:,} {need.noun}s"
    if len(need.counts) == 1:
        one = ", one beyond violates" if one_violates(clause) else " as two identical kernels give them"
        return f"{first}{', all within' if one_violates(clause) else ''}{one}"
    wholly = "" if need.exact else " wholly"
    rest = [f"{'out of reach' if n is None else f'{n:,}'} with {k}" for k, n in enumerate(need.counts)][1:]
    return f"{first} with none{wholly} beyond, {', '.join(rest)}"


def _follows(contract: Contract) -> list[str]:
    by_id = {clause.id: clause for clause in contract.clauses}
    text = []
    for one in implications(contract):
        of = by_id[one.of]
        unit = METRICS[of.metric].unit
        share = f" on all but {phrases.percent(one.exceedance)}" if one.exceedance else ""
        why = f" [{one.label.replace(', ', '], [')}]" if one.label else ""
        text.append(
            f"{one.by} implies {one.of}: it keeps {of.metric} within "
            f"{phrases.number(one.limit, unit)}{share}{why}"
        )
    return text
