"""A batch through a Map: facts of each row, or why it has none."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.contracts import Batch, Map
from curate.core.errors import CurateError, Reject
from curate.core.nouns.facts import DONE, ERROR, UNUSABLE
from curate.core.secrets import redact

KILLED = "killed"
"""Reason of a row that crashes the process that computes it."""


class PrepareError(Exception):
    """An exception of `prepare`: the name of its class, and its message without the stage's secrets. Or a file in place
    that cannot be read any more: the reason, and the file."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass
class BatchResult:
    """Facts of a batch's rows, in the order of the batch."""

    table: pa.Table
    status: NDArray[np.int8]
    reason: NDArray[Any]
    counters: Counter[str] = field(default_factory=Counter)
    messages: dict[str, str] = field(default_factory=dict)
    """Reason of an error -> one example of its message."""
    computed: int = 0
    """Rows passed to `process`; rows of halved batches count each time."""

    @classmethod
    def without(cls, schema: pa.Schema, status: list[int], reason: list[str | None]) -> BatchResult:
        """Rows without values, which never reached `process`."""
        columns = [pa.nulls(len(status), item.type) for item in schema]
        table = pa.table(columns, schema=schema)
        return cls(table, np.array(status, np.int8), np.array([*reason, None], object)[:-1])

    def __add__(self, other: BatchResult) -> BatchResult:
        return BatchResult(
            pa.concat_tables([self.table, other.table]),
            np.concatenate([self.status, other.status]),
            np.concatenate([self.reason, other.reason]),
            self.counters + other.counters,
            {**other.messages, **self.messages},
            self.computed + other.computed,
        )


def run_batch(stage: Map, table: pa.Table, prepared: list[Any], pad: int = 0) -> BatchResult:
    """Facts of a batch's rows. The batch is padded to a multiple of `pad`, for stages whose bits depend on its size. A
    row that makes `process` raise is found by halving; rows that succeeded are not recomputed."""
    schema = stage.schema()
    rows = table.num_rows
    if rows == 0:
        return BatchResult.without(schema, [], [])
    more = -rows % pad if pad else 0
    if more:
        table = table.take(pa.array([*range(rows), *[rows - 1] * more]))
        prepared = [*prepared, *prepared[-1:] * more]
    batch = Batch(table, prepared)
    try:
        columns = stage.process(batch)
    except Reject as reject:
        return _halve(stage, table.slice(0, rows), prepared[:rows], pad, UNUSABLE, redact(reject.reason), "")
    except CurateError:
        raise
    except Exception as error:  # noqa: BLE001 - the sample boundary: find the row that raises
        message = redact(f"{type(error).__name__}: {error}", stage.secrets().values())
        return _halve(stage, table.slice(0, rows), prepared[:rows], pad, ERROR, type(error).__name__, message)
    return _checked(stage, schema, columns, batch, rows)


def _halve(
    stage: Map, table: pa.Table, prepared: list[Any], pad: int, status: int, reason: str, message: str
) -> BatchResult:
    rows = table.num_rows
    if rows == 1:
        found = BatchResult.without(stage.schema(), [status], [reason])
        found.messages = {reason: message} if message else {}
    else:
        middle = rows // 2
        found = run_batch(stage, table.slice(0, middle), prepared[:middle], pad)
        found += run_batch(stage, table.slice(middle), prepared[middle:], pad)
    found.computed += rows
    return found


def _checked(stage: Map, schema: pa.Schema, columns: dict[str, Any], batch: Batch, rows: int) -> BatchResult:
    """The columns that `process` returned, cast to the stage's schema; null for rows that it marked as failed."""
    table = to_table(stage, schema, columns, len(batch)).slice(0, rows)
    status, reason = np.full(rows, DONE, np.int8), np.full(rows, None, object)
    for code, named in ((ERROR, batch.failed), (UNUSABLE, batch.unfit)):
        for row, why in named.items():
            if row < rows:
                status[row], reason[row] = code, redact(str(why))
    bad = status != DONE
    if bad.any():
        index = pa.array(np.arange(rows), mask=bad)
        table = table.combine_chunks().take(index)
    return BatchResult(table, status, reason, batch.counters, computed=rows)


def to_table(stage: Map, schema: pa.Schema, columns: dict[str, Any], rows: int) -> pa.Table:
    """Columns cast to the stage's schema. Raises AssertionError if they do not fit it."""
    unknown = set(columns) - set(schema.names)
    if unknown:
        raise AssertionError(f"{stage.op}: process returned columns {sorted(unknown)} that are not in its schema")
    arrays = []
    for item in schema:
        if item.name not in columns:
            raise AssertionError(f"{stage.op}: process returned no {item.name!r}")
        values = columns[item.name]
        try:
            array = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values, item.type)
            cast = array.cast(item.type)
        except (pa.ArrowException, TypeError, ValueError) as error:
            text = " ".join(str(error).split())[:200]
            raise AssertionError(f"{stage.op}: {item.name} has values that are not {item.type} ({text})") from error
        if len(cast) != rows:
            raise AssertionError(f"{stage.op}: {item.name} has {len(cast)} values for a batch of {rows} rows")
        arrays.append(cast)
    return pa.table(arrays, schema=schema)
