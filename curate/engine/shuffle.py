"""Shuffles through files: rows of a shard go into one parquet file, a row group per bucket; a bucket reads its groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.core.storage import Storage

BUCKET_ROWS = 1 << 20
"""Rows that one bucket holds on average: what one worker has in memory. Part of what outputs are, never of the machine."""


def buckets_for(rows: int) -> int:
    return max(1, -(-rows // BUCKET_ROWS))


def write(storage: Storage, path: str, table: pa.Table, bucket: NDArray[np.integer], buckets: int) -> None:
    """Row group b holds the rows of bucket b, in their order; empty buckets have empty groups."""
    order = np.argsort(bucket, kind="stable")
    edges = np.searchsorted(bucket[order], np.arange(buckets + 1))
    table = table.take(pa.array(order)).combine_chunks()
    with storage.publish(path) as aside, pq.ParquetWriter(aside, table.schema, compression="zstd") as writer:
        for start, stop in zip(edges[:-1], edges[1:], strict=True):
            writer.write_table(table.slice(start, stop - start), row_group_size=max(1, int(stop - start)))


def read(storage: Storage, paths: Sequence[str], bucket: int) -> pa.Table:
    """Rows of one bucket from all files, in file order."""
    parts = []
    for path in paths:
        with storage.open(path) as file:
            parts.append(pq.ParquetFile(file).read_row_group(bucket))
    return pa.concat_tables(parts)
