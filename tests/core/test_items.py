import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.errors import CurateError
from curate.core.items import PER_ITEM, element, items_of, per_item

ROWS = st.lists(st.none() | st.lists(st.none() | st.text(max_size=3), max_size=4), max_size=8)


@given(ROWS)
def test_nest_undoes_items_of(rows):
    column = pa.array(rows, pa.list_(pa.string()))
    items = items_of(column)
    assert items.nest(items.values, pa.string()).to_pylist() == rows
    assert [rows[row][place] for row, place in zip(items.row, items.place, strict=True)] == items.values.to_pylist()


@given(ROWS, st.integers(0, 8))
def test_slices_and_chunks_are_the_same_items(rows, cut):
    kind = pa.list_(pa.string())
    whole, apart = pa.array(rows, kind), pa.chunked_array([pa.array(rows[:cut], kind), pa.array(rows[cut:], kind)])
    a, b = items_of(whole.slice(min(cut, len(rows)))), items_of(pa.array(rows[cut:], kind))
    assert a.values.equals(b.values) and np.array_equal(a.lengths, b.lengths) and np.array_equal(a.row, b.row)
    assert items_of(apart).values.equals(items_of(whole).values)


def test_a_plain_text_is_one_item():
    items = items_of(pa.chunked_array([["a", None, "b"]]))
    assert items.row.tolist() == [0, 2] and items.place.tolist() == [0, 0]
    assert items.nest([1, 2], pa.int32()).to_pylist() == [[1], None, [2]]


def test_no_rows():
    for kind in (pa.string(), pa.list_(pa.string())):
        items = items_of(pa.chunked_array([], kind))
        assert len(items) == 0 and items.nest([], pa.string()).to_pylist() == []


def test_other_columns_are_rejected():
    with pytest.raises(CurateError, match="'facts' is struct"):
        items_of(pa.array([{"a": 1}]), "facts")


def test_an_items_element():
    assert element(["a", None], "0") == "a" and element(["a", None], "1") is None
    assert element(["a"], "1") is None and element(None, "0") is None and element(["a"], "x") is None
    assert per_item(pa.field("a", pa.list_(pa.string()), metadata=PER_ITEM)) and not per_item(pa.field("a", pa.int8()))
