"""`kc kernel-server`: becomes the OpenAI-compatible server of one kernel build.

A torch build is served by `workers.kernels.server`, engine `vllm` by its own server, under the
interpreter the build names and with the options the measurement gives the engine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from contracts.builds import BuildSpec, InvalidBuild
from contracts.model import Scalar
from workers.environments import environment_of, interpreter
from workers.kernels.builds import read_build

# The server's flag for each option of engine `vllm`; a switch is a pair of flags.
_FLAGS = {
    "dtype": "--dtype",
    "attn": "--attention-backend",
    "block_size": "--block-size",
    "max_model_len": "--max-model-len",
    "chunk": "--max-num-batched-tokens",
    "batch": "--max-num-seqs",
    "quantization": "--quantization",
    "kv_cache_dtype": "--kv-cache-dtype",
    "tp": "--tensor-parallel-size",
}
_SWITCHES = {
    "enforce_eager": ("--enforce-eager", "--no-enforce-eager"),
    "prefix_caching": ("--enable-prefix-caching", "--no-enable-prefix-caching"),
}
# Nothing is asked of or told to anybody, and the cores are shared with whoever else runs here.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}
_CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def vllm_command(build: BuildSpec, checkpoint: Path, host: str, port: int) -> list[str]:
    """Command line of vLLM's own server for a build of engine `vllm`. Raises UnknownEnvironment."""
    options: dict[str, Scalar] = {"dtype": "bfloat16", "prefix_caching": "off"} | build.options
    arguments = [
        "--model", str(checkpoint), "--host", host, "--port", str(port),
        # Sampling is what each request asks; the checkpoint's defaults would change it silently.
        "--generation-config", "vllm", "--disable-uvicorn-access-log",
    ]  # fmt: skip
    for name, value in sorted(options.items()):
        if name in _SWITCHES:
            arguments.append(_SWITCHES[name][value != "on"])
        elif name == "rope_theta":
            rope = {"rope_parameters": {"rope_type": "default", "rope_theta": value}}
            arguments += ["--hf-overrides", json.dumps(rope)]
        elif name == "kv_cache_gib":
            arguments += ["--kv-cache-memory-bytes", str(int(value) * 2**30)]
        elif name in _FLAGS:
            arguments += [_FLAGS[name], str(value)]
    python = interpreter(environment_of(build) or "vllm")
    return [str(python), "-m", "vllm.entrypoints.openai.api_server", *arguments]


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until told to stop; returns 2 when the build cannot be served."""
    parser = argparse.ArgumentParser(prog="kc kernel-server", description=__doc__, allow_abbrev=False)
    parser.add_argument("--build", required=True, help="engine:key=value,... or a JSON file")
    parser.add_argument("--checkpoint", type=Path, required=True, help="directory")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args(argv)
    try:
        build = read_build(given.build)
        if build.engine == "vllm":
            _become(vllm_command(build, given.checkpoint, given.host, given.port))
        if build.engine not in ("torch", "torch-serving"):
            raise InvalidBuild(f"engine {build.engine} has a server of its own: start that one", build.engine)
    except InvalidBuild as error:
        print(f"kc kernel-server: {error}", file=sys.stderr)
        return 2
    from workers.kernels import server

    arguments = ["--build", given.build, "--checkpoint", str(given.checkpoint)]
    return server.main([*arguments, "--host", given.host, "--port", str(given.port)])


def _become(command: list[str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, {**_CPU, **os.environ, **_ENVIRONMENT})  # noqa: S606


if __name__ == "__main__":
    sys.exit(main())
