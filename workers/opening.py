"""Where a build's kernel runs: in this process, or in one of its own under the interpreter it names.

A kernel has its own process when its environment is not this one (`python=NAME`, and the engines that
never share it), or when `KC_KERNEL_MEMORY` limits what one may take, for example `8GiB`.
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

MEMORY = "KC_KERNEL_MEMORY"
_MODULES = {"vllm": "vllm", "llamacpp": "llama_cpp"}


def open_kernel(build: BuildSpec, checkpoint: Path | str) -> Kernel:
    """Load a kernel where it belongs.

    Raises UnknownEnvironment when no interpreter has the name the build gives, and what
    `workers.kernels.loading.load` and `workers.kernels.remote.RemoteKernel` raise.
    """
    memory = memory_limit(os.environ)
    python = _python(build)
    if python is None and memory is None:
        from workers.kernels.loading import load

        return load(build, checkpoint)
    from workers.kernels.child import Limits
    from workers.kernels.remote import RemoteKernel

    return RemoteKernel(build, checkpoint, python, Limits(memory_bytes=memory))


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
