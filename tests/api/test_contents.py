"""Figures of the columns that samples of a dataset carry."""

from __future__ import annotations

import pyarrow as pa
import pytest

from curate.api.contents import MOST_VALUES, Values, _values


def values(items: list[str | None]) -> Values:
    return _values(pa.chunked_array([pa.array(items, pa.string())]), "column", "column")


@pytest.mark.parametrize("count", [0, 1, MOST_VALUES, MOST_VALUES + 1])
def test_values_that_never_repeat_are_listed_if_they_are_few(count: int) -> None:
    found = values([f"{number:02d}" for number in range(count)])
    assert found.distinct == count and len(found.top) == (count if count <= MOST_VALUES else 0)


def test_the_most_frequent_values_are_listed() -> None:
    found = values([*map(str, range(100, 140)), "b", "b", "b", "a", "a", None])
    assert found.top[:2] == (("b", 3), ("a", 2)) and len(found.top) == MOST_VALUES
    assert (found.distinct, found.missing) == (42, 1)
