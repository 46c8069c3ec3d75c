"""Recipe files: lines of keys, overrides by place, and the innermost problem of a validation."""

from __future__ import annotations

from typing import Any, Literal

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


def test_a_name_is_any_text_unless_the_value_may_be_secret() -> None:
    assert parse_override("names.timm:vit b/32=a:b", secret=False) == ("names.timm:vit b/32", "a:b", "a:b")
    for override in ("names.timm:vit=a:b", "names=[s3cret", "s3cret", "s3cret/x=a"):
        with pytest.raises(RecipeError) as caught:
            parse_override(override)
        assert "s3cret" not in str(caught.value) and "timm" not in str(caught.value)
    for override, problem in (
        ("train.steps", "expected name=value"),
        ("a=[\n1", "the value is not YAML"),
        ("=1", "exp"),
    ):
        with pytest.raises(RecipeError) as caught:
            parse_override(override, secret=False)
        assert str(caught.value).startswith(f"--set {' '.join(override.split())}: {problem}")
        assert "\n" not in str(caught.value)


def test_a_merge_key_may_occur_twice() -> None:
    text = "a: &a {x: 1}\nb: &b {y: 2}\nc:\n  <<: *a\n  <<: *b\n"
    assert Document.parse(text, "r.yaml").values["c"] == {"x": 1, "y": 2}
    with pytest.raises(RecipeError, match=r"r\.yaml:2: x is set twice \(first in line 1\)"):
        Document.parse("x: 1\nx: 2", "r.yaml")


def nested_aliases(first: str, form: str) -> str:
    """Anchors of which each repeats the one before 9 times."""
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{i}: &a{i} {form % ', '.join([f'*a{i - 1}'] * 9)}" for i in range(1, 12)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: &b [1, [*b]]", "r.yaml:2: the value contains an alias of itself"),
        ("a: &a\n  b: *a", "r.yaml:1: the value contains an alias of itself"),
        ("a: &a\n  <<: *a", "r.yaml:1: the value contains an alias of itself"),
        (nested_aliases("[1]", "[%s]"), "r.yaml: aliases repeat more than 10000 values"),
        (nested_aliases("{x: 1}", "{<<: [%s]}"), "r.yaml: aliases repeat more than 10000 values"),
        ("a: 1\nb: " + "[" * 41 + "]" * 41, "r.yaml:2: nested more than 40 levels deep"),
        ("[" * 100_000, "r.yaml: not YAML (nested too deeply)"),
        ("? [a, b]\n: 1", "r.yaml:1: not YAML (found unhashable key)"),
        ("? &k [*k]\n: 1", "r.yaml:1: not YAML (found unhashable key)"),
    ],
)
@pytest.mark.timeout(60)
def test_cycles_and_expansions_are_one_line_errors(text: str, problem: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Document.parse(text, "r.yaml")
    assert str(caught.value).startswith(f"{problem}; ")


def test_aliases_repeat_values_and_lines() -> None:
    document = Document.parse("a: &a [1, 2]\nb: *a\nc: [*a, *a]\nd: " + "[" * 40 + "]" * 40, "r.yaml")
    assert (document.values["b"], document.values["c"]) == ([1, 2], [[1, 2], [1, 2]])
    assert document.line(("c", 1, 0)) == "r.yaml:1"


def test_a_value_of_set_may_not_contain_itself() -> None:
    with pytest.raises(RecipeError, match=r"--set x:1: the value contains an alias of itself"):
        parse_override("x=&secret [*secret]")


class Inner(BaseModel):
    size: int


class Outer(BaseModel):
    part: int | Inner
    pair: tuple[int, int] = (0, 0)
    mode: Literal["no", "crop"] = "no"


@pytest.mark.parametrize(
    ("values", "place", "text"),
    [
        ({"part": {"size": "big"}}, ("part", "size"), "input should be a valid integer"),
        ({"part": {}}, ("part", "size"), "field required"),
        ({}, ("part",), "field required"),
        ({"part": 1, "pair": [1, "x"]}, ("pair", 1), "input should be a valid integer"),
        ({"part": 1, "mode": False}, ("mode",), "input should be 'no' or 'crop'; quote it, since YAML reads no, off"),
        ({"part": 1, "mode": "x"}, ("mode",), "input should be 'no' or 'crop'"),
    ],
)
def test_the_innermost_problem(values: dict[str, Any], place: tuple[int | str, ...], text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(values)
    found, problem = first_problem(caught.value, values)
    assert found == place and message(problem).startswith(text)
