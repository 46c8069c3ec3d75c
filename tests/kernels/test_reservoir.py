from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from curate.kernels.reservoir import Reservoir, first_per_group


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**6)), unique_by=lambda pair: pair[1], max_size=60),
    st.integers(0, 5),
    st.integers(1, 20),
)
def test_a_reservoir_does_not_depend_on_the_order_of_its_rows(rows, size, shard):
    table = pa.table({"value": pa.array([value for _, value in rows], pa.int64())})
    groups = np.array([group for group, _ in rows], dtype=np.int64)
    order = np.array([value for _, value in rows], dtype=np.int64)
    kept = Reservoir(size)
    for start in range(0, len(rows), shard):
        part = slice(start, start + shard)
        kept.add(table.slice(start, shard), groups[part], order[part])
    expected = {}
    for group in sorted(set(groups.tolist())):
        values = sorted(value for own, value in rows if own == group)[:size]
        if values:
            expected[group] = [{"value": value} for value in values]
    assert kept.rows() == expected


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20)), max_size=50), st.integers(0, 4))
def test_first_per_group_equals_sorting_each_group(pairs, count):
    groups = np.array([group for group, _ in pairs], dtype=np.int64)
    order = np.array([value for _, value in pairs], dtype=np.int64)
    found = first_per_group(groups, order, count).tolist()
    expected = []
    for group in sorted(set(groups.tolist())):
        rows = [row for row in range(len(pairs)) if groups[row] == group]
        expected += sorted(rows, key=lambda row: (order[row], row))[:count]
    assert found == expected
