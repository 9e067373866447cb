"""Where a build's kernel runs: in a fresh process of its own, under the interpreter it names.

`KC_KERNEL_MEMORY`, for example `8GiB`, limits what each may take. `KC_KERNEL_PROCESSES=shared` loads
kernels of this environment in this process instead, where starting one costs more than it gives.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from contracts.builds import BuildSpec, InvalidBuild
from contracts.units import quantity
from workers.environments import UnknownEnvironment, environment_of, interpreter
from workers.kernels.protocol import Kernel

MEMORY, PROCESSES = "KC_KERNEL_MEMORY", "KC_KERNEL_PROCESSES"
_MODULES = {"vllm": "vllm", "llamacpp": "llama_cpp"}


def open_kernel(build: BuildSpec, checkpoint: Path | str) -> Kernel:
    """Load a kernel where it belongs.

    Raises UnknownEnvironment when no interpreter has the name the build gives, and what
    `workers.kernels.loading.load` and `workers.kernels.remote.RemoteKernel` raise.
    """
    memory = memory_limit(os.environ)
    python = _python(build)
    if python is None and memory is None and shared(os.environ):
        from workers.kernels.loading import load

        return load(build, checkpoint)
    from workers.kernels.child import Limits
    from workers.kernels.remote import RemoteKernel

    return RemoteKernel(build, checkpoint, python, Limits(memory_bytes=memory))


def shared(settings: Mapping[str, str]) -> bool:
    """Whether kernels may share this process. Raises InvalidBuild for a word that says neither."""
    word = settings.get(PROCESSES, "").strip() or "own"
    if word not in ("own", "shared"):
        raise InvalidBuild(f"{PROCESSES} is own or shared, not {word!r}", word)
    return word == "shared"


def memory_limit(settings: Mapping[str, str]) -> int | None:
    """Bytes `KC_KERNEL_MEMORY` allows a kernel; None is no limit. Raises InvalidBuild."""
    text = settings.get(MEMORY, "").strip()
    if not text:
        return None
    try:
        limit = int(quantity(text))
        if limit < 1:
            raise ValueError("it is not positive")
    except ValueError as error:
        raise InvalidBuild(f"{MEMORY}={text}: a size such as 8GiB: {error}", text) from None
    return limit


def _python(build: BuildSpec) -> Path | None:
    """The interpreter of a build; None is this one."""
    name = environment_of(build)
    if name is None:
        return None
    try:
        return interpreter(name)
    except UnknownEnvironment:
        # An engine installed beside everything else needs no environment of its own.
        module = _MODULES.get(build.engine)
        if "python" in build.options or module is None or find_spec(module) is None:
            raise
        return Path(sys.executable)
