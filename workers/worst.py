"""`kc worst`: the decisions that drifted furthest, with the text around them.

Reads what an evaluation recorded, one row a decision, in one pass of bounded memory; runs no kernel.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from contracts.metrics import METRICS, nearest
from contracts.values import LOWER, UPPER
from workers.tokens import BadTokenizer, load_tokenizer

USAGE, FOUND = 2, 0
_ROWS = 65_536  # read at once
_PLACE = ("draw", "index", "token", "phase", "language", "tags", "prompt_tokens")


class NoRecords(ValueError):
    """There is nothing recorded there, or not what was asked for."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which decisions are looked at; None is any.

    Attributes:
        phase: prefill or decode.
        language, tag: of the prompt.
        draw: the prompt's id.
    """

    phase: str | None = None
    language: str | None = None
    tag: str | None = None
    draw: str | None = None

    def mask(self, batch: pa.RecordBatch) -> np.ndarray:
        """Which rows are among them, bool [n]."""
        mask = np.ones(batch.num_rows, dtype=bool)
        for name in ("phase", "language", "draw"):
            wanted = getattr(self, name)
            if wanted is not None:
                same = pc.equal(batch.column(name).dictionary_decode(), wanted)
                mask &= pc.fill_null(same, False).to_numpy(zero_copy_only=False)
        if self.tag is not None:
            mask &= np.array([self.tag in tags for tags in batch.column("tags").to_pylist()], dtype=bool)
        return mask


@dataclass(frozen=True, slots=True)
class Decision:
    """One recorded decision.

    Attributes:
        draw: id of the prompt or request.
        index: of the decision in its trace; it is about token `index + 1`.
        token: the realised token's id.
        value: of the metric asked for; NaN when the decision is unmeasurable.
        metrics: every recorded metric of it.
        before, realised, after: the text around it; None without a tokenizer.
    """

    draw: str
    index: int
    token: int
    phase: str
    language: str | None
    tags: tuple[str, ...]
    prompt_tokens: int
    value: float
    metrics: dict[str, float] = field(repr=False)
    before: str | None = None
    realised: str | None = None
    after: str | None = None


def files(run: Path) -> list[Path]:
    """The record files of an evaluation: a file, or every one in a directory. Raises NoRecords."""
    found = (
        [run] if run.is_file() else sorted(set(run.glob("*.parquet")) - set(run.glob("*requests.parquet")))
    )
    if not found:
        raise NoRecords(
            f"{run}: no records; `kc evaluate --out DIR` writes them, for a promotion its worker does"
        )
    return found


def worst(run: Path, metric: str, most: int, where: Filter = Filter()) -> list[Decision]:
    """The `most` decisions that drifted furthest by `metric`, worst first; unmeasurable ones lead.

    Args:
        run: a records file, or a directory of them.
        metric: a column, for example `kl` or `topk_agreement@10`; by its size where it has a sign.

    Raises NoRecords: no file, not a records file, or one without that metric.
    """
    kept: list[tuple[float, int, Decision]] = []
    for count, (badness, decision) in enumerate(_candidates(run, metric, most, where)):
        entry = (badness, -count, decision)
        if len(kept) < most:
            heapq.heappush(kept, entry)
        elif entry[:2] > kept[0][:2]:
            heapq.heapreplace(kept, entry)
    return [decision for _, _, decision in sorted(kept, key=lambda entry: entry[:2], reverse=True)]


def _candidates(run: Path, metric: str, most: int, where: Filter) -> Iterator[tuple[float, Decision]]:
    """The worst of each batch, in file order, with how bad they are."""
    for file in files(run):
        table = _open(file)
        metrics = [name for name in table.schema_arrow.names if _metric(name) in METRICS]
        if metric not in metrics:
            close = nearest(metric, metrics)
            hint = f"; did you mean {close!r}?" if close else ""
            raise NoRecords(f"{file}: no metric {metric!r} is recorded{hint}")
        for batch in table.iter_batches(_ROWS, columns=[*_PLACE, *metrics]):
            badness = _badness(metric, batch.column(metric).to_numpy())
            mine = np.flatnonzero(where.mask(batch))
            # Stable, so that of equals the first recorded comes first.
            chosen = mine[np.argsort(-badness[mine], kind="stable")[:most]]
            rows = batch.take(pa.array(np.sort(chosen))).to_pylist()
            for at, row in zip(np.sort(chosen), rows, strict=True):
                yield float(badness[at]), _decision(row, metric, metrics)


def _metric(column: str) -> str:
    """The registered metric a column is of; ends of truncated log-probabilities have one each [C1]."""
    return column.partition("@")[0].removesuffix(LOWER).removesuffix(UPPER)


def _badness(metric: str, values: np.ndarray) -> np.ndarray:
    worse = -values if METRICS[_metric(metric)].worse == "down" else np.abs(values)
    return np.where(np.isnan(values), np.inf, worse)


def _decision(row: dict[str, Any], metric: str, metrics: Sequence[str]) -> Decision:
    return Decision(
        **{name: row[name] for name in _PLACE if name != "tags"},
        tags=tuple(row["tags"]),
        value=row[metric],
        metrics={name: row[name] for name in metrics},
    )


def _open(file: Path) -> pq.ParquetFile:
    try:
        table = pq.ParquetFile(file)
    except (OSError, pa.ArrowException) as error:
        raise NoRecords(f"{file}: not a Parquet file: {str(error).splitlines()[0]}") from None
    if not set(_PLACE) <= set(table.schema_arrow.names):
        raise NoRecords(f"{file}: not the records of an evaluation")
    return table


def with_text(run: Path, decisions: Sequence[Decision], tokenizer: Path, context: int) -> list[Decision]:
    """The same decisions with `context` tokens of text on either side.

    Raises NoRecords when the tokenizer cannot be read.
    """
    try:
        words = load_tokenizer(tokenizer)
    except BadTokenizer as error:
        raise NoRecords(str(error)) from None
    tokens = _tokens(run, {decision.draw for decision in decisions})

    def text(draw: dict[int, int], start: int, end: int) -> str:
        # The first token of a prompt is decided by nothing and is in no row.
        return str(words.decode([draw[i] for i in range(start, end) if i in draw], skip_special_tokens=False))

    found = []
    for one in decisions:
        draw, at = tokens[one.draw], one.index
        values = {name: getattr(one, name) for name in Decision.__slots__}
        values["before"] = text(draw, at - context, at)
        values["realised"] = text(draw, at, at + 1)
        values["after"] = text(draw, at + 1, at + 1 + context)
        found.append(Decision(**values))
    return found


def _tokens(run: Path, draws: set[str]) -> dict[str, dict[int, int]]:
    tokens: dict[str, dict[int, int]] = {draw: {} for draw in draws}
    for file in files(run):
        for batch in _open(file).iter_batches(_ROWS, columns=["draw", "index", "token"]):
            columns = (batch.column(i).to_pylist() for i in range(3))
            for draw, index, token in zip(*columns, strict=True):
                if draw in draws:
                    tokens[draw][index] = token
    return tokens


def main(argv: Sequence[str] | None = None) -> int:
    """Print what was asked for; returns the exit status."""
    arguments = _parser().parse_args(argv)
    where = Filter(arguments.phase, arguments.language, arguments.tag, arguments.draw)
    try:
        decisions = worst(arguments.run, arguments.metric, arguments.most, where)
        if arguments.tokenizer is not None:
            decisions = with_text(arguments.run, decisions, arguments.tokenizer, arguments.context)
    except NoRecords as error:
        print(f"kc worst: {error}", file=sys.stderr)
        return USAGE
    if arguments.json:
        rows = [
            {**asdict(one), "metrics": {k: _finite(v) for k, v in one.metrics.items()}} for one in decisions
        ]
        print(
            json.dumps(
                [{**row, "value": _finite(row["value"])} for row in rows], indent=2, ensure_ascii=False
            )
        )
    else:
        _print(decisions, arguments.metric)
    return FOUND


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kc worst", description=__doc__, allow_abbrev=False)
    parser.add_argument("run", type=Path, help="a records file, or a directory of them")
    parser.add_argument("--metric", default="kl")
    parser.add_argument("--most", type=int, default=10)
    parser.add_argument("--phase", choices=("prefill", "decode"))
    parser.add_argument("--language")
    parser.add_argument("--tag")
    parser.add_argument("--draw")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json of the checkpoint")
    parser.add_argument("--context", type=int, default=12, help="tokens of text on either side")
    parser.add_argument("--json", action="store_true")
    return parser


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _print(decisions: Sequence[Decision], metric: str) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console()
    if not decisions:
        console.print("No such decision was recorded.")
    for rank, one in enumerate(decisions, start=1):
        value = "unmeasurable" if math.isnan(one.value) else f"{one.value:.4g}"
        place = f"{one.draw}, position {one.index + 1} of a prompt of {one.prompt_tokens} tokens, {one.phase}"
        console.print(Text.assemble((f"{rank:>3}. {metric} {value}", "bold"), f"  {place}"), soft_wrap=True)
        numbers = [
            f"{name} {one.metrics[name]:.4g}" for name in ("log_ratio", "kl", "tv") if name in one.metrics
        ]
        tags = " ".join(filter(None, (one.language, *one.tags)))
        console.print(
            Text(f"     {', '.join(numbers)}{'  ' + tags if tags else ''}"), highlight=False, soft_wrap=True
        )
        if one.realised is not None:
            before, after = ((text or "").replace("\n", "⏎") for text in (one.before, one.after))
            token = one.realised.replace("\n", "⏎")
            # A log has no colours: brackets say which token it is.
            marked = token if console.is_terminal else f"⟦{token}⟧"
            line = Text.assemble("     ", before, (marked, "bold reverse"), after)
            console.print(line, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
