from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.caption.answers import problem_of, read_answer, repaired

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"people": {"type": "boolean"}, "subject": {"type": "string"}},
    "required": ["people", "subject"],
    "additionalProperties": False,
}
GOOD = {"people": True, "subject": 'a "red" bus, it\'s here: {1, 2}'}
PLAIN = json.dumps(GOOD)

values = st.dictionaries(
    st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
    st.booleans() | st.none() | st.integers(-9, 9) | st.text(max_size=8) | st.lists(st.integers(0, 3), max_size=3),
    max_size=4,
)


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        f"```json\n{PLAIN}\n```",
        f"Sure, here it is:\n\n{PLAIN}\n\nAnything else?",
        PLAIN.replace("}", ",}").replace("2,}", "2}"),
        PLAIN[:-1],
        repr(GOOD),
        PLAIN.replace('"people": true', "people: yes"),
        PLAIN.replace('"people"', "“people”"),
        json.dumps(GOOD, indent=2),
    ],
)
def test_what_is_nearly_json_is_repaired(text: str) -> None:
    assert read_answer(text, SCHEMA) == (GOOD, "")


@pytest.mark.parametrize(
    "text", ["", "yes", "{", "a {b} c", "I cannot say.", "[1, 2]", "}{", "{'a': }", "null", '{"a": NaN}']
)
def test_anything_else_is_a_problem(text: str) -> None:
    assert read_answer(text, SCHEMA)[1]


@pytest.mark.parametrize("text", ['{"a": 1e999}', '{"a": -1e999,}', r'{"a": "\ud800"}', r'{"\udfff": 1,}'])
def test_what_no_column_can_hold_is_a_problem(text: str) -> None:
    assert read_answer(text, {"type": "object"})[1].startswith("not JSON")
    assert read_answer(r'{"a": "\ud83d\ude00"}', {"type": "object"}) == ({"a": "\U0001f600"}, "")


@given(values)
def test_json_is_read_as_it_is(value: dict[str, Any]) -> None:
    assert read_answer(json.dumps(value), {"type": "object"}) == (value, "")
    assert repaired(f"```\n{json.dumps(value, indent=1)}\n```") == value


@given(values, st.integers(1, 5))
def test_a_repair_makes_up_no_value(value: dict[str, Any], cut: int) -> None:
    try:
        found = repaired(json.dumps(value)[:-cut])
    except ValueError:
        return
    assert all(value[name] == one or str(one) in str(value[name]) for name, one in found.items())


def test_a_problem_names_the_place() -> None:
    assert problem_of({"people": "no", "subject": "x"}, SCHEMA) == "people: 'no' is not of type 'boolean'"
    assert problem_of({"people": True}, SCHEMA) == "'subject' is a required property"
    assert len(problem_of({"people": "x" * 10_000, "subject": ""}, SCHEMA)) < 400


def test_hostile_answers_take_linear_time() -> None:
    began = time.process_time()
    for text in (
        '{"a": ' * 9000,
        "{" + '"' * 60_001,
        "{" + "'" * 60_001,
        "{" + "a:" * 30_000,
        "{" * 65_000,
        "{" * 10**6,
    ):
        assert read_answer(text, SCHEMA)[1]
    assert time.process_time() - began < 5
