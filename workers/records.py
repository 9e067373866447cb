"""Records as Parquet: every number a verdict was made of, one row a decision, one a request.

Written as the evaluation goes, to a temporary file beside the target that takes its name only
once it is complete; a failure leaves nothing.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from contracts.evidence import RecordsRef
from contracts.slices import Attributes
from contracts.values import LOWER, UPPER
from workers.drift import SIDES, metric_names
from workers.paired import PairedPrompt

SCHEMA_VERSION = 1
_ROWS = 16_384  # buffered before they are written as one row group

RUNTIME = ("latency_s", "ttft_s", "itl_s", "throughput")
_WORD = pa.dictionary(pa.int32(), pa.string())


def schema(ks: Sequence[int], ends: Sequence[str] = (), exact: Sequence[str] | None = None) -> pa.Schema:
    """Columns of a records file, with `schema_version` in its metadata.

    draw, index (of the decision in its trace), token (realised), phase, language, tags,
    prompt_tokens, then float64 every metric of `metric_names(ks)` and every side of `SIDES`;
    an unmeasurable decision has NaN. Where a server's log-probabilities are truncated, the metrics
    are `exact` ones and two columns each for those known between two `ends`, never under their own names.
    """
    metrics = metric_names(ks) if exact is None else exact
    between = [name + end for name in ends for end in (LOWER, UPPER)]
    fields = [
        pa.field("draw", _WORD, nullable=False),
        pa.field("index", pa.int32(), nullable=False),
        pa.field("token", pa.int32(), nullable=False),
        pa.field("phase", _WORD, nullable=False),
        pa.field("language", _WORD),
        pa.field("tags", pa.list_(_WORD), nullable=False),
        pa.field("prompt_tokens", pa.int32(), nullable=False),
        *(pa.field(name, pa.float64(), nullable=False) for name in (*metrics, *between, *SIDES)),
    ]
    return pa.schema(fields, metadata={"schema_version": str(SCHEMA_VERSION)})


REQUESTS = pa.schema(
    [
        pa.field("draw", _WORD, nullable=False),
        pa.field("role", _WORD, nullable=False),
        pa.field("ok", pa.bool_(), nullable=False),
        pa.field("dual", pa.bool_(), nullable=False),
        *(pa.field(name, pa.float64()) for name in RUNTIME),
        pa.field("language", _WORD),
        pa.field("tags", pa.list_(_WORD), nullable=False),
        pa.field("prompt_tokens", pa.int32(), nullable=False),
    ],
    metadata={"schema_version": str(SCHEMA_VERSION)},
)


def digest_of(file: Path) -> str:
    """`sha256:` and the hex digest of a file's content."""
    with file.open("rb") as stream:
        return "sha256:" + hashlib.file_digest(stream, "sha256").hexdigest()


def requests_file(records: Path) -> Path:
    """Where the requests of an evaluation go, by where its decisions do."""
    name = records.stem.removesuffix("records").rstrip("-.")
    return records.with_name(f"{name}.requests.parquet" if name else "requests.parquet")


class _Writer:
    """Writes one Parquet file; a context manager, whose `ref` is there after a clean exit."""

    def __init__(self, path: Path, schema: pa.Schema, uri: str | None) -> None:
        self._path, self._schema, self._uri = path, schema, uri or path.name
        self._batches: list[pa.RecordBatch] = []
        self._buffered = self._rows = 0
        self._ref: RecordsRef | None = None

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        os.close(handle)
        self._temporary = Path(name)
        self._writer = pq.ParquetWriter(name, self._schema, compression="zstd")
        return self

    @property
    def ref(self) -> RecordsRef:
        """The finished file. Raises RuntimeError before it is finished."""
        if self._ref is None:
            raise RuntimeError(f"the records {self._path} are not finished")
        return self._ref

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._flush()
            self._writer.close()
            if kind is None:
                self._publish()
        finally:
            self._temporary.unlink(missing_ok=True)

    def _append(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._buffered += batch.num_rows
        if self._buffered >= _ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._batches:
            # One dictionary a row group; prompts bring their own.
            table = pa.Table.from_batches(self._batches, self._schema).unify_dictionaries().combine_chunks()
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
            self._rows += self._buffered
            self._batches, self._buffered = [], 0

    def _publish(self) -> None:
        with self._temporary.open("rb") as file:
            os.fsync(file.fileno())
        digest = digest_of(self._temporary)
        self._temporary.chmod(0o644)
        self._temporary.replace(self._path)
        self._ref = RecordsRef(uri=self._uri, digest=digest, rows=self._rows)


class RecordsWriter(_Writer):
    """Writes the decisions.

    Args:
        path: the file to make; replaced whole if it exists.
        ks: of `topk_agreement@k`, the same the evaluation was given.
        uri: what `ref` calls it; the file's name by default, since evidence stands beside it.
        columns: other than those of `schema(ks)`.
    """

    def __init__(
        self, path: Path, *, ks: Sequence[int] = (), uri: str | None = None, columns: pa.Schema | None = None
    ) -> None:
        super().__init__(path, columns or schema(ks), uri)

    def add(self, prompt: PairedPrompt, attributes: Attributes) -> None:
        """Append every decision of one prompt."""
        for phase, found in prompt.phases.items():
            n = len(found.values["unmeasurable"])
            index = range(found.offset, found.offset + n)
            same = {
                "draw": _repeated(prompt.request.id, n),
                "index": pa.array(index, pa.int32()),
                "token": pa.array([prompt.token_ids[i + 1] for i in index], pa.int32()),
                "phase": _repeated(phase.value, n),
                "language": _repeated(attributes.language, n),
                "tags": pa.array([sorted(attributes.tags)] * n, pa.list_(_WORD)),
                "prompt_tokens": pa.array([attributes.prompt_tokens] * n, pa.int32()),
            }
            lower = {(k + LOWER if k in found.upper else k): v for k, v in found.values.items()}
            upper = {k + UPPER: v for k, v in found.upper.items()}
            numbers = lower | upper | found.sides
            columns = same | {k: pa.array(v, pa.float64()) for k, v in numbers.items()}
            self._append(
                pa.RecordBatch.from_arrays(
                    [columns[name] for name in self._schema.names], schema=self._schema
                )
            )


class RequestsWriter(_Writer):
    """Writes the requests: what runtime and observability clauses are judged on."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, REQUESTS, None)

    def add(
        self,
        draw: str,
        attributes: Attributes,
        *,
        role: str,
        ok: bool,
        dual: bool = False,
        **times: float | None,
    ) -> None:
        """Append one request; `times` by the names of `RUNTIME`."""
        row = {
            "draw": draw,
            "role": role,
            "ok": ok,
            "dual": dual,
            **{name: times.get(name) for name in RUNTIME},
            "language": attributes.language,
            "tags": sorted(attributes.tags),
            "prompt_tokens": attributes.prompt_tokens,
        }
        self._append(pa.RecordBatch.from_pylist([row], schema=REQUESTS))


def _repeated(word: str | None, n: int) -> pa.Array:
    indices = pa.array([None if word is None else 0] * n, pa.int32())
    return pa.DictionaryArray.from_arrays(indices, pa.array([] if word is None else [word], pa.string()))
