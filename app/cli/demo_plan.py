"""What the demo promotes, and how much it measures."""

from __future__ import annotations

from dataclasses import dataclass, field

CHECKPOINT = "SmolLM2-135M-Instruct"
DEPLOYMENT = "coder"
TRAIN = "smollm2-train"
KNOWN_GOOD = "smollm2-fp32"
CANDIDATE = "smollm2-bf16"
FAULTY = "smollm2-bf16-rope"

BUILDS = {
    TRAIN: "torch:dtype=float32",
    KNOWN_GOOD: "torch-serving:dtype=float32",
    CANDIDATE: "torch-serving:dtype=bfloat16",
    # The base of the rotary embedding as a converter that ignores it would leave it: the
    # checkpoint was trained with 100,000.
    FAULTY: "torch-serving:dtype=bfloat16,rope_theta=10000",
}
SERVED = (KNOWN_GOOD, CANDIDATE)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything.

    Attributes:
        contract: file name among the example contracts.
        suite: name of the evaluation suite.
        prompts: what the suite is made of, by kind; what the suite's maker thinks right when empty.
        at_once: users at the same time.
        max_tokens: length of an answer at most, in tokens.
        batch: further requests users send while a stage (a canary step) is undecided.
        most: requests of one stage after which the demo gives up.
    """

    contract: str
    suite: str
    prompts: dict[str, int] = field(default_factory=dict)
    at_once: int = 8
    max_tokens: int = 12
    batch: int = 16
    most: int = 600


FULL = Plan(
    contract="coder-demo.yaml",
    suite="stdlib",
    prompts={"function": 30, "docstring": 14, "safety": 14, "long": 6},
    max_tokens=6,
)
SHORT = Plan(
    contract="coder-demo-short.yaml",
    suite="stdlib-short",
    prompts={"function": 4, "docstring": 12, "safety": 12, "long": 4},
    max_tokens=6,
)
