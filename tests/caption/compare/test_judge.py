from __future__ import annotations

import itertools
import json
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from curate.caption.compare.judge import INCONSISTENT, Judge, verdict_of
from curate.caption.untrusted.wrap import unwrapped
from curate.core.recipe.registry import resolve
from tests.caption.asked import ENDPOINTS, STRICT, answered, completion, sample, texts

ROW = {"one": "A red bus.", "two": "A bus in the rain."}


def judge(**more: Any) -> Judge:
    return Judge(**({"endpoints": ENDPOINTS, "prompt": "judge_texts", "a": "one", "b": "two"} | more))


def said(verdict: str, reason: str = "It names more.") -> dict[str, Any]:
    return completion(json.dumps({"reason": reason, "verdict": verdict}))


def test_is_registered_and_has_columns() -> None:
    assert resolve("caption.judge") is Judge
    schema = judge().schema()
    assert schema.names[0] == "judge" and {"judge_ab", "judge_ba", "judge_verdict", "judge_model"} <= set(schema.names)
    assert all(schema.field(f"judge_{name}").type == pa.string() for name in ("ab", "ba", "verdict"))
    assert set(judge().reads()) == {"one", "two"}


@pytest.mark.parametrize(
    ("ab", "ba", "verdict"),
    [
        ("first", "second", "a"),
        ("second", "first", "b"),
        ("tie", "tie", "tie"),
        ("first", "first", INCONSISTENT),
        ("second", "second", INCONSISTENT),
        ("first", "tie", INCONSISTENT),
        ("tie", "first", INCONSISTENT),
    ],
)
def test_a_text_wins_only_in_both_orders(ab: str, ba: str, verdict: str) -> None:
    columns, client = answered(judge(), ROW, said(ab), said(ba))
    assert list(columns) == judge().schema().names
    assert (columns["judge_ab"], columns["judge_ba"], columns["judge_verdict"]) == (ab, ba, verdict)
    assert json.loads(columns["judge"])["ba"] == {"reason": "It names more.", "verdict": ba}
    assert (columns["judge_outcome"], columns["judge_prompt_tokens"], columns["judge_completion_tokens"]) == (
        "ok", 60, 14,
    )  # fmt: skip
    given = [unwrapped(list(texts(body))[-1]) for body in client.bodies]
    assert given == [{"first": ROW["one"], "second": ROW["two"]}, {"first": ROW["two"], "second": ROW["one"]}]


def test_swapping_the_texts_swaps_the_verdict() -> None:
    other = {"a": "b", "b": "a", "tie": "tie", INCONSISTENT: INCONSISTENT}
    for ab, ba in itertools.product(("first", "second", "tie"), repeat=2):
        assert verdict_of(ba, ab) == other[verdict_of(ab, ba)]  # type: ignore[index]
    assert verdict_of(None, "tie") is None


@pytest.mark.parametrize("order", [0, 1])
def test_an_answer_without_a_verdict_decides_nothing(order: int) -> None:
    answers = [said("first"), completion(None, "content_filter")]
    columns, _ = answered(judge(), ROW, *(answers if order else answers[::-1]))
    assert (columns["judge"], columns["judge_outcome"], columns["judge_verdict"]) == (None, "refused", None)
    assert {columns["judge_ab"], columns["judge_ba"]} == {"first", None}
    assert columns["judge_prompt_tokens"] == 60


def test_rows_without_two_different_texts_are_not_asked() -> None:
    for row in ({"one": None, "two": "x"}, {"one": "x", "two": ""}, {"one": "x", "two": "x"}):
        assert judge().request(row) is None


def test_the_image_is_sent_with_both_requests() -> None:
    stage = judge(prompt="judge")
    assert stage.pixels and not judge().pixels
    _, client = answered(stage, {**ROW, "image": stage.prepare(sample())}, said("tie"), said("tie"))
    parts = [body["messages"][-1]["content"] for body in client.bodies]
    assert all([part["type"] for part in content] == ["image_url", "text"] for content in parts)
    assert parts[0][0] == parts[1][0]


def test_an_endpoint_that_enforces_schemas_gets_it() -> None:
    _, client = answered(judge(endpoints=STRICT), ROW, said("tie"), said("tie"))
    schema = client.bodies[0]["response_format"]["json_schema"]["schema"]
    assert list(schema["properties"]) == ["reason", "verdict"]  # the reason comes before the verdict
    assert schema["properties"]["verdict"]["enum"] == ["first", "second", "tie"]


PROMPT: dict[str, Any] = {
    "name": "mine",
    "version": 1,
    "user": "Which?",
    "context": {"first": "x", "second": "y", "topic": "caption"},
    "sampling": {"max_tokens": 9},
    "schema": {"type": "object", "properties": {"verdict": {"enum": ["first", "second", "tie"]}}},
}


def test_a_prompt_of_ones_own_may_have_more_context() -> None:
    stage = judge(prompt=PROMPT)
    assert set(stage.reads()) == {"one", "two", "caption"}
    answer = completion('{"verdict": "tie"}')
    _, client = answered(stage, {**ROW, "caption": "buses"}, answer, answer)
    assert unwrapped(list(texts(client.bodies[1]))[-1])["topic"] == "buses"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"b": "one"}, "'one' is the column `a` too; give two columns"),
        ({"prompt": "alt_text"}, "needs a prompt whose context has `first` and `second`"),
        ({"prompt": PROMPT | {"schema": None}}, "needs a schema with `verdict`, one of first, second, tie"),
        ({"columns": {"first": "x"}}, "'first' is one of the two texts; give them as `a` and `b`"),
    ],
)
def test_bad_parameters(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        judge(**given)
