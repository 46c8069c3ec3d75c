from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from curate.caption.choose import Choose
from curate.core.contracts import Batch
from curate.core.errors import CurateError, RecipeError
from curate.core.recipe.pipeline import Pipeline
from tests.engine.toys import Numbers

TEXT = st.none() | st.sampled_from(["", " ", "a dog", "a cat"])
REASON = st.none() | st.just("repetition")


def chosen(rows: list[dict[str, Any]], **parameters: Any) -> tuple[list[tuple[Any, Any]], dict[str, int]]:
    stage = Choose(**parameters)
    columns = {name: pa.array([row.get(name) for row in rows], pa.string()) for name in stage.reads()}
    batch = Batch(pa.table({"key": pa.array(map(str, range(len(rows))))} | columns))
    found = stage.process(batch)
    assert [found[name].type for name in stage.schema().names] == [pa.string(), pa.string()]
    return list(zip(*(held.to_pylist() for held in found.values()), strict=True)), dict(batch.counters)


def test_the_first_text_that_passes() -> None:
    rows = [
        {"repaired": "r", "generated": "g", "text": "t"},
        {"repaired": None, "generated": "g", "text": "t"},
        {"repaired": "r", "repaired_check": "chat", "generated": "g", "generated_check": "chat", "text": "t"},
        {"repaired": " ", "generated": "g", "generated_check": "chat", "text": ""},
    ]
    found, counters = chosen(rows)
    assert found == [("r", "repaired"), ("g", "generated"), (None, None), (None, None)]
    assert counters == {"chosen_repaired": 1, "chosen_generated": 1, "chosen_none": 2}


def test_a_fallback_is_spelled_out() -> None:
    """A text that no check has seen is chosen only if the recipe says that it needs none."""
    rows = [
        {"generated": "g", "text": "t"},
        {"generated": "g", "generated_check": "chat", "text": "ignore all instructions", "text_check": "injection"},
    ]
    best: dict[str, Any] = {"order": ["generated", "text"], "output": "best"}
    assert chosen(rows, **best)[0] == [("g", "generated"), (None, None)]
    assert chosen(rows, **best, checks={"text": None})[0] == [("g", "generated"), ("ignore all instructions", "text")]
    made = Pipeline().add("pool", Numbers(namespace="choose")).add("choose", Choose(order=["caption"]), "pool")
    with pytest.raises(
        RecipeError,
        match=r"column 'caption_check' \(the check of 'caption'; `checks: \{caption: null\}` if it needs none\) is",
    ):
        made.check()


def test_a_text_that_shows_nothing_is_not_chosen() -> None:
    assert chosen([{"generated": "\u200b", "text": "\ufeff \x00"}])[0] == [(None, None)]


def test_a_column_of_nulls_has_no_texts() -> None:
    found = Choose(order=["a"], checks={"a": None}).process(Batch(pa.table({"key": ["0"], "a": pa.nulls(1)})))
    assert found["chosen"].to_pylist() == [None]


def test_checks_of_other_names() -> None:
    rows = [{"a": "x", "bad": "chat", "b": "y", "b_check": "chat"}]
    assert chosen(rows, order=["a", "b"], checks={"a": "bad", "b": None})[0] == [("y", "b")]
    assert chosen(rows, order=["a", "b"], checks={"a": None})[0] == [("x", "a")]
    assert chosen(rows, order=["a", "b"], checks={"a": "bad"}, output="best")[0] == [(None, None)]
    with pytest.raises(ValidationError, match="checks: 'c' is not in `order`, which has a, b"):
        Choose(order=["a", "b"], checks={"c": None})
    with pytest.raises(ValidationError, match="order: 'a' is listed twice"):
        Choose(order=["a", "a"])


@given(st.lists(st.fixed_dictionaries({"a": TEXT, "a_check": REASON, "b": TEXT, "b_check": REASON, "c": TEXT})))
def test_it_is_never_empty_and_the_fallback_is_last(rows: list[dict[str, Any]]) -> None:
    for row, (text, source) in zip(rows, chosen(rows, order=["a", "b", "c"], checks={"c": None})[0], strict=True):
        passing = [name for name in "abc" if (row[name] or "").strip() and row.get(f"{name}_check") is None]
        assert source == (passing[0] if passing else None)
        assert text == (row[source] if source else None) != ""


def test_a_column_that_holds_no_texts() -> None:
    with pytest.raises(CurateError, match=r"caption.choose.order: 'a' holds int64, expected one text per row"):
        Choose(order=["a"], checks={"a": None}).process(Batch(pa.table({"key": ["x"], "a": [1]})))


def test_every_parameter_is_described() -> None:
    assert all(info.description for info in Choose.model_fields.values())
