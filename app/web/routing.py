"""The routing table in plain words, for the pages that say what serves now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit, urlunsplit

from app.web import words
from contracts.routing import Mode, RoutingTable

MODES = {Mode.KNOWN_GOOD: "Known-good only", Mode.SHADOW: "Shadow", Mode.CANARY: "Canary", Mode.FULL: "Full"}


@dataclass(frozen=True, slots=True)
class DeploymentView:
    """What serves a deployment now; `serving` is None before the first routing table."""

    name: str
    serving: str | None
    detail: str


@dataclass(frozen=True, slots=True)
class VersionView:
    """One version of a routing table."""

    version: int
    at: datetime
    mode: str
    serving: str
    detail: str


def deployment(name: str, table: RoutingTable | None) -> DeploymentView:
    """A deployment by its routing table."""
    if table is None:
        return DeploymentView(name, None, "No routing table yet.")
    return DeploymentView(name, serving(table), detail(table))


def version(table: RoutingTable, at: datetime) -> VersionView:
    """One version for the history."""
    return VersionView(table.version, at, MODES[table.mode], serving(table), detail(table))


def serving(table: RoutingTable) -> str:
    """The build that answers most users."""
    mostly = table.candidate is not None and table.share > 0.5
    return table.candidate if mostly and table.candidate else table.known_good


def detail(table: RoutingTable) -> str:
    """How the candidate takes part, in one line."""
    match table.mode:
        case Mode.KNOWN_GOOD:
            return "Known good, serves everything"
        case Mode.SHADOW:
            text = f"{words.share(table.mirror)} mirrored to {table.candidate}"
        case Mode.CANARY:
            text = f"{words.share(table.share)} served by {table.candidate}, the rest by {table.known_good}"
        case Mode.FULL:
            text = f"{words.share(table.audit_rate)} evaluated through both kernels"
    if table.guarded:
        text += f"; {', '.join(table.guarded)} guarded by {table.guard or table.known_good}"
    return text


def facts(table: RoutingTable) -> tuple[tuple[str, str], ...]:
    """The table itself, labelled."""
    shown = [
        ("Version", str(table.version)),
        ("Mode", MODES[table.mode]),
        ("Known-good build", table.known_good),
    ]
    if table.candidate is not None:
        shown += [
            ("Candidate", table.candidate),
            ("Served by the candidate", words.share(table.share)),
            ("Mirrored to the candidate", words.share(table.mirror)),
            ("Evaluated through both kernels", words.share(table.audit_rate)),
        ]
    if table.guarded:
        shown.append(("Guarded slices", ", ".join(table.guarded)))
        shown.append(("They are served by", table.guard or table.known_good))
    return tuple(shown)


def safe_url(url: str) -> str:
    """The address without user, password and query, which may be secret."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
