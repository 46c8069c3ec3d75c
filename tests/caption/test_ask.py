from __future__ import annotations

import asyncio
import json
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from curate.caption.ask import Ask
from curate.caption.prompt import Prompt
from curate.core.contracts import NoAnswer
from tests.caption.asked import ENDPOINTS, STRICT, Answering, answered, completion

PROMPT: dict[str, Any] = {
    "name": "facts",
    "version": 2,
    "user": "What is in it?",
    "context": {"text": "caption"},
    "sampling": {"max_tokens": 90},
    "schema": {
        "type": "object",
        "properties": {
            "people": {"type": "boolean"},
            "count": {"type": "integer"},
            "share": {"type": ["number", "null"]},
            "kind": {"type": "string", "enum": ["photo", "drawing"]},
            "colours": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["people", "count"],
    },
}
GOOD = {"people": True, "count": 3, "share": 0.5, "kind": "photo", "colours": ["red"]}
ROW = {"caption": "a red bus"}


def ask(**more: Any) -> Ask:
    return Ask(**({"endpoints": ENDPOINTS, "prompt": PROMPT} | more))


def values(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: columns[f"answers_{name}"] for name in ("people", "count", "share", "kind")}


def test_properties_with_a_plain_type_are_columns() -> None:
    schema = ask().schema()
    kinds = {"people": pa.bool_(), "count": pa.int64(), "share": pa.float64(), "kind": pa.string()}
    assert {name: schema.field(f"answers_{name}").type for name in kinds} == kinds
    assert "answers_colours" not in schema.names
    columns, _ = answered(ask(), ROW, completion(json.dumps(GOOD)))
    assert values(columns) == {name: GOOD[name] for name in kinds}
    assert json.loads(columns["answers"]) == GOOD
    assert list(columns) == schema.names
    assert columns["answers_outcome"] == "ok"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"count": 3.0}, 3),
        ({"count": 2**70}, None),
        ({"share": 10**400}, None),
        ({"share": 1}, 1.0),
        ({"share": None}, None),
    ],
)
def test_numbers_fit_their_columns(given: dict[str, Any], expected: Any) -> None:
    columns, _ = answered(ask(), ROW, completion(json.dumps(GOOD | given)))
    found = columns[f"answers_{next(iter(given))}"]
    assert (found, type(found)) == (expected, type(expected))


def test_nearly_json_is_repaired_without_a_second_request() -> None:
    columns, client = answered(ask(), ROW, completion(f"Here:\n```json\n{json.dumps(GOOD)}\n```"))
    assert json.loads(columns["answers"]) == GOOD
    assert len(client.bodies) == 1


def test_a_bad_answer_is_asked_for_once_more_with_the_problem() -> None:
    columns, client = answered(ask(), ROW, completion('{"people": "no"}'), completion(json.dumps(GOOD)))
    assert values(columns)["count"] == 3
    assert (columns["answers_prompt_tokens"], columns["answers_completion_tokens"]) == (60, 14)
    first, again = (body["messages"] for body in client.bodies)
    assert again[: len(first)] == first
    assert again[-2] == {"role": "assistant", "content": '{"people": "no"}'}
    assert "'count' is a required property" in again[-1]["content"]


def test_tokens_of_two_requests_are_null_if_one_is_not_reported() -> None:
    columns, _ = answered(ask(), ROW, completion("?", usage=None), completion(json.dumps(GOOD)))
    assert columns["answers_prompt_tokens"] is None


@pytest.mark.parametrize("second", [completion("no"), completion('{"people": 1}'), completion(None, "content_filter")])
def test_a_second_bad_answer_is_an_error(second: Any) -> None:
    stage, client = ask(), Answering([completion("no"), second])
    stage.setup({})
    with pytest.raises(NoAnswer) as caught:
        asyncio.run(stage.answer(stage.request(ROW), client))
    assert caught.value.reason == "bad_schema"
    assert len(client.bodies) == 2


@pytest.mark.parametrize(
    ("answer", "outcome", "whole"),
    [
        (completion('{"people": tr', "length"), "truncated", False),
        (completion(json.dumps(GOOD), "length"), "truncated", True),
        (completion(None, "content_filter"), "refused", False),
        (completion(" "), "empty", False),
    ],
)
def test_other_outcomes_have_nulls(answer: Any, outcome: str, whole: bool) -> None:
    columns, _ = answered(ask(), ROW, answer)
    assert columns["answers_outcome"] == outcome
    assert (columns["answers"] is not None) == whole
    assert values(columns) == (
        {name: GOOD[name] for name in values(columns)} if whole else dict.fromkeys(values(columns))
    )


def test_the_schema_is_checked_even_if_the_endpoint_enforces_it() -> None:
    columns, client = answered(ask(endpoints=STRICT), ROW, completion("{}"), completion(json.dumps(GOOD)))
    assert "response_format" in client.bodies[0]
    assert columns["answers_people"] is True


def test_images_are_asked_for_if_a_prompt_has_one() -> None:
    assert not ask().pixels
    assert ask(prompt="questions").pixels
    assert Ask(endpoints=ENDPOINTS, variants=[{"prompt": "video_questions"}, {"prompt": "questions"}]).pixels
    assert (
        Ask(endpoints=ENDPOINTS, prompt="video_questions").request({"video_caption": None, "frame_captions": []})
        is None
    )


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ([{"model": {"type": "string"}}], "prompt: facts: property 'model' would be column answers_model"),
        (
            [{"has text?": {"type": "boolean"}}],
            "property 'has text\\?' cannot end the name of a column; expected letters",
        ),
        ([{"a": {"type": "string"}}, {"a": {"type": "number"}}], "variants: facts: property 'a' has another type"),
    ],
)
def test_properties_that_cannot_be_columns_are_an_error(prompts: list[Any], expected: str) -> None:
    made = [Prompt.model_validate(PROMPT | {"schema": {"type": "object", "properties": one}}) for one in prompts]
    given = (
        {"prompt": made[0]}
        if len(made) == 1
        else {"variants": [{"prompt": one} for one in made], "prompt": "questions"}
    )
    with pytest.raises(ValidationError, match=expected):
        ask(**given)
