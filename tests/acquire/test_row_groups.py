from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from curate.acquire.row_groups import RowSpan, overlaps, split_rows

files = st.lists(st.lists(st.integers(0, 30), max_size=5), max_size=5)


@given(files, st.integers(1, 20))
def test_portions_have_every_row_once_in_order(groups: list[list[int]], rows: int) -> None:
    portions = split_rows(groups, rows)
    found = [(s.file, row) for spans in portions for s in spans for row in range(s.start, s.stop)]
    assert found == [(file, row) for file, sizes in enumerate(groups) for row in range(sum(sizes))]
    assert all(1 <= sum(span.rows for span in spans) <= rows for spans in portions)


@given(files, st.integers(1, 20))
def test_row_groups_that_fit_are_never_split(groups: list[list[int]], rows: int) -> None:
    edges = {
        (span.file, edge) for spans in split_rows(groups, rows) for span in spans for edge in (span.start, span.stop)
    }
    for file, sizes in enumerate(groups):
        start = 0
        for size in sizes:
            if size <= rows:
                assert not any((file, row) in edges for row in range(start + 1, start + size))
            start += size


def test_small_files_share_a_portion_and_large_ones_do_not() -> None:
    assert split_rows([[2], [3], [4]], 5) == [[RowSpan(0, 0, 2), RowSpan(1, 0, 3)], [RowSpan(2, 0, 4)]]
    assert split_rows([[2], [7], [1]], 5) == [
        [RowSpan(0, 0, 2)],
        [RowSpan(1, 0, 3)],
        [RowSpan(1, 3, 7)],
        [RowSpan(2, 0, 1)],
    ]


@given(st.lists(st.integers(0, 9), max_size=6), st.data())
def test_overlaps_are_the_rows_of_the_groups(sizes: list[int], data: st.DataObject) -> None:
    total = sum(sizes)
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    places = [(group, row) for group, size in enumerate(sizes) for row in range(size)]
    found = [(group, row) for group, first, last in overlaps(sizes, start, stop) for row in range(first, last)]
    assert found == places[start:stop]
