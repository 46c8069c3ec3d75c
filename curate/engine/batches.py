"""A batch through a stage: a sample that makes `process` raise is found by halving, and becomes a reject."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.contracts import Batch, Map
from curate.core.errors import CurateError, Reject
from curate.core.ledger import ERROR_PREFIX, Entry


@dataclass
class Produced:
    """Columns with `reject`, and what the ledger says of them."""

    table: pa.Table
    entry: Entry = field(default_factory=Entry)
    messages: dict[str, str] = field(default_factory=dict)
    """One example of what was said, per reason that is an error."""


def run_batch(stage: Map, table: pa.Table, prepared: list[Any]) -> Produced:
    """Live rows only, in and out. Columns are cast to the stage's schema; a wrong length is a programmer's error."""
    schema = stage.schema().append(pa.field("reject", pa.string()))
    if table.num_rows == 0:
        return Produced(schema.empty_table())
    batch = Batch(table, prepared)
    try:
        columns = stage.process(batch)
    except Reject as reject:
        return _halve(stage, table, prepared, reject.reason, str(reject))
    except CurateError:
        raise
    except Exception as error:  # noqa: BLE001 - the sample boundary: find which row it is
        return _halve(stage, table, prepared, ERROR_PREFIX + type(error).__name__, f"{type(error).__name__}: {error}")
    return Produced(_to_table(stage, schema, columns, len(batch)), Entry(counters=batch.counters))


def _halve(stage: Map, table: pa.Table, prepared: list[Any], reason: str, message: str) -> Produced:
    rows = table.num_rows
    schema = stage.schema().append(pa.field("reject", pa.string()))
    if rows == 1:
        columns = [*(pa.nulls(1, f.type) for f in stage.schema()), pa.array([reason], pa.string())]
        return Produced(pa.table(columns, schema=schema), messages={reason: message})
    middle = rows // 2
    left = run_batch(stage, table.slice(0, middle), prepared[:middle])
    right = run_batch(stage, table.slice(middle), prepared[middle:])
    return Produced(
        pa.concat_tables([left.table, right.table]), left.entry + right.entry, left.messages | right.messages
    )


def _to_table(stage: Map, schema: pa.Schema, columns: dict[str, Any], rows: int) -> pa.Table:
    unknown = set(columns) - set(schema.names)
    if unknown:
        raise AssertionError(f"{stage.op}: process returned columns {sorted(unknown)} that its schema does not name")
    arrays = []
    for item in schema:
        values = columns.get(item.name)
        if values is None and item.name == "reject":
            values = pa.nulls(rows, pa.string())
        elif values is None:
            raise AssertionError(f"{stage.op}: process returned no {item.name!r}")
        array = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values, item.type)
        if len(array) != rows:
            raise AssertionError(f"{stage.op}: {item.name} has {len(array)} values for a batch of {rows} rows")
        arrays.append(array.cast(item.type))
    return pa.table(arrays, schema=schema)


def scatter(
    schema: pa.Schema,
    parts: list[Produced],
    live: NDArray[np.int64],
    rows: int,
    alive: NDArray[np.bool_],
    refused: dict[int, str],
) -> Produced:
    """Live rows' columns back to where they were among `rows`; the others null; rows refused early get their reason."""
    full = schema.append(pa.field("reject", pa.string()))
    dense = pa.concat_tables([p.table for p in parts]) if parts else full.empty_table()
    index = np.full(rows, -1, dtype=np.int64)
    index[live] = np.arange(len(live))
    take = pa.array(index, mask=index < 0)
    table = dense.combine_chunks().take(take)
    reasons = np.array(table.column("reject").to_pylist(), dtype=object)
    for row, reason in refused.items():
        reasons[row] = reason
    table = table.set_column(table.num_columns - 1, "reject", pa.array(reasons, pa.string()))
    table = pa.table(table.columns, schema=full)
    rejected = Counter(reason for reason in reasons if reason is not None)
    before = int(alive.sum())
    entry = Entry(before, rejected, before - sum(rejected.values()))
    for part in parts:
        entry.counters.update(part.entry.counters)
    messages = {k: v for part in parts for k, v in part.messages.items()}
    return Produced(table, entry, messages)
