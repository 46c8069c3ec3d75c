from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.errors import CurateError
from curate.text.filter import TextFilter

LISTS = pa.list_(pa.string())
TEXT = (
    st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=9) | st.sampled_from(["a b c", " a\u3000b "])
)


def reasons(texts: list[Any], kind: pa.DataType = pa.string(), **parameters: Any) -> list[Any]:  # noqa: B008
    stage = TextFilter(column="said", **parameters)
    assert (stage.reads(), stage.places()) == (("said",), "said" if stage.items else None)
    found = stage.keep(pa.table({"said": pa.array(texts, kind)}))
    assert found.type == (LISTS if stage.items else pa.string())
    return found.to_pylist()


def test_reasons_of_rows() -> None:
    texts = ["cat", None, "tiger", "lioness", ""]
    assert reasons(texts) == [None, "missing_caption", None, None, "caption_too_short"]
    assert reasons(texts, missing="keep", min_chars=0) == [None] * 5
    assert reasons(texts, min_chars=4, max_chars=6)[::2] == ["caption_too_short", None, "caption_too_short"]
    assert reasons(texts, min_chars=4, max_chars=6)[3] == "caption_too_long"
    assert reasons(["a cat", " a black  cat\n"], min_words=3) == ["caption_too_few_words", None]
    assert reasons([" "], min_words=1) == ["caption_too_few_words"]


def test_items_are_judged_each_in_its_place() -> None:
    texts = [["a cat", None, "dog"], [], None, [None], ["x y"]]
    wanted = [[None, "missing_caption", "caption_too_few_words"], [], None, ["missing_caption"], [None]]
    assert reasons(texts, LISTS, items=True, min_words=2) == wanted
    assert reasons(texts, LISTS, items=True, missing="keep")[0] == [None, None, None]
    assert reasons([], LISTS, items=True) == [] == reasons([])


def simply(text: str | None, fewest: int, shortest: int, longest: int) -> str | None:
    if text is None:
        return "missing_caption"
    if len(text) < shortest:
        return "caption_too_short"
    return (
        "caption_too_long" if len(text) > longest else "caption_too_few_words" if len(text.split()) < fewest else None
    )


@given(st.lists(TEXT), st.integers(0, 3), st.integers(0, 4), st.integers(4, 8))
def test_it_equals_a_loop(texts: list[str | None], fewest: int, shortest: int, longest: int) -> None:
    limits = {"min_words": fewest, "min_chars": shortest, "max_chars": longest}
    wanted = [simply(text, fewest, shortest, longest) for text in texts]
    assert reasons(texts, **limits) == wanted
    assert reasons([None, texts, []], LISTS, items=True, **limits) == [None, wanted, []]


def test_slices_and_chunks() -> None:
    whole = pa.chunked_array([pa.array([["a"], None, ["", "b"]], LISTS), pa.array([[None], ["c"]], LISTS)])
    stage = TextFilter(column="said", items=True)
    expected = stage.keep(pa.table({"said": whole})).to_pylist()
    assert stage.keep(pa.table({"said": whole.slice(1, 3)})).to_pylist() == expected[1:4]
    assert stage.keep(pa.table({"said": pa.chunked_array([], LISTS)})).to_pylist() == []


def test_rows_or_items_must_be_chosen() -> None:
    with pytest.raises(CurateError, match=r"text.filter.items: 'said' is list<.*>, a list per row; set `items: true"):
        reasons([["a"]], LISTS)
    with pytest.raises(CurateError, match=r"text.filter.items: 'said' is string, one value per row; leave `items` out"):
        reasons(["a"], items=True)
    with pytest.raises(CurateError, match=r"text.filter.column: 'said' holds int64"):
        reasons([1], pa.int64())


def test_every_parameter_is_described() -> None:
    assert all(info.description for info in TextFilter.model_fields.values())
