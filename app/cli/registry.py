"""`kc register`: tells the control plane what exists."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from app.cli.builds import spec
from app.cli.client import ControlPlane
from app.cli.errors import USAGE, CliError


def contract(url: str, file: Path) -> None:
    """Publish a contract document."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise CliError(f"{file}: {error.strerror or error}", USAGE) from None
    with ControlPlane(url) as plane:
        made = plane.register_contract(text)
    _say(f"{made['name']}@{made['version']}", made)
    for one in made.get("warnings", []):
        place = f"{file}:{one['line']}:{one['column']}"
        print(f"{place}: {one['severity']}: {one['message']} [{one['code']}]", file=sys.stderr)


def checkpoint(url: str, name: str, path: Path) -> None:
    """Register a checkpoint directory."""
    with ControlPlane(url) as plane:
        _say(name, plane.register("checkpoints", name=name, path=str(path.absolute())))


def build(url: str, name: str, written: str) -> None:
    """Register a kernel build, given as `engine:key=value,...` or a JSON file with the same keys."""
    with ControlPlane(url) as plane:
        _say(name, plane.register("kernel-builds", name=name, spec=spec(written)))


def suite(url: str, name: str, path: Path) -> None:
    """Register an evaluation suite."""
    with ControlPlane(url) as plane:
        _say(name, plane.register("suites", name=name, path=str(path.absolute())))


def deployment(url: str, name: str, known_good: str, endpoints: list[str]) -> None:
    """Register a deployment; `endpoints` are `build=url`."""
    pairs = {}
    for endpoint in endpoints:
        where, separator, address = endpoint.partition("=")
        if not separator or not where or not address:
            raise CliError(f"--endpoint {endpoint}: write it as build=url", USAGE)
        pairs[where] = address
    with ControlPlane(url) as plane:
        _say(name, plane.register("deployments", name=name, known_good=known_good, endpoints=pairs))


def _say(name: str, made: dict[str, Any]) -> None:
    print(f"{name} {made.get('digest', '')}".rstrip())
