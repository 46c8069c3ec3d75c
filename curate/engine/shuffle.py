"""Shuffles through files: a shard's rows go into one parquet file, a row group per bucket; a bucket reads its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.core.storage import Storage

LEAST_ROWS, MOST_ROWS = 1 << 13, 1 << 20
"""Rows that one bucket holds on average, in small and in very large pools: what one worker has in memory."""
FEW = 256
"""Buckets up to which they stay small; beyond, they grow first, because every shard's file has a group per bucket."""


def buckets_for(rows: int) -> int:
    """Part of what outputs are (files of a selection), so a function of the rows alone, never of the machine."""
    size = min(MOST_ROWS, max(LEAST_ROWS, rows // FEW))
    return max(1, -(-rows // size))


def write(storage: Storage, path: str, table: pa.Table, bucket: NDArray[np.integer], buckets: int) -> None:
    """Row group b holds the rows of bucket b, in their order; empty buckets have empty groups."""
    order = np.argsort(bucket, kind="stable")
    edges = np.searchsorted(bucket[order], np.arange(buckets + 1))
    table = table.take(pa.array(order)).combine_chunks()
    with storage.publish(path) as aside, pq.ParquetWriter(aside, table.schema, compression="zstd") as writer:
        for start, stop in pairwise(edges):
            writer.write_table(table.slice(start, stop - start), row_group_size=max(1, int(stop - start)))


def read(storage: Storage, paths: Sequence[str], bucket: int) -> pa.Table:
    """Rows of one bucket from all files, in file order."""
    parts = []
    for path in paths:
        with storage.open(path) as file:
            parts.append(pq.ParquetFile(file).read_row_group(bucket))
    return pa.concat_tables(parts)
