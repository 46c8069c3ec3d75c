from __future__ import annotations

import json
import math
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from curate.core.contracts import Filter
from curate.core.errors import CurateError, RecipeError
from curate.core.items import places_of
from curate.core.ledger import RESERVED, SET_ASIDE
from curate.core.nouns.masks import ABSENT, NO_ITEMS
from curate.core.recipe.pipeline import build_stage
from curate.core.recipe.registry import resolve
from curate.engine.passes.batches import KILLED
from curate.filter.where import Where

SIZES = "least(width, height) >= 256 and aspect < 3"
SENTENCES = "sentences"
ITEMS = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("width", pa.int32()),
        pa.field("sentences", pa.list_(pa.string()), metadata=places_of(SENTENCES)),
        pa.field("similarity", pa.list_(pa.float32()), metadata=places_of(SENTENCES)),
        pa.field("tags", pa.list_(pa.string()), metadata=places_of("tags")),
        pa.field("hashes", pa.list_(pa.int64())),
        pa.field("embedding", pa.binary(8)),
    ]
)


def where(sql: str, **parameters: Any) -> Where:
    return Where(keep=sql, **{"reason": "bad", **parameters})


def table(**columns: Any) -> pa.Table:
    rows = len(next(iter(columns.values())))
    return pa.table({"key": [f"{row:032x}" for row in range(rows)], **columns})


def reasons(stage: Where, rows: pa.Table) -> list[Any]:
    found = stage.keep(rows)
    assert isinstance(found, pa.Array) and len(found) == len(rows)
    assert found.type == (pa.list_(pa.string()) if stage.items else pa.string())
    return found.to_pylist()


def sizes(*rows: tuple[Any, ...]) -> pa.Table:
    return table(**dict(zip(("width", "height", "aspect"), map(list, zip(*rows, strict=True)), strict=True)))


@pytest.mark.parametrize("reason", sorted(RESERVED))
def test_reserved_words_are_not_reasons(reason: str) -> None:
    def fail(field: str, text: str) -> RecipeError:
        return RecipeError(f"{field}: {text}")

    with pytest.raises(
        RecipeError, match=f"^reason: .*'{reason}' is reserved for the engine; choose another reason, "
    ) as error:
        build_stage("filter.where", {"keep": "width > 3", "reason": reason}, fail)
    assert "\n" not in str(error.value)
    assert where(SIZES, reason=f"{reason}_too").reason == f"{reason}_too"


def test_every_word_of_the_engine_is_reserved() -> None:
    assert {ABSENT, NO_ITEMS, KILLED, SET_ASIDE, "not_selected", "tombstone", "no_data", "duplicate_key"} == RESERVED


def test_rows_by_fields_of_the_source() -> None:
    metas = [{"license": "cc0", "by": {"name": "ann"}}, {"license": "all rights"}, {"license": 4}, {}, None]
    rows = table(meta=pa.array([json.dumps(meta) for meta in metas[:-1]] + [None], pa.string()), width=[1] * 5)
    free = where("meta.license in ('cc0', 'cc-by') and width = 1", reason="licence")
    assert free.reads() == ("meta", "width")
    assert reasons(free, rows) == [None, "licence", "licence", "licence_null", "licence_null"]
    assert reasons(where("meta.license = '4'"), rows) == ["bad", "bad", None, "bad_null", "bad_null"]
    assert reasons(where("meta.by.name = 'ann'"), rows) == [None, *["bad_null"] * 4]
    free.check_columns(rows.schema)
    with pytest.raises(CurateError, match=r"the column 'meta\.license' is missing"):
        free.check_columns(pa.schema([pa.field("width", pa.int32())]))


def test_rows_by_an_expression() -> None:
    rows = sizes((300, 300, 1.0), (300, 255, 1.2), (900, 256, 3.5), (None, 300, 1.0), (10, 10, None))
    stage = where(SIZES, reason="too_small")
    assert reasons(stage, rows) == [None, "too_small", "too_small", "too_small_null", "too_small_null"]
    assert reasons(where(SIZES, keep_null=True), rows) == [None, "bad", "bad", None, None]
    assert reasons(stage, rows.slice(0, 1)) == [None]
    assert reasons(stage, rows.slice(0, 0)) == []


def test_a_null_that_the_expression_computes_counts_as_one() -> None:
    rows = table(text=["12", "x", None])
    assert reasons(where("cast(text as int) > 3"), rows) == [None, "bad_null", "bad_null"]
    assert reasons(where("cast(text as int) > 3", keep_null=True), rows) == [None, None, None]
    assert reasons(where("coalesce(cast(text as int), 0) > 3"), rows) == [None, "bad", "bad_null"]


def test_a_null_in_any_column_counts() -> None:
    rows = table(a=[1, None, None], b=[None, 1, None])
    for sql in ("a > 0 or b > 0", "a is null or b is null", "coalesce(a, b, 1) = 1"):
        assert reasons(where(sql), rows) == ["bad_null"] * 3


def test_nan_is_greater_than_every_number() -> None:
    rows = table(aspect=[1.0, math.nan, math.inf])
    assert reasons(where("aspect < 3"), rows) == [None, "bad", "bad"]
    assert reasons(where("aspect > 3"), rows) == ["bad", None, None]


def test_chunks_and_slices() -> None:
    rows = sizes(*((width, 300, 1.0) for width in (10, 300, None, 400)))
    whole = reasons(where(SIZES), rows)
    assert reasons(where(SIZES), pa.concat_tables([rows.slice(0, 1), rows.slice(1, 0), rows.slice(1)])) == whole
    assert reasons(where(SIZES), rows.slice(1, 2)) == whole[1:3]
    assert reasons(where(SIZES), rows.schema.empty_table()) == []


def test_lists_of_rows() -> None:
    rows = table(hashes=[[1, 2], [], None], size=[2, 0, 1])
    assert reasons(where("array_length(hashes) = size and not array_contains(hashes, 3)"), rows) == [
        None,
        None,
        "bad_null",
    ]


def test_the_key_is_a_column_too() -> None:
    stage = where("key like '%1' and width > 0")
    assert stage.reads() == ("width",)
    stage.check_columns(pa.schema([("width", pa.int32())]))
    assert reasons(stage, table(width=[1, 1])) == ["bad", None]
    judged = where("length(sentences) = 1 and key like '%0'", items=SENTENCES)
    judged.check_columns(ITEMS)
    assert reasons(judged, items([["a"], ["a"]])) == [[None], ["bad"]]


def items(sentences: list[Any], similarity: list[Any] | None = None, width: list[Any] | None = None) -> pa.Table:
    n = len(sentences)
    columns = {
        "key": [f"{row:032x}" for row in range(n)],
        "width": width or [1] * n,
        "sentences": sentences,
        "similarity": similarity or [None if row is None else [0.0] * len(row) for row in sentences],
        "tags": [None] * n,
        "hashes": [None] * n,
        "embedding": [None] * n,
    }
    return pa.table(columns, schema=ITEMS)


def test_items_of_rows() -> None:
    rows = items([["a", "bb", None], None, [], ["cc"]], [[0.1, 0.9, None], None, [], [0.8]], [1, 1, 1, 9])
    stage = where("similarity > 0.5 and width < 5", items=SENTENCES)
    assert stage.places() == SENTENCES
    assert stage.reads() == ("similarity", "width", "sentences")
    stage.check_columns(ITEMS)
    assert reasons(stage, rows) == [["bad", None, None], None, [], ["bad"]]
    assert reasons(stage, rows.slice(2)) == [[], ["bad"]]
    assert reasons(where("length(sentences) > 1", items=SENTENCES), rows) == [["bad", None, None], None, [], [None]]


def test_an_item_without_a_value_is_null_and_a_missing_item_is_not() -> None:
    rows = items([["a", None, "c"], ["d", "e"]], [[None, None, 0.9], None], [1, None])
    stage = where("similarity > 0.5", items=SENTENCES)
    assert reasons(stage, rows) == [["bad_null", None, None], ["bad_null", "bad_null"]]
    kept = where("similarity > 0.5", items=SENTENCES, keep_null=True)
    assert reasons(kept, rows) == [[None, None, None], [None, None]]
    of_row = where("similarity > 0.5 and width = 1", items=SENTENCES)
    assert reasons(of_row, rows) == [["bad_null", None, None], ["bad_null", "bad_null"]]


def test_a_list_that_does_not_follow_the_places_is_named() -> None:
    rows = items([["a"], ["b", "c"]], [[0.1], [0.2]])
    with pytest.raises(CurateError, match="items: row 1 has 1 values of 'similarity' and 2 of 'sentences', expected"):
        where("similarity > 0.5", items=SENTENCES).keep(rows)


def test_columns_about_a_plain_text_have_one_item_a_row() -> None:
    concepts = pa.field("concepts", pa.list_(pa.list_(pa.string())), metadata=places_of("text"))
    schema = pa.schema([pa.field("text", pa.string()), concepts])
    rows = pa.table([["a cat", "of", None], [[["cat.n.01"]], [[]], [None]]], schema=schema)
    with pytest.raises(CurateError, match="set `items: concepts` to judge items"):
        where("array_length(concepts) > 0").check_columns(schema)
    stage = where("array_length(concepts) > 0 and length(text) > 1", items="concepts")
    stage.check_columns(schema)
    assert reasons(stage, rows) == [[None], ["bad"], [None]]


def columns(**kinds: pa.DataType) -> pa.Schema:
    return pa.schema(list(kinds.items()))


@pytest.mark.parametrize(
    ("sql", "judged", "schema", "message"),
    [
        ("widht > 3", None, ITEMS, "keep: the column 'widht' is missing; did you mean 'width'?"),
        ("q > 3", None, columns(a=pa.int8()), "keep: the column 'q' is missing; the columns are key, a"),
        ("width = 'x'", None, ITEMS, "keep: cannot compare string with numeric type (i32) (width: Int32); use"),
        ("width", None, ITEMS, "keep: the result is Int32, not true or false; compare it with a value: … > 0"),
        ("embedding is null", None, ITEMS, "keep: 'embedding' holds fixed_size_binary[8], a vector; name a column of"),
        ("similarity > 0.5", None, ITEMS, "keep: 'similarity' has a value per item; set `items: sentences` to judge"),
        ("similarity > 0.5", "sentence", ITEMS, "items: the column 'sentence' is missing; did you mean 'sentences'?"),
        ("similarity > 0.5", "width", ITEMS, "items: 'width' has a value per row; name a column such as sentences"),
        ("width > 5", "sentences", ITEMS, "items: the expression names no column with a value per item; leave `items`"),
        ("similarity > 0.5", "tags", ITEMS, "keep: 'similarity' describes items of 'sentences', and 'tags' of 'tags'"),
        ("length(similarity) > 5", "sentences", ITEMS, "keep: invalid series dtype: expected `String`, got `f32`"),
    ],
)
def test_expressions_that_do_not_fit_the_columns(sql: str, judged: str | None, schema: pa.Schema, message: str) -> None:
    with pytest.raises(CurateError) as caught:
        where(sql, items=judged).check_columns(schema)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


@pytest.mark.parametrize("sql", ["width > 5", "array_length(hashes) > 1", "key = 'x'"])
def test_expressions_that_fit_the_columns(sql: str) -> None:
    where(sql).check_columns(ITEMS)


def test_a_type_that_is_not_known_yet_fits() -> None:
    where("length(a) > b").check_columns(columns(a=pa.null(), b=pa.int32()))
    unknown = pa.schema([ITEMS.field("sentences"), pa.field("score", pa.null(), metadata=places_of(SENTENCES))])
    where("score > 1", items=SENTENCES).check_columns(unknown)


def test_types_are_checked_when_rows_arrive_too() -> None:
    with pytest.raises(CurateError, match="keep: cannot compare string with numeric type"):
        where("width > 5").keep(table(width=["a"]))


def test_the_parameter_and_the_method_are_both_called_keep() -> None:
    stage = where(SIZES, reason="too_small")
    assert resolve("filter.where") is Where and isinstance(stage, Filter)
    assert stage.parameters() == {"keep": SIZES, "reason": "too_small", "keep_null": False, "items": None}
    assert "keep=" in repr(stage) and set(Where.model_json_schema()["required"]) == {"keep", "reason"}
    copy = pickle.loads(pickle.dumps(stage))
    assert copy == stage and copy != where("width > 3", reason="too_small")
    assert reasons(copy, sizes((300, 300, 1.0))) == [None]
    assert reasons(stage.model_copy(update={"keep": "width > 300"}), sizes((300, 300, 1.0))) == ["too_small"]
    assert all(info.description for info in Where.model_fields.values())


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"keep": "max(x) > 3", "reason": "a"}, "keep: 'max(x) > 3': function 'max' is not allowed; did you mean"),
        ({"keep": "x >", "reason": "a"}, "keep: 'x >': not an SQL expression: it cannot be parsed; write one such as"),
        ({"keep": 3, "reason": "a"}, "keep: 3: input should be a valid string"),
        ({"reason": "a"}, "keep: missing"),
        ({"keep": "x > 3"}, "reason: missing"),
        ({"keep": "x > 3", "reason": "Too small"}, "reason: 'Too small': string should match pattern"),
        (
            {"keep": "x > 3", "reason": "a", "keep_nul": True},
            "keep_nul: unknown parameter of filter.where; did you mean",
        ),
    ],
)
def test_errors_of_a_recipe_name_their_place(parameters: dict[str, Any], message: str) -> None:
    def fail(field: str, text: str) -> RecipeError:
        return RecipeError(f"{field}: {text}")

    with pytest.raises(RecipeError) as caught:
        build_stage("filter.where", parameters, fail)
    assert str(caught.value).startswith(message)


def test_an_expression_is_checked_when_the_stage_is_made() -> None:
    with pytest.raises(ValidationError, match="a subquery"):
        where("x in (select y from self)")


ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-5, 5),
        st.none() | st.lists(st.none() | st.sampled_from([0.0, 0.5, 1.0, math.nan]), max_size=3),
    ),
    min_size=1,
    max_size=10,
)


@given(ROWS, st.sampled_from(["similarity > 0.5", "similarity * width > 0", "width > 0 or similarity = 0"]))
def test_items_do_not_depend_on_the_rows_next_to_them(rows: list[tuple[Any, Any]], sql: str) -> None:
    sentences = [None if row is None else ["s"] * len(row) for _, row in rows]
    whole = items(sentences, [row for _, row in rows], [width for width, _ in rows])
    for stage in (where(sql, items=SENTENCES), where(sql, items=SENTENCES, keep_null=True)):
        found = reasons(stage, whole)
        assert found == [reasons(stage, whole.slice(row, 1))[0] for row in range(len(rows))]
        assert [row if row is None else len(row) for row in found] == [
            row if row is None else len(row) for _, row in rows
        ]
