from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.errors import CurateError
from curate.kernels.meta import as_text, column_of, field_at, field_of, texts_of


def test_a_name_comes_before_a_path() -> None:
    fields = {"a.b": 1, "a": {"b": 2, "c": {"d": None}}, "e": "text"}
    assert [field_at(fields, path) for path in ("a.b", "a.c", "e")] == [1, {"d": None}, "text"]


def test_a_missing_field_gives_none() -> None:
    assert [field_at({"a": {"b": 1}, "e": "text"}, path) for path in ("x", "a.x", "a.b.c", "e.f", "")] == [None] * 5


TEXTS = st.text(alphabet='a"\\{}:,[] é\n', max_size=12)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | TEXTS | st.just('"license":"x"'),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["license", "a"]), inner, max_size=2),
    max_leaves=4,
)
METAS = st.lists(
    st.none() | st.dictionaries(st.sampled_from(["license", "a", "other"]), VALUES, max_size=3), max_size=8
)


@given(METAS, st.booleans(), st.booleans())
def test_a_column_has_the_field_of_each_row(metas: list[Any], spaces: bool, ascii: bool) -> None:
    style: dict[str, Any] = {} if spaces else {"separators": (",", ":")}
    texts = [None if meta is None else json.dumps(meta, ensure_ascii=ascii, sort_keys=True, **style) for meta in metas]
    for name in ("meta.license", "meta.a.license"):
        wanted = [field_of(text, name) for text in texts]
        found = column_of(pa.chunked_array([texts], pa.string()), name)
        values = [as_text(value) if value is None or isinstance(value, str) else value for value in wanted]
        assert [
            text if text is None or isinstance(value, str) else json.loads(text)
            for text, value in zip(found.to_pylist(), wanted, strict=True)
        ] == values


def test_labels_of_a_column_of_vectors_are_one_line() -> None:
    table = pa.table({"embedding": pa.array([b"1234", b"5678"], pa.binary(4))})
    with pytest.raises(CurateError, match=r"embedding: column 'embedding' holds fixed_size_binary\[4\]; give a column"):
        texts_of(table, "embedding")
