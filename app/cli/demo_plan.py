"""What the demo promotes, and how much it measures."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

CHECKPOINT = "SmolLM2-135M-Instruct"
TRAIN = "smollm2-train"
KNOWN_GOOD = "smollm2-fp32"

BUILDS = {TRAIN: "torch:dtype=float32", KNOWN_GOOD: "torch-serving:dtype=float32"}
# The base of the rotary embedding as a converter that ignores it would leave it: the
# checkpoint was trained with 100,000.
_FAULT = "rope_theta=10000"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything.

    Attributes:
        deployment: the deployment's name.
        contract: file name among the example contracts.
        candidate: the good build's name; `faulty` is the other's.
        builds: further builds by name, as they are written.
        suite: name of the evaluation suite.
        prompts: what the suite is made of, by kind; what the suite's maker thinks right when empty.
        at_once: users at the same time.
        max_tokens: length of an answer at most, in tokens.
        batch: further requests users send while a stage (a canary step) is undecided.
        most: requests of one stage after which the demo gives up.
    """

    contract: str
    suite: str
    deployment: str = "coder"
    candidate: str = "smollm2-bf16"
    builds: dict[str, str] = field(
        default_factory=lambda: _pair("smollm2-bf16", "torch-serving:dtype=bfloat16")
    )
    prompts: dict[str, int] = field(default_factory=dict)
    at_once: int = 8
    max_tokens: int = 12
    batch: int = 16
    most: int = 600

    @property
    def faulty(self) -> str:
        """The faulty build's name."""
        return _faulty(self.candidate)

    @property
    def served(self) -> tuple[str, str]:
        """Builds that may serve users."""
        return KNOWN_GOOD, self.candidate


def on_vllm(plan: Plan) -> Plan:
    """The same with vLLM as the engine that is to serve; compiling it would take longer than it saves."""
    name = "smollm2-vllm-bf16"
    build = "vllm:dtype=bfloat16,enforce_eager=on,max_model_len=2048"
    return replace(plan, deployment="coder-vllm", candidate=name, builds=_pair(name, build))


def _faulty(candidate: str) -> str:
    return f"{candidate}-rope"


def _pair(candidate: str, build: str) -> dict[str, str]:
    return {candidate: build, _faulty(candidate): f"{build},{_FAULT}"}


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
