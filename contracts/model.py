"""The kernel contract `C = (N, S, R, O, Π)` as frozen values (language `kernel-contracts/v1`).

This module says what a contract *is*; :mod:`contracts.document` reads one from YAML with
line:column diagnostics, :mod:`contracts.metrics` says which metrics exist. Durations are
seconds (float), shares are in [0, 1], limits are in the metric's unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_serializer, model_validator

from contracts.vocabulary import (
    STAGES,
    Action,
    ClauseKind,
    Comparator,
    Family,
    Frozen,
    Level,
    Name,
    OpenShare,
    Phase,
    Quantity,
    Scalar,
    Seconds,
    SemVer,
    Share,
    Stage,
    Statistic,
)

__all__ = [
    "API_VERSION", "KIND", "STAGES", "Action", "BuildRef", "Canary", "Certainty", "Clause",
    "ClauseKind", "Clip", "Comparator", "Condition", "Contract", "Escalation", "Family", "Frozen",
    "Full", "Level", "LevelActions", "Limit", "Metadata", "Name", "OfflineCi", "Pair", "Phase",
    "Reward", "RlBudget", "Sampling", "Scalar", "SemVer", "Shadow", "Share", "Slice", "Stage", "StagePlans",
    "Statistic", "default_escalation",
]  # fmt: skip

API_VERSION = "kernel-contracts/v1"
KIND = "KernelContract"


class Limit(Frozen):
    """One comparator and its value, in the metric's unit: `{lte: 0.1}`, `{lte: 300 s}`."""

    lte: Quantity | None = None
    gte: Quantity | None = None
    abs_lte: Annotated[Quantity, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Limit:
        if sum(value is not None for value in (self.lte, self.gte, self.abs_lte)) != 1:
            raise ValueError("a limit has exactly one of lte, gte, abs_lte")
        return self

    @property
    def comparator(self) -> Comparator:
        """The one comparator set."""
        return next(c for c in Comparator if getattr(self, c.value) is not None)

    @property
    def value(self) -> float:
        """The limit itself, in the metric's unit."""
        value: float = getattr(self, self.comparator.value)
        return value

    def exceeded_by(self, observed: float) -> bool:
        """Whether `observed` breaks the limit; NaN always does (absence is never success)."""
        match self.comparator:
            case Comparator.LTE:
                return not observed <= self.value
            case Comparator.GTE:
                return not observed >= self.value
            case Comparator.ABS_LTE:
                return not abs(observed) <= self.value


class Condition(Frozen):
    """A predicate over one attribute of a draw; several keys are a conjunction."""

    eq: Scalar | None = None
    gt: float | None = None
    gte: float | None = None
    lt: float | None = None
    lte: float | None = None
    one_of: tuple[Scalar, ...] | None = Field(default=None, alias="in")
    contains: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _scalar_means_equal(cls, value: Any) -> Any:
        if not isinstance(value, Mapping | Condition):
            return {"eq": value}
        if isinstance(value, Mapping) and isinstance(value.get("in"), list):
            return {**value, "in": tuple(value["in"])}  # strict mode takes no list for a tuple
        return value

    @model_validator(mode="after")
    def _not_empty(self) -> Condition:
        if all(getattr(self, name) is None for name in type(self).model_fields):
            raise ValueError("an empty condition: give a value or one of eq, gt, gte, lt, lte, in, contains")
        return self


class Slice(Frozen):
    """A named part of D_eval; `{}` is everything. Slices may overlap."""

    where: dict[str, Condition] = Field(default_factory=dict)


class Pair(Frozen):
    """Predicates over the fingerprints of the two registered kernel builds."""

    train: dict[str, Scalar]
    inference: dict[str, Scalar]


class Sampling(Frozen):
    """Sampling parameters both sides are read at; the temperature that is really sampled at."""

    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    min_p: Share = 0.0

    @property
    def truncated(self) -> bool:
        """Whether the support is cut, so that log-ratios need renormalising or refusing [S8]."""
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0


class Clause(Frozen):
    """One promise. Hard: must hold on every slice. Soft: Pr[metric beyond limit] <= exceedance."""

    id: Name
    family: Family
    metric: str
    limit: Limit
    kind: ClauseKind
    level: Level
    slices: Annotated[tuple[str, ...], Field(min_length=1)] = ("all",)
    statistic: Statistic | None = None
    exceedance: OpenShare | None = None
    per: Literal["decision", "prompt"] = "decision"
    aggregate: Literal["max", "min", "mean"] | None = None
    phase: Phase | None = None
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)] = STAGES
    relative_to: Literal["baseline"] | None = None
    k: Annotated[int, Field(ge=1)] | None = None
    bins: Annotated[int, Field(ge=2)] | None = None
    binning: Literal["equal_width", "equal_mass"] | None = None


class Reward(Frozen):
    """A bounded reward and the grader that gives it."""

    range: tuple[float, float]
    grader: Name

    @model_validator(mode="after")
    def _ordered(self) -> Reward:
        if not self.range[0] < self.range[1]:
            raise ValueError("reward range must be [low, high] with low < high")
        return self


class Clip(Frozen):
    """PPO clip: the update keeps r in [1 - low, 1 + high]."""

    low: OpenShare
    high: Annotated[float, Field(gt=0)]


class RlBudget(Frozen):
    """How much of the clip range the kernel pair may spend [R4]."""

    clip: Clip
    kernel_budget_share: OpenShare


class Certainty(Frozen):
    """Error rates. `alpha` is spent per clause for HOLDS (an intersection-union test [S4]).

    `hard_exceedance` is the exceedance a hard clause over a *sample* must be certified
    against [S2]: with alpha 0.05 and 0.01, 299 prompts without a counterexample.
    """

    alpha: OpenShare = 0.05
    alarm_correction: Literal["holm", "bonferroni", "e-bh", "none"] = "holm"
    hard_exceedance: OpenShare = 0.01


class BuildRef(Frozen):
    """A registered kernel build by name, and for a guard how long it stays after recovery."""

    build: Name
    return_after: Seconds | None = None


class OfflineCi(Frozen):
    """`census: true` declares the suite to be all of D_eval: plug-in, exact [S1]."""

    min_prompts: Annotated[int, Field(ge=1)] = 1
    census: bool = False
    deadline: Seconds | None = None


class Shadow(Frozen):
    """Requests are mirrored to the candidate; users are served by the known-good build."""

    min_prompts: Annotated[int, Field(ge=1)] = 1
    min_duration: Seconds = 0.0
    deadline: Seconds | None = None
    mirror: Annotated[float, Field(gt=0, le=1)] = 1.0


def _increasing(steps: tuple[float, ...]) -> tuple[float, ...]:
    if any(b <= a for a, b in pairwise(steps)):
        raise ValueError("canary steps must increase")
    return steps


class Canary(Frozen):
    """Traffic shares served by the candidate, one evaluated step after the other."""

    steps: Annotated[
        tuple[Annotated[float, Field(gt=0, le=1)], ...],
        Field(min_length=1),
        AfterValidator(_increasing),
    ] = (0.01, 0.05, 0.25)
    min_prompts: Annotated[int, Field(ge=1)] = 1
    min_duration: Seconds = 0.0
    deadline: Seconds | None = None
    approval: Literal["required", "none"] = "none"


class Full(Frozen):
    """The candidate serves; a share of requests is dual-evaluated for as long as it does."""

    min_prompts: Annotated[int, Field(ge=1)] = 1
    min_duration: Seconds = 0.0
    deadline: Seconds | None = None
    approval: Literal["required", "none"] = "required"
    approval_ttl: Seconds = 86_400.0
    audit_rate: Annotated[float, Field(gt=0, le=1)] = 0.01


class StagePlans(Frozen):
    """What each stage asks for beyond the clauses."""

    offline_ci: OfflineCi = Field(default_factory=OfflineCi)
    shadow: Shadow = Field(default_factory=Shadow)
    canary: Canary = Field(default_factory=Canary)
    full: Full = Field(default_factory=Full)

    def min_prompts(self, stage: Stage) -> int:
        """The fewest draws on which `stage` may pass."""
        return int(getattr(self, stage.value).min_prompts)


class Metadata(Frozen):
    """Identity of the document; a published (name, version) never changes."""

    name: Name
    version: SemVer
    owner: str = ""
    description: str = ""


Actions = tuple[Action, ...]


def _typed(actions: Any) -> Any:
    """As strict validation wants it: it takes no list for a tuple and no word for a member here."""
    if not isinstance(actions, list | tuple):
        return actions
    known = {action.value: action for action in Action}
    return tuple(known.get(one, one) if isinstance(one, str) else one for one in actions)


class LevelActions(Frozen):
    """What a violated level sets in motion, by stage; `default` where a stage is not named.

    A plain list is the same in every stage: `[log, freeze]` is `{default: [log, freeze]}`, and is
    written back as the list.
    """

    default: Actions = ()
    offline_ci: Actions | None = None
    shadow: Actions | None = None
    canary: Actions | None = None
    full: Actions | None = None

    @model_validator(mode="before")
    @classmethod
    def _list_means_every_stage(cls, value: Any) -> Any:
        if isinstance(value, list | tuple):
            value = {"default": value}
        if isinstance(value, Mapping):
            return {stage: _typed(actions) for stage, actions in value.items()}
        if isinstance(value, LevelActions):
            return value
        raise ValueError("a list of actions, or one list for each of default and the stages")

    @model_serializer(mode="wrap")
    def _plain_when_every_stage(self, handler: Any) -> Any:
        stages = {key: value for key, value in handler(self).items() if value is not None}
        return stages if len(stages) > 1 else stages["default"]

    def at(self, stage: Stage) -> tuple[Action, ...]:
        """The actions at `stage`, as written."""
        own: tuple[Action, ...] | None = getattr(self, stage.value)
        return self.default if own is None else own

    @property
    def asked(self) -> frozenset[Action]:
        """Every action of some stage."""
        return frozenset(action for stage in STAGES for action in self.at(stage))


Escalation = Mapping[Level, LevelActions]


def default_escalation() -> dict[Level, LevelActions]:
    """The policy of a contract that states none (theory.md section 5, severity)."""
    return {
        Level.L1: LevelActions(default=(Action.LOG,)),
        Level.L2: LevelActions(default=(Action.LOG, Action.GUARD, Action.FREEZE)),
        Level.L3: LevelActions(default=(Action.LOG, Action.FALLBACK, Action.FREEZE, Action.PAGE)),
    }


class Contract(Frozen):
    """The whole contract; every field is part of the digest ([contracts.document])."""

    api_version: Literal["kernel-contracts/v1"] = Field(alias="apiVersion")
    kind: Literal["KernelContract"]
    metadata: Metadata
    pair: Pair
    clauses: Annotated[tuple[Clause, ...], Field(min_length=1)]
    sampling: Sampling = Field(default_factory=Sampling)
    slices: dict[Name, Slice] = Field(default_factory=dict)
    reward: Reward | None = None
    rl: RlBudget | None = None
    certainty: Certainty = Field(default_factory=Certainty)
    escalation: dict[Level, LevelActions] = Field(default_factory=default_escalation)
    guard: BuildRef | None = None
    fallback: BuildRef | None = None
    stages: StagePlans = Field(default_factory=StagePlans)

    def slice_named(self, name: str) -> Slice:
        """The slice, `all` being implied. Raises KeyError for a name the contract lacks."""
        return Slice() if name == "all" and name not in self.slices else self.slices[name]

    def slices_used(self) -> dict[str, Slice]:
        """Every slice some clause names, by name, in order of first use."""
        names = dict.fromkeys(name for clause in self.clauses for name in clause.slices)
        return {name: self.slice_named(name) for name in names}

    def actions_at(self, level: Level, stage: Stage) -> tuple[Action, ...]:
        """What a violation of `level` sets in motion at `stage`; nothing where the contract names nothing."""
        policy = self.escalation.get(level)
        return policy.at(stage) if policy is not None else ()

    def clauses_at(self, stage: Stage) -> tuple[Clause, ...]:
        """The clauses judged at `stage`, in document order."""
        return tuple(clause for clause in self.clauses if stage in clause.stages)
