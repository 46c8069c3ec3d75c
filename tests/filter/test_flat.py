from __future__ import annotations

import pyarrow as pa
import pytest

from curate.core.errors import CurateError
from curate.core.items import places_of
from curate.filter.flat import flattened

TEXTS = pa.field("texts", pa.list_(pa.string()), metadata=places_of("texts"))
SCORES = pa.field("scores", pa.large_list(pa.float32()), metadata=places_of("texts"))


def rows(texts: list, scores: list, number: list) -> pa.Table:
    return pa.table([texts, scores, number], schema=pa.schema([TEXTS, SCORES, pa.field("number", pa.int8())]))


def test_values_of_rows_repeat_for_each_item() -> None:
    table = rows([["a", None], None, [], ["b"]], [[1, None], None, [], [None]], [1, 2, 3, 4])
    flat = flattened(table, ["texts", "scores", "number"], "texts")
    assert flat.table.to_pydict() == {"texts": ["a", None, "b"], "scores": [1, None, None], "number": [1, 1, 4]}
    assert flat.exists.tolist() == [True, False, True]
    assert flat.nested(pa.array([1, 2, 3])).to_pylist() == [[1, 2], None, [], [3]]


def test_a_slice_of_chunks() -> None:
    table = pa.concat_tables([rows([["a"], ["b", "c"]], [[1], [2, 3]], [1, 2]), rows([["d"]], [[4]], [3])]).slice(1)
    flat = flattened(table, ["scores", "number"], "texts")
    assert flat.table.to_pydict() == {"scores": [2, 3, 4], "number": [2, 2, 3]}
    assert flat.nested(pa.array(["x", "y", "z"])).to_pylist() == [["x", "y"], ["z"]]
    assert flattened(table.slice(0, 0), ["scores"], "texts").nested(pa.array([], pa.string())).to_pylist() == []


def test_a_row_without_a_list_has_nulls() -> None:
    flat = flattened(rows([["a", "b"], ["c"], None], [None, [3], None], [1, 2, 3]), ["scores"], "texts")
    assert flat.table.to_pydict() == {"scores": [None, None, 3]}
    assert flat.exists.tolist() == [False, False, True]


@pytest.mark.parametrize("scores", [[[1], [2]], [[1, 2, 3], [2, 3]], [[1, 2], []]])
def test_lists_of_another_length_are_an_error(scores: list) -> None:
    with pytest.raises(
        CurateError, match=r"items: row \d has \d values of 'scores' and 2 of 'texts', expected equal numbers"
    ):
        flattened(rows([["a", "b"], ["c", "d"]], scores, [1, 2]), ["scores"], "texts")
