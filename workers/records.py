"""Per-decision records as Parquet: every number a verdict was made of, one row a decision.

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
from workers.drift import SIDES, metric_names
from workers.paired import PairedPrompt

SCHEMA_VERSION = 1
_ROWS = 16_384  # buffered before they are written as one row group

_WORD = pa.dictionary(pa.int32(), pa.string())


def schema(ks: Sequence[int]) -> pa.Schema:
    """Columns of a records file, with `schema_version` in its metadata.

    draw, index (of the decision in its trace), token (realised), phase, language, tags,
    prompt_tokens, then float64 every metric of `metric_names(ks)` and every side of `SIDES`;
    an unmeasurable decision has NaN.
    """
    fields = [
        pa.field("draw", _WORD, nullable=False),
        pa.field("index", pa.int32(), nullable=False),
        pa.field("token", pa.int32(), nullable=False),
        pa.field("phase", _WORD, nullable=False),
        pa.field("language", _WORD),
        pa.field("tags", pa.list_(_WORD), nullable=False),
        pa.field("prompt_tokens", pa.int32(), nullable=False),
        *(pa.field(name, pa.float64(), nullable=False) for name in (*metric_names(ks), *SIDES)),
    ]
    return pa.schema(fields, metadata={"schema_version": str(SCHEMA_VERSION)})


class RecordsWriter:
    """Writes one records file; a context manager, whose `ref` is there after a clean exit.

    Args:
        path: the file to make; replaced whole if it exists.
        ks: of `topk_agreement@k`, the same the evaluation was given.
        uri: what `ref` calls it; the file's name by default, since evidence stands beside it.
    """

    def __init__(self, path: Path, *, ks: Sequence[int] = (), uri: str | None = None) -> None:
        self._path, self._uri = path, uri or path.name
        self._schema = schema(ks)
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
            columns = same | {k: pa.array(v, pa.float64()) for k, v in (found.values | found.sides).items()}
            self._batches.append(
                pa.RecordBatch.from_arrays(
                    [columns[name] for name in self._schema.names], schema=self._schema
                )
            )
            self._buffered += n
        if self._buffered >= _ROWS:
            self._flush()

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

    def _flush(self) -> None:
        if self._batches:
            # One dictionary a row group; prompts bring their own.
            table = pa.Table.from_batches(self._batches, self._schema).unify_dictionaries().combine_chunks()
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
            self._rows += self._buffered
            self._batches, self._buffered = [], 0

    def _publish(self) -> None:
        with self._temporary.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        self._temporary.chmod(0o644)
        self._temporary.replace(self._path)
        self._ref = RecordsRef(uri=self._uri, digest=f"sha256:{digest}", rows=self._rows)


def _repeated(word: str | None, n: int) -> pa.Array:
    indices = pa.array([None if word is None else 0] * n, pa.int32())
    return pa.DictionaryArray.from_arrays(indices, pa.array([] if word is None else [word], pa.string()))
