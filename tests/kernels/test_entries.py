from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.errors import CurateError
from curate.core.items import places_of
from curate.kernels.entries import EntryIndex, entries_of, entries_of_lists, lists_of_entries

LISTS = pa.list_(pa.list_(pa.string()))
WORDS = st.none() | st.sampled_from(["a", "b", "c", "\u00e9", ""])
ITEM = st.none() | st.lists(WORDS, max_size=4)
ROW = st.tuples(*[st.none() | st.lists(ITEM, max_size=3)] * 2)


def matches(found, names) -> list[tuple[int, int, set[str]]]:
    words: list[set[str]] = [set() for _ in range(len(found))]
    for item, entry in zip(found.item.tolist(), found.entry.tolist(), strict=True):
        assert names[entry] not in words[item]
        words[item].add(names[entry])
    return list(zip(found.row.tolist(), found.place.tolist(), words, strict=True))


@given(st.lists(ROW, max_size=6))
def test_pairs_equal_the_lists(rows) -> None:
    table = pa.table({name: pa.array([row[i] for row in rows], LISTS) for i, name in enumerate("xy")})
    for columns in ("x", "y", "xy"):
        expected: dict[tuple[int, int], set[str]] = {}
        for number, row in enumerate(rows):
            for name in columns:
                for place, item in enumerate(row["xy".index(name)] or []):
                    if item is not None:
                        expected.setdefault((number, place), set()).update(word for word in item if word is not None)
        found = entries_of(table, columns)
        wanted = [(*place, words) for place, words in sorted(expected.items())]
        assert matches(found, found.names) == wanted
        assert found.matched.tolist() == [bool(words) for _, _, words in wanted]
        assert np.all(np.diff(found.item) >= 0)
        known = entries_of(table, columns, EntryIndex(["c", "a"]))
        again = entries_of_lists(pa.chunked_array([lists_of_entries(known, known.entry + 7)]))
        assert len(again) == len(known)
        assert (again.item.tolist(), again.entry.tolist()) == (known.item.tolist(), (known.entry + 7).tolist())
        numbered = {(i, {"c": 0, "a": 1}.get(word, 2)) for i, (_, _, words) in enumerate(wanted) for word in words}
        assert list(zip(known.item.tolist(), known.entry.tolist(), strict=True)) == sorted(numbered)


def test_slices_and_chunks_give_the_same_entries() -> None:
    column = pa.chunked_array([[[["a"], None]], [[["b", "a"]], None, []]], LISTS)
    whole = entries_of(pa.table({"x": column}), ["x"])
    assert matches(whole, whole.names) == [(0, 0, {"a"}), (1, 0, {"a", "b"})]
    part = entries_of(pa.table({"x": column}).slice(1, 2), ["x"])
    assert matches(part, part.names) == [(0, 0, {"a", "b"})]
    assert len(entries_of(pa.table({"x": column}).slice(0, 0), ["x"])) == 0


def test_texts_of_items_are_their_own_entries() -> None:
    field = pa.field("tags", pa.list_(pa.string()), metadata=places_of("tags"))
    rows = [["dog", "to run"], None, [], ["to run", None, "dog"]]
    found = entries_of(pa.table([pa.array(rows, field.type)], schema=pa.schema([field])), ["tags"])
    assert matches(found, found.names) == [(0, 0, {"dog"}), (0, 1, {"to run"}), (3, 0, {"to run"}), (3, 2, {"dog"})]


@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.string()), pa.list_(LISTS)])
def test_other_columns_are_reported(kind: pa.DataType) -> None:
    with pytest.raises(CurateError, match=r"column 'text' is .*; give a column of entries"):
        entries_of(pa.table({"text": pa.nulls(2, kind)}), ["text"])
