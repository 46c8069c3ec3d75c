import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from curate.select.clusters import copies_of


@given(
    units=st.lists(st.integers(0, 5), max_size=30),
    quotas=st.lists(st.integers(0, 40), min_size=6, max_size=6),
    seed=st.integers(0, 2**32 - 1),
    closest=st.booleans(),
)
def test_quotas_are_met_by_the_first_rows_and_spread(
    units: list[int], quotas: list[int], seed: int, closest: bool
) -> None:
    rng = np.random.default_rng(seed)
    rank = rng.permutation(len(units)).astype(np.uint64)
    distance = rng.integers(0, 3, len(units)).astype(np.float32) if closest else None
    copies = copies_of(np.array(units, dtype=np.int64), np.array(quotas), rank, distance)
    for unit in set(units):
        rows = [row for row in range(len(units)) if units[row] == unit]
        rows.sort(key=lambda row: (distance[row] if closest else 0, rank[row]))
        each, rest = divmod(quotas[unit], len(rows))
        assert [copies[row] for row in rows] == [each + (place < rest) for place in range(len(rows))]


def test_the_order_of_rows_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    units, rank = rng.integers(0, 9, 500), rng.integers(0, 2**63, 500).astype(np.uint64)
    quotas = rng.integers(0, 100, 9)
    order = rng.permutation(500)
    np.testing.assert_array_equal(copies_of(units, quotas, rank)[order], copies_of(units[order], quotas, rank[order]))


def test_no_rows() -> None:
    assert len(copies_of(np.zeros(0, np.int64), np.array([0, 0]), np.zeros(0, np.uint64))) == 0
