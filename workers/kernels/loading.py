"""From a build as it is written to a loaded kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contracts.builds import BuildSpec, InvalidBuild, parse_build
from workers.kernels.protocol import Kernel


def load(spec: BuildSpec, checkpoint: Path | str) -> Kernel:
    """Load `spec` on the checkpoint directory's weights.

    Raises InvalidBuild for an engine or option this process cannot run, and UnusableCheckpoint when the
    directory lacks a file, a weight, or what the build's options change.
    """
    directory = Path(checkpoint)
    options: dict[str, Any] = dict(parse_build({"engine": spec.engine, **spec.options}).options)
    options.pop("python", None)  # who starts processes has read it
    if faults := options.pop("fault", None):
        from workers.kernels.faults import inject, parse_faults

        clean = {key: value for key, value in spec.options.items() if key != "fault"}
        return inject(load(spec.model_copy(update={"options": clean}), directory), parse_faults(faults))
    if spec.engine == "torch":
        from workers.kernels.torch_graph import TorchGraph

        return TorchGraph(directory, **options)
    if spec.engine == "torch-serving":
        from workers.kernels.torch_serving import TorchServing

        return TorchServing(directory, **options)
    if spec.engine == "llamacpp":
        try:
            from workers.kernels.llamacpp import LlamaCpp
        except ModuleNotFoundError as error:
            raise InvalidBuild(
                f"engine llamacpp needs llama-cpp-python in this environment: {error}", spec.engine
            ) from error
        return LlamaCpp(directory, **options)
    if spec.engine == "vllm":
        try:
            from workers.kernels.vllm_engine import VllmEngine
        except ModuleNotFoundError as error:
            raise InvalidBuild(f"engine vllm needs vllm in this environment: {error}", spec.engine) from error
        return VllmEngine(directory, **options)
    raise InvalidBuild(f"no kernel runs engine {spec.engine!r} here", spec.engine)
