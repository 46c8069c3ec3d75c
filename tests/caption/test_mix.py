from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from curate.caption.checks.words import is_blank
from curate.caption.mix import Mix
from curate.core.contracts import Batch
from curate.core.errors import CurateError

KINDS = {"original": "caption", "short": "chosen", "tags": "hashtags"}


def mix(columns: dict[str, Any], **parameters: Any) -> list[dict[str, str | None] | None]:
    rows = len(next(iter(columns.values())))
    stage = Mix(**{"texts": KINDS, **parameters})
    table = pa.table({"key": [f"{row:032x}" for row in range(rows)], **columns})
    [(name, values)] = stage.process(Batch(table)).items()
    assert stage.schema().names == [name]
    return pa.array(values, stage.schema().field(name).type).to_pylist()


def test_texts_stand_side_by_side_and_lists_are_joined() -> None:
    columns = {
        "caption": ["IMG_1.JPG", " a cat ", None, ""],
        "chosen": pa.array(["A cat sleeps.", "a cat", None, " "], pa.large_string()),
        "hashtags": [["cat", "sleeping cat"], [None, ""], [], None],
    }
    assert mix(columns) == [
        {"original": "IMG_1.JPG", "short": "A cat sleeps.", "tags": "cat, sleeping cat"},
        {"original": "a cat", "short": "a cat", "tags": None},
        None,
        None,
    ]
    blank = {"caption": ["\u200b"], "chosen": ["a"], "hashtags": [["\ufeff"]]}
    assert mix(blank) == [{"original": None, "short": "a", "tags": None}]
    assert mix(columns, separator=" #", output="sides")[0]["tags"] == "cat #sleeping cat"


def test_a_column_may_have_two_kinds_and_is_read_once() -> None:
    stage = Mix(texts={"a": "caption", "b": "caption"})
    assert stage.reads() == ("caption",)
    assert mix({"caption": ["x"]}, texts=stage.texts) == [{"a": "x", "b": "x"}]


@given(st.lists(st.tuples(st.none() | st.text(max_size=3), st.none() | st.lists(st.none() | st.text(max_size=3)))))
def test_a_row_never_has_an_empty_text(rows: list[tuple[str | None, list[str | None] | None]]) -> None:
    texts, lists = [row[0] for row in rows], [row[1] for row in rows]
    columns = {"caption": pa.array(texts, pa.string()), "tags": pa.array(lists, pa.list_(pa.string()))}
    found = mix(columns, texts={"plain": "caption", "tags": "tags"})
    for (text, items), row in zip(rows, found, strict=True):
        told = [item.strip() for item in items or () if item and not is_blank(item)]
        plain = None if text is None or is_blank(text) else text.strip()
        expected = {"plain": plain, "tags": ", ".join(told) or None}
        assert row == (expected if any(expected.values()) else None)


@pytest.mark.parametrize("kind", ["txt", "json", "a.b", "", "2nd", "a b"])
def test_kinds_are_names_that_no_member_of_the_tar_has(kind: str) -> None:
    with pytest.raises(ValidationError, match=r"is not a kind of text; expected letters, digits"):
        Mix(texts={kind: "caption"})
    with pytest.raises(ValidationError, match="at least 1"):
        Mix(texts={})


@pytest.mark.parametrize("column", [[1], [[1]], [{"a": "b"}]])
def test_other_columns_are_errors_that_name_the_column(column: list[Any]) -> None:
    with pytest.raises(
        CurateError, match=r"^caption\.mix\.texts: 'caption' holds .*, expected a text or a list of texts"
    ):
        mix({"caption": column}, texts={"a": "caption"})


def test_every_parameter_is_described() -> None:
    assert all(info.description for info in Mix.model_fields.values())
