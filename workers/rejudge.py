"""`kc judge`: judges recorded measurements under another contract; runs no kernel.

Records hold every drift metric of every decision and every request's timing, so that evidence for
any clause on them can be gathered anew. What a contract asks that was not recorded is an error, never
a pass.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from contracts.calibration import Calibrated
from contracts.collect import Collector
from contracts.document import InvalidContract, read
from contracts.evidence import Evidence, RecordsRef, UnreadableEvidence
from contracts.judge import judge
from contracts.model import Contract, Phase
from contracts.slices import Attributes
from contracts.values import LOWER, UPPER
from workers import evaluate
from workers.drift import SIDES
from workers.records import RUNTIME, digest_of
from workers.worst import NoRecords

_ROWS = 65_536  # read at once
_PLACE = ("draw", "index", "phase", "language", "tags", "prompt_tokens")
_GENERATED = frozenset({"reward_drift", "flip_rate"})


def replay(contract: Contract, digest: str, evidence: Evidence, folder: Path) -> Evidence:
    """The evidence the recorded measurement is for another contract.

    Under the contract it was measured for it is the same evidence, to the byte.

    Args:
        digest: the contract's.
        evidence: of the measurement, one shard; its provenance is kept but for the contract.
        folder: where the records are that the evidence names.

    Raises NoRecords when records are missing, are not those the evidence names, or lack a metric.
    """
    shard = evidence.shards[0] if len(evidence.shards) == 1 else None
    if shard is None or len(evidence.records) != 1:
        raise NoRecords("the evidence is of several shards: judge each on its own")
    provenance = evidence.provenance.model_copy(update={"contract": digest})
    collector = Collector(contract, provenance, shard)
    _refuse_generated(contract, collector)
    for row in _rows(folder / "requests.parquet"):
        times = {name: row[name] for name in RUNTIME}
        collector.add_request(_attributes(row), role=row["role"], ok=row["ok"], dual=row["dual"], **times)
    _add_decisions(collector, folder, evidence.records[0])
    return collector.evidence(evidence.records)


def _refuse_generated(contract: Contract, collector: Collector) -> None:
    asked = [clause.id for clause in contract.clauses if clause.metric in _GENERATED]
    if asked and (collector.needs_rewards or collector.needs_outcomes):
        raise NoRecords(f"clauses {', '.join(asked)} grade generations, which are not recorded: measure anew")


def _add_decisions(collector: Collector, folder: Path, ref: RecordsRef) -> None:
    file = _verified(folder / Path(ref.uri).name, ref)
    columns = set(file.schema_arrow.names)
    ends = {key for key in collector.needs if key + LOWER in columns}
    if missing := sorted(collector.needs - columns - ends):
        raise NoRecords(f"{ref.uri} has no {', '.join(missing)}: measure anew")
    metrics = sorted((collector.needs | {"unmeasurable"}) & columns)
    read = [*metrics, *(key + end for key in sorted(ends) for end in (LOWER, UPPER))]
    for (draw, phase), rows in groupby(_decisions(file, read), lambda row: (row["draw"], row["phase"])):
        mine = list(rows)

        def column(name: str, mine: list[dict[str, Any]] = mine) -> np.ndarray:
            return np.array([row[name] for row in mine], dtype=np.float64)

        side = {name: column(name) for name in SIDES}
        calibrated = Calibrated(
            side["confidence_train"], side["hit_train"], side["confidence_inference"], side["hit_inference"]
        )
        collector.add_prompt(
            draw,
            _attributes(mine[0]),
            Phase(phase),
            {name: column(name) for name in metrics} | {key: column(key + LOWER) for key in ends},
            calibration=calibrated if collector.needs_calibration else None,
            nll=(side["nll_train"], side["nll_inference"]) if collector.needs_nll else None,
            offset=mine[0]["index"],
            upper={key: column(key + UPPER) for key in ends},
        )


def _decisions(file: pq.ParquetFile, metrics: Sequence[str]) -> Iterator[dict[str, Any]]:
    for batch in file.iter_batches(_ROWS, columns=[*_PLACE, *metrics, *SIDES]):
        yield from batch.to_pylist()


def _verified(path: Path, ref: RecordsRef) -> pq.ParquetFile:
    """The records the evidence names, and no others."""
    if not path.is_file():
        raise NoRecords(f"{path}: no such records")
    if digest_of(path) != ref.digest:
        raise NoRecords(f"{path}: not the records the evidence names; it was changed")
    return pq.ParquetFile(path)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise NoRecords(f"{path}: {str(error).splitlines()[0]}") from None
    for batch in file.iter_batches(_ROWS):
        yield from batch.to_pylist()


def _attributes(row: dict[str, Any]) -> Attributes:
    return Attributes(row["prompt_tokens"], row["language"], frozenset(row["tags"]))


def main(argv: Sequence[str] | None = None) -> int:
    """Judge and print; returns the exit status of `kc evaluate`."""
    parser = argparse.ArgumentParser(prog="kc judge", description=__doc__, allow_abbrev=False)
    parser.add_argument("run", type=Path, help="directory `kc evaluate --out` wrote")
    parser.add_argument("--contract", type=Path, required=True, help="the contract, a YAML file")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args(argv)
    try:
        document = read(given.contract.read_bytes(), str(given.contract))
        measured = Evidence.read((given.run / "evidence.json").read_bytes())
        evidence = replay(document.contract, document.digest, measured, given.run)
    except OSError as error:
        print(f"kc judge: {error.filename}: {error.strerror}", file=sys.stderr)
        return evaluate.USAGE
    except InvalidContract as error:
        print(f"kc judge: the contract has errors\n{error}", file=sys.stderr)
        return evaluate.USAGE
    except (UnreadableEvidence, NoRecords) as error:
        print(f"kc judge: {error}", file=sys.stderr)
        return evaluate.NOT_MEASURED
    judgement = judge(document.contract, evidence, contract_digest=document.digest)
    evaluate.show(judgement, as_json=given.json)
    return evaluate.status(judgement)


if __name__ == "__main__":
    sys.exit(main())
