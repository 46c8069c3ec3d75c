"""Recipe files: lines of keys, overrides by place, and the innermost problem of a validation."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from curate.core.errors import RecipeError
from curate.core.recipe.document import Document, first_problem, message, parse_override

TEXT = """\
name: x
data:
  sources:
    - dataset: a
    - {dataset: b, sizes: {256: 0.5}}
"""


def test_the_line_of_a_place_or_of_its_innermost_parent() -> None:
    document = Document.parse(TEXT, "r.yaml")
    assert document.line(("data", "sources", 1, "sizes", 256)) == "r.yaml:5"
    assert document.line(("data", "sources", 0, "wait")) == "r.yaml:4"
    assert document.line(("missing",), ("data", "missing")) == "r.yaml:2"
    assert document.line(("missing",)) == document.line(()) == "r.yaml"


def test_numbers_in_scientific_notation() -> None:
    document = Document.parse("a: 1e3\nb: -2.5E-1\nc: 1.e2\nd: e3\ne: '1e3'", "r.yaml")
    assert document.values == {"a": 1000.0, "b": -0.25, "c": 100.0, "d": "e3", "e": "1e3"}


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("name=y", {"name": "y"}),
        ("data.sources.0.dataset=[1, 2]", {"data": {"sources": [{"dataset": [1, 2]}]}}),
        ("data.more.deep=1e1", {"data": {"sources": [{"dataset": "a"}], "more": {"deep": 10.0}}}),
    ],
)
def test_overrides(override: str, expected: dict[str, Any]) -> None:
    values = {"name": "x", "data": {"sources": [{"dataset": "a"}]}}
    document = Document(values, "r.yaml")
    name, _, value = parse_override(override)
    document.override(name, name.split("."), value)
    assert document.values == values | expected


def test_a_merge_key_may_occur_twice() -> None:
    text = "a: &a {x: 1}\nb: &b {y: 2}\nc:\n  <<: *a\n  <<: *b\n"
    assert Document.parse(text, "r.yaml").values["c"] == {"x": 1, "y": 2}
    with pytest.raises(RecipeError, match=r"r\.yaml:2: x is set twice \(first in line 1\)"):
        Document.parse("x: 1\nx: 2", "r.yaml")


class Inner(BaseModel):
    size: int


class Outer(BaseModel):
    part: int | Inner
    pair: tuple[int, int] = (0, 0)


@pytest.mark.parametrize(
    ("values", "place", "text"),
    [
        ({"part": {"size": "big"}}, ("part", "size"), "input should be a valid integer"),
        ({"part": {}}, ("part", "size"), "field required"),
        ({}, ("part",), "field required"),
        ({"part": 1, "pair": [1, "x"]}, ("pair", 1), "input should be a valid integer"),
    ],
)
def test_the_innermost_problem(values: dict[str, Any], place: tuple[int | str, ...], text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(values)
    found, problem = first_problem(caught.value, values)
    assert found == place and message(problem).startswith(text)
