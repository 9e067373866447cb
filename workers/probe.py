"""`kc probe`: runtime drift of a candidate against a baseline under realistic load.

Starts both servers, or takes their addresses; loads them in turns with open-loop Poisson arrivals
(`workers.load`); judges the contract's runtime clauses on what clients met, and prints the quantiles of
both sides [Q17].
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from app.services.checkpoints import checkpoint_digests
from app.services.suites import InvalidSuite, read_suite
from contracts.builds import InvalidBuild
from contracts.collect import Collector
from contracts.document import Document, InvalidContract, read
from contracts.evidence import Evidence, Provenance
from contracts.judge import judge
from contracts.metrics import METRICS, Shape
from contracts.model import Contract, Family, Stage
from contracts.slices import Attributes
from workers import evaluate
from workers.draws import InvalidEvaluation, suite_draws
from workers.kernels.builds import read_build
from workers.load import Load, Observation, Prompt, Side, run
from workers.progress import Report, bar, silent
from workers.servers import NotServing, Server, served

SHARD = "probe"
QUANTILES = (0.5, 0.9, 0.95, 0.99)
_LATE_S = 0.05  # a client later than this in sending loads less evenly than it says


def gather(
    contract: Contract,
    provenance: Provenance,
    seen: Sequence[Observation],
    attributes: Mapping[str, Attributes],
    peak_bytes: int | None,
) -> Evidence:
    """Evidence of a load: every request that was no warm-up, and the candidate's peak memory in bytes."""
    collector = Collector(contract, provenance, SHARD)
    for one in seen:
        if one.warm:
            continue
        itl = None
        if one.ttft_s is not None and one.tokens > 1:
            itl = max(0.0, one.latency_s - one.ttft_s) / (one.tokens - 1)
        collector.add_request(
            attributes[one.prompt],
            role=one.side,
            ok=one.ok,
            latency_s=one.latency_s,
            ttft_s=one.ttft_s,
            itl_s=itl,
            throughput=one.tokens / one.latency_s if one.tokens and one.latency_s > 0 else None,
        )
    if peak_bytes is not None:
        collector.gauge("peak_memory", float(peak_bytes))
    return collector.evidence()


def only_runtime(contract: Contract) -> Contract:
    """The contract's runtime clauses; the others say nothing about a load.

    Raises InvalidEvaluation when it has none for offline CI.
    """
    clauses = tuple(
        clause
        for clause in contract.clauses_at(Stage.OFFLINE_CI)
        if clause.family is Family.RUNTIME and METRICS[clause.metric].shape is not Shape.DECISION
    )
    if not clauses:
        raise InvalidEvaluation("the contract has no runtime clause in offline CI: nothing to probe for")
    # A load counts requests, and how many there are is for whoever loads to say.
    offline = contract.stages.offline_ci.model_copy(update={"min_prompts": 0})
    stages = contract.stages.model_copy(update={"offline_ci": offline})
    return contract.model_copy(update={"clauses": clauses, "stages": stages})


def summary(seen: Sequence[Observation]) -> dict[Side, dict[str, float | None]]:
    """By side: how many requests counted, the share that failed, and quantiles in seconds."""
    found: dict[Side, dict[str, float | None]] = {}
    sides: tuple[Side, ...] = ("candidate", "baseline")
    for side in sides:
        mine = [one for one in seen if one.side == side and not one.warm]
        good = [one for one in mine if one.ok]
        row: dict[str, float | None] = {"requests": float(len(mine))}
        row["failure_rate"] = 1 - len(good) / len(mine) if mine else None
        for name in ("latency_s", "ttft_s"):
            values = sorted(v for one in good if (v := getattr(one, name)) is not None)
            for q in QUANTILES:
                row[f"{name.removesuffix('_s')}_p{q * 100:g}"] = _quantile(values, q)
        itl = sorted(
            (one.latency_s - one.ttft_s) / (one.tokens - 1)
            for one in good
            if one.ttft_s is not None and one.tokens > 1
        )
        row["itl_p50"], row["itl_p99"] = _quantile(itl, 0.5), _quantile(itl, 0.99)
        found[side] = row
    return found


def _quantile(values: Sequence[float], q: float) -> float | None:
    """The smallest value that at least a share `q` of them does not exceed."""
    return values[max(0, math.ceil(q * len(values)) - 1)] if values else None


def main(argv: Sequence[str] | None = None) -> int:
    """Probe as the arguments say; returns the exit status of `kc evaluate`."""
    given = _parser().parse_args(argv)
    try:
        document = read(given.contract.read_bytes(), str(given.contract))
        contract = only_runtime(document.contract)
        suite = read_suite(given.suite)
        draws = suite_draws(suite, given.checkpoint)
        load = Load(given.rate, given.seconds, given.warm_up, given.block, given.timeout, given.seed)
        provenance = _provenance(document, given, suite.digest)
    except OSError as error:
        print(f"kc probe: {error.filename}: {error.strerror}", file=sys.stderr)
        return evaluate.USAGE
    except (InvalidContract, InvalidSuite, InvalidBuild, InvalidEvaluation, ValueError) as error:
        print(f"kc probe: {error}", file=sys.stderr)
        return evaluate.USAGE
    prompts = [Prompt(d.request.id, d.request.prompt_ids, given.max_tokens) for d in draws]
    attributes = {draw.request.id: draw.attributes for draw in draws}
    try:
        with bar("probing") if not given.quiet else _quiet() as progress:
            seen, peak = _loaded(given, load, prompts, progress)
    except (NotServing, OSError) as error:
        print(f"kc probe: could not be measured: {error}", file=sys.stderr)
        return evaluate.NOT_MEASURED
    evidence = gather(contract, provenance, seen, attributes, peak)
    judgement = judge(contract, evidence, contract_digest=document.digest)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        evaluate.write(given.out / "evidence.json", evidence.canonical())
        evaluate.write(given.out / "judgement.json", judgement.model_dump_json(indent=2).encode())
    _print(seen, given)
    if given.json:
        print(json.dumps({**evaluate.for_machines(judgement), "load": summary(seen)}, indent=2))
    else:
        evaluate.show(judgement, as_json=False)
    return evaluate.status(judgement)


@contextmanager
def _quiet() -> Iterator[Report]:
    yield silent


def _loaded(
    given: argparse.Namespace, load: Load, prompts: Sequence[Prompt], progress: Report
) -> tuple[list[Observation], int | None]:
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers: dict[Side, Server] = {}
        sides: tuple[Side, ...] = ("baseline", "candidate")
        for side in sides:
            asked = getattr(given, side)
            progress(0.0, f"starting the {side}")
            is_url = asked.startswith(("http://", "https://"))
            servers[side] = (
                Server(asked) if is_url else stack.enter_context(served(asked, given.checkpoint, logs))
            )
        expected = 2 * load.rate * (load.seconds + load.warm_up_s)
        count = 0

        def done(_: Observation) -> None:
            nonlocal count
            count += 1
            progress(min(1.0, count / expected), f"{count} requests answered")

        seen = asyncio.run(run(load, prompts, {s: server.url for s, server in servers.items()}, done=done))
        for server in servers.values():
            server.check()
        return seen, servers["candidate"].peak_bytes


def _provenance(document: Document, given: argparse.Namespace, suite: str) -> Provenance:
    def digest(asked: str) -> str:
        return asked if asked.startswith("http") else read_build(asked).digest

    return Provenance(
        contract=document.digest,
        checkpoint=checkpoint_digests(given.checkpoint).digest,
        train_build=digest(given.baseline),
        inference_build=digest(given.candidate),
        baseline_build=digest(given.baseline),
        suite=suite,
        stage=Stage.OFFLINE_CI,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kc probe", description=__doc__, allow_abbrev=False)
    parser.add_argument("--contract", type=Path, required=True, help="the contract, a YAML file")
    parser.add_argument("--checkpoint", type=Path, required=True, help="directory of weights and tokenizer")
    parser.add_argument("--suite", type=Path, required=True, help="prompts, one JSON object a line")
    parser.add_argument("--candidate", required=True, help="a build to serve, or a server's http:// address")
    parser.add_argument("--baseline", required=True, help="likewise")
    parser.add_argument("--rate", type=float, required=True, help="arrivals a second")
    parser.add_argument("--seconds", type=float, default=120.0, help="of load each server gets")
    parser.add_argument("--warm-up", type=float, default=10.0, help="seconds of load before, not counted")
    parser.add_argument("--block", type=float, default=15.0, help="seconds of one turn")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds after which a request failed")
    parser.add_argument("--max-tokens", type=int, default=32, help="length of an answer at most")
    parser.add_argument("--seed", type=int, default=0, help="of arrivals and prompts")
    parser.add_argument("--out", type=Path, help="directory for evidence and judgement")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


def _print(seen: Sequence[Observation], given: argparse.Namespace) -> None:
    late = max((one.lag_s for one in seen), default=0.0)
    if late > _LATE_S:
        print(
            f"kc probe: the client was up to {late:.2f} s late in sending: it is overloaded", file=sys.stderr
        )
    errors = sorted({one.error for one in seen if one.error})
    for error in errors[:3]:
        print(f"kc probe: a request failed: {error}", file=sys.stderr)
    if given.json:
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    rows = summary(seen)
    table = Table(box=box.SIMPLE_HEAD, title=f"{given.rate:g} arrivals a second", title_justify="left")
    for column in ("", "candidate", "baseline", "ratio"):
        table.add_column(column, justify="left" if not column else "right")
    for name in rows["candidate"]:
        here, there = rows["candidate"][name], rows["baseline"][name]
        ratio = f"{here / there:.3g}" if here is not None and there else "–"
        table.add_row(name, *("–" if v is None else f"{v:.4g}" for v in (here, there)), ratio)
    Console().print(table)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
