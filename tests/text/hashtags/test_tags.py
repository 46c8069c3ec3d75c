from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from curate.core.contracts import Batch
from curate.text.hashtags.tags import Tags, tags_of_text, tags_of_value, without_tags


def ran(captions: list[str | None], metas: list[Any], **parameters: Any) -> tuple[list[list[str]], dict[str, int]]:
    texts = [meta if meta is None or isinstance(meta, str) else json.dumps(meta) for meta in metas]
    stage = Tags(**parameters)
    columns = {"caption": pa.array(captions, pa.string()), "meta": pa.array(texts, pa.string())}
    batch = Batch(pa.table({name: column for name, column in columns.items() if name in stage.reads()}))
    found = stage.process(batch)["tags"]
    assert found.type == stage.schema().field("tags").type
    return found.to_pylist(), dict(batch.counters)


def test_tags_of_captions_and_fields() -> None:
    captions = ["my #Dog, #dog and #Dog", None, "no tag", "#a_b #日本"]
    tags, counters = ran(captions, [{"keywords": ["cat", "Dog"]}, {"keywords": "x, y; #z"}, None, {}])
    assert tags == [["Dog", "dog", "cat"], ["x", "y", "z"], [], ["a_b", "日本"]]
    assert counters == {"tags": 8, "rows_without_tags": 1}


def test_dropped_tags_are_counted() -> None:
    tags, counters = ran(["#1 #" + "a" * 300], [{"keywords": ["❤", "!!", "", " ok "]}], longest=100)
    assert tags == [["ok"]]
    assert counters == {"tags": 1, "tags_without_letters": 3, "tags_too_long": 1}
    many = [{"keywords": [f"t{i}x" for i in range(9)] + ["t0x"]}]
    assert ran([None], many, most=5) == ([["t0x", "t1x", "t2x", "t3x", "t4x"]], {"tags": 5, "tags_too_many": 4})


@pytest.mark.parametrize(
    "meta", [None, "no json", "[1]", '{"keywords": 7}', '{"keywords": [null, 7, {"a": "b"}]}', "{}"]
)
def test_fields_that_hold_no_tags(meta: str | None) -> None:
    assert ran([None], [meta]) == ([[]], {"rows_without_tags": 1})


def test_fields_within_fields_and_columns() -> None:
    metas = [{"a": {"b": ["x"]}, "a.c": "y"}]
    assert ran([None], metas, fields=["meta.a.b", "meta.a.c"], caption=None)[0] == [["x", "y"]]
    stage = Tags(fields=["labels"], caption=None)
    assert stage.reads() == ("labels",)
    table = pa.table({"labels": pa.array([["a", None], None], pa.list_(pa.string()))})
    assert stage.process(Batch(table))["tags"].to_pylist() == [["a"], []]
    with pytest.raises(ValidationError, match="a field has no name"):
        Tags(fields=["meta."])


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("C# and F#, issue#7, &#39; page/#top", []),
        ("#dog#cat (#bird) #golden-retriever.", ["dog", "cat", "bird", "golden-retriever"]),
        ("#नमस्ते ＃猫 #été #don't", ["नमस्ते", "猫", "été", "don"]),
        ("## # #- #", []),
    ],
)
def test_tags_of_a_text(text: str, tags: list[str]) -> None:
    assert tags_of_text(text) == tags


def test_texts_without_their_tags() -> None:
    assert without_tags("a #dog, C# and #a#b").split() == ["a", ",", "C#", "and"]


@given(st.text() | st.recursive(st.none() | st.text(), st.lists))
def test_anything_may_be_in_a_field(value: Any) -> None:
    """Every tag is a string that Arrow can store."""
    tags = list(tags_of_value(value))
    assert pa.array(tags, pa.string()).to_pylist() == tags
    if isinstance(value, str):
        tags_of_text(value)


def test_surrogates_in_a_field() -> None:
    assert ran([None], ['{"keywords": ["a\\ud800b\\u0000"]}'])[0] == [["a b"]]


@pytest.mark.timeout(60)  # linear work takes a fraction of a second, quadratic work hours
@pytest.mark.parametrize("unit", ["#", "#a", "#a-", "-", "##a", "#a#", "a#", "&#"])
def test_a_megabyte_is_linear(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    assert sum(map(len, tags_of_text(text))) <= len(text)


def test_every_parameter_is_described() -> None:
    assert all(info.description for info in Tags.model_fields.values())
