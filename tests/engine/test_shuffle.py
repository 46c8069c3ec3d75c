from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.core.storage import Storage
from curate.engine import shuffle


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(0, 4), max_size=20), min_size=1, max_size=4))
def test_every_row_is_in_its_bucket_in_its_order(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int]]
) -> None:
    storage = Storage(str(tmp_path_factory.mktemp("shuffle")))
    rows = [[(number, place) for place in range(len(buckets))] for number, buckets in enumerate(files)]
    for number, buckets in enumerate(files):
        table = pa.table({"file": pa.array([number] * len(buckets), pa.int64()), "row": np.arange(len(buckets))})
        shuffle.write(storage, f"{number}.parquet", table, np.array(buckets, dtype=np.int64), 5)
    for bucket in range(5):
        found = shuffle.read(storage, [f"{number}.parquet" for number in range(len(files))], bucket)
        wanted = [
            r for number, buckets in enumerate(files) for r, b in zip(rows[number], buckets, strict=True) if b == bucket
        ]
        assert list(zip(found["file"].to_pylist(), found["row"].to_pylist(), strict=True)) == wanted


@given(st.integers(0, 10**11))
def test_buckets_grow_with_the_rows_only(rows: int) -> None:
    count = shuffle.buckets_for(rows)
    assert count >= 1 and shuffle.buckets_for(rows + 1) >= 1
    assert rows / count <= shuffle.MOST_ROWS
    assert count == 1 or rows / count > shuffle.LEAST_ROWS / 2
