from typing import Any

import pytest

from curate.core.errors import CurateError
from curate.service.policy import bounds
from curate.service.settings import Limits

LIMITS = Limits(recipe_bytes=4000, recipe_stages=3, recipe_values=60)

TEXTS = [
    ("a: " + "x" * 4000, "too_large"),
    ("é" * 2001, "too_large"),
    ("a: [" + ",".join("1" * 40) + "]\nb: [" + ",".join("1" * 40) + "]", "too_large"),
    ("[" * 41, "too_large"),
    ("{a: " * 41 + "}" * 41, "too_large"),
    ("a: &x 1", "policy"),
    ("a: &x [1]\nb: *x", "policy"),
    ("a: *x", "policy"),
    ("a: !!python/object/apply:os.system [id]", "policy"),
    ("a: !!str 1", "policy"),
    ("a: ! x", "policy"),
    ("a: !!binary aGk=", "policy"),
    ("a: {<<: {b: 1}}", "policy"),
    ("%YAML 1.1\n---\na: 1", "policy"),
    ("a: \ud800", "recipe"),
]


@pytest.mark.parametrize(("text", "code"), TEXTS)
def test_texts_out_of_bounds(text: str, code: str) -> None:
    assert _code(lambda: bounds.check_text(text, (), LIMITS)) == code


@pytest.mark.parametrize(("text", "code"), [row for row in TEXTS if row[1] != "recipe"])
def test_overrides_have_the_same_bounds(text: str, code: str) -> None:
    assert _code(lambda: bounds.check_text("a: 1", (f"stage.parameter={text}",), LIMITS)) == code


@pytest.mark.parametrize(
    ("given", "code"), [("a.b.c.d.e.f.g.h.i.j.k.l.m=1", "too_large"), ("a", "recipe"), ("../x=1", "recipe")]
)
def test_names_of_overrides(given: str, code: str) -> None:
    assert _code(lambda: bounds.check_text("a: 1", (given,), LIMITS)) == code


def test_texts_within_bounds() -> None:
    text = "a: 'x & y * z ! <<'\nb: [\"<<\", '&a', '*a', '!a']\nc: |\n  &a *b\n"
    bounds.check_text(text, ("stage.a=[1, 2]", "b='&x'"), LIMITS)
    assert _code(lambda: bounds.check_text("a: [", (), LIMITS)) == ""  # which loading explains


VALUES = [
    ({"v": "x", "w": "${v}"}, {"a": {"p": "${w}/${v}", "q": "${stages.a.op}", "op": "x"}}, ""),
    ({"v": [1, {"k": "x"}]}, {"a": {"p": "${v[1].k}", "q": "${v.0}", "r": "${ v }"}}, ""),
    ({}, {"a": {"p": "${missing}"}}, ""),
    ({}, {"a": {}, "b": {}, "c": {}, "d": {}}, "too_large"),
    ({}, {"a/b": {}}, "policy"),
    ({}, {"": {}}, "policy"),
    ({}, {"a" * 65: {}}, "policy"),
    ({}, {"a\nb": {}}, "policy"),
    ({}, {1: {}}, "policy"),
    ({"v": "${oc.env:HOME}"}, {"a": {}}, "policy"),
    ({"v": "${oc.decode:'1'}"}, {"a": {}}, "policy"),
    ({"v": "${.x}"}, {"a": {}}, "policy"),
    ({"v": "${a${b}}", "b": "x"}, {"a": {}}, "policy"),
    ({"v": r"\${b}", "b": "x"}, {"a": {}}, "policy"),
    ({"v": "${"}, {"a": {}}, "policy"),
    ({"v": {"k": "x"}, "w": "${v}", "u": "${w.k}"}, {"a": {}}, "policy"),
    ({"v": "${v}"}, {"a": {}}, "recipe"),
    ({"v": "${w}", "w": ["${v}"]}, {"a": {}}, "recipe"),
    ({}, {"a": {"p": "${stages}"}}, "recipe"),
    ({"v": 1 << 64}, {"a": {}}, "recipe"),
    ({"v": -(1 << 63) - 1}, {"a": {}}, "recipe"),
    ({"v": b"x"}, {"a": {}}, "policy"),
    ({"v0": "x" * 100, **{f"v{i}": f"${{v{i - 1}}}" * 2 for i in range(1, 15)}}, {"a": {}}, "too_large"),
    ({"v0": ["x"], **{f"v{i}": [f"${{v{i - 1}}}"] * 2 for i in range(1, 15)}}, {"a": {}}, "too_large"),
    ({"v0": "x", **{f"v{i}": f"${{v{i - 1}}}" for i in range(1, 25)}}, {"a": {}}, "too_large"),
    ({f"v{i}": f"${{v{i + 1}}}" for i in range(25)}, {"a": {}}, "too_large"),
]


@pytest.mark.parametrize(("variables", "stages", "code"), VALUES)
def test_values(variables: dict[str, Any], stages: dict[Any, Any], code: str) -> None:
    assert _code(lambda: bounds.check_values({"vars": variables, "stages": stages}, LIMITS)) == code


def test_what_was_resolved_has_no_interpolation_left() -> None:
    for stages in ({"a": {"p": "${oc.env:HOME}"}}, {"a": {"${x}": 1}}, {"a": {"p": ["x${y}"]}}):
        values = {"vars": {}, "stages": stages, "workspace": None}
        assert _code(lambda values=values: bounds.check_resolved(values, LIMITS)) == "policy"  # type: ignore[misc]
    values = {"vars": {"v": "${w}"}, "stages": {"a": {"p": "$x {y}"}}, "workspace": None}
    assert _code(lambda: bounds.check_resolved(values, LIMITS)) == ""


def _code(check: Any) -> str:
    """Code of the error; "" without one."""
    try:
        check()
    except CurateError as error:
        return error.code
    return ""
