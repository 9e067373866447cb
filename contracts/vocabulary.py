"""The words of the contract language: enumerations, scalar types and the base of its values."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
)

from contracts.units import DURATION_PATTERN, QUANTITY_PATTERN, duration, quantity


class Frozen(BaseModel):
    """A value: immutable, closed to unknown keys, addressed by the names the YAML uses."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False, defer_build=True
    )


class Family(StrEnum):
    """The four clause families of a contract; the fifth part, Π, is the escalation policy."""

    NUMERICAL = "numerical"
    STATISTICAL = "statistical"
    RUNTIME = "runtime"
    OBSERVABILITY = "observability"


class ClauseKind(StrEnum):
    """`hard` must hold on every slice named; `soft` bounds an exceedance probability."""

    HARD = "hard"
    SOFT = "soft"


class Level(StrEnum):
    """Severity of a violation (theory.md section 5): L1 < L2 < L3 also as strings."""

    L1 = "L1"
    L2 = "L2"
    L3 = "L3"


class Action(StrEnum):
    """What a violation sets in motion."""

    LOG = "log"
    GUARD = "guard"
    FREEZE = "freeze"
    FALLBACK = "fallback"
    PAGE = "page"


class Phase(StrEnum):
    """The engine code path that computed a decision [S6]."""

    PREFILL = "prefill"
    DECODE = "decode"


class Stage(StrEnum):
    """The four stages of a promotion, in order."""

    OFFLINE_CI = "offline_ci"
    SHADOW = "shadow"
    CANARY = "canary"
    FULL = "full"


STAGES: tuple[Stage, ...] = tuple(Stage)


class Statistic(StrEnum):
    """How values become the one number a hard clause limits."""

    MEAN = "mean"
    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"


class Comparator(StrEnum):
    """`abs_lte` limits the absolute value."""

    LTE = "lte"
    GTE = "gte"
    ABS_LTE = "abs_lte"


# a number, or text with a unit; the patterns are for the JSON Schema, `units` reads and judges
_Duration = Annotated[float, Field(ge=0)] | Annotated[str, Field(pattern=DURATION_PATTERN)]
_Written = float | Annotated[str, Field(pattern=QUANTITY_PATTERN)]
Seconds = Annotated[float, BeforeValidator(duration, json_schema_input_type=_Duration)]
Quantity = Annotated[float, BeforeValidator(quantity, json_schema_input_type=_Written)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
OpenShare = Annotated[float, Field(gt=0.0, lt=1.0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
SemVer = Annotated[
    str,
    Field(
        pattern=r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
        r"(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$"
    ),
]
# strict, so that "8" is never 8 and 1 is never true
Scalar = StrictStr | StrictBool | StrictInt | StrictFloat
