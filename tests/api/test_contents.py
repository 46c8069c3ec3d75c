"""Figures of the columns that samples of a dataset carry."""

from __future__ import annotations

import pyarrow as pa
import pytest

from curate.api.contents import FEW_VALUES, MOST_VALUES, Values, _values


def values(items: list[str | None]) -> Values:
    return _values(pa.chunked_array([pa.array(items, pa.string())]), "column", "column")


@pytest.mark.parametrize("count", [0, 1, FEW_VALUES, FEW_VALUES + 1])
def test_values_that_never_repeat_are_listed_if_they_are_few(count: int) -> None:
    found = values([f"{number:02d}" for number in range(count)])
    assert found.distinct == count and len(found.top) == (count if count <= FEW_VALUES else 0)


def test_the_most_frequent_values_are_listed() -> None:
    found = values([*map(str, range(100, 140)), "b", "b", "b", "a", "a", None])
    assert found.top[:2] == (("b", 3), ("a", 2)) and len(found.top) == FEW_VALUES
    assert (found.distinct, found.missing) == (42, 1)


def test_all_values_of_a_label_are_listed() -> None:
    found = values([str(number) for number in range(MOST_VALUES) for _ in range(2)])
    assert len(found.top) == found.distinct == MOST_VALUES
