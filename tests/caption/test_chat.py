from __future__ import annotations

import base64
import io
import json
from typing import Any

import pytest
from PIL import Image

from curate.caption.chat import EMPTY, OK, REFUSED, TRUNCATED, Form, completion_of
from curate.caption.image import encode
from curate.caption.prompt import Prompt, read_prompt
from curate.core.contracts import NoAnswer
from curate.core.endpoints import Endpoint
from tests.caption.asked import ENDPOINTS, STRICT, completion

SMALL = Endpoint.model_validate(ENDPOINTS["small"])
LARGE = Endpoint.model_validate(STRICT["strict"])


def body(prompt: Prompt | str, endpoint: Endpoint = SMALL, **more: Any) -> dict[str, Any]:
    form = Form(read_prompt(prompt) if isinstance(prompt, str) else prompt, endpoint)
    return json.loads(form.body('what is "this"?\n…', more.get("image"), 7, more.get("follow", ())))


def test_the_body_is_json_with_the_image_before_the_text() -> None:
    image = encode(Image.new("RGB", (30, 20), "red"), 512, 90)
    found = body("caption_short", image=image)
    assert [message["role"] for message in found["messages"]] == ["system", "user"]
    first, second = found["messages"][1]["content"]
    kind, _, data = first["image_url"]["url"].partition(",")
    assert kind == "data:image/jpeg;base64"
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (30, 20)
    assert second == {"type": "text", "text": 'what is "this"?\n…'}
    assert {name: value for name, value in found.items() if name != "messages"} == {
        "model": "tiny",
        "temperature": 0.7,
        "top_p": 0.95,
        "max_tokens": 100,
        "seed": 7,
    }


def test_examples_are_earlier_turns_with_context_as_data() -> None:
    found = body("vivid", follow=[{"role": "user", "content": "again"}])
    assert [message["role"] for message in found["messages"]] == ["system", *["user", "assistant"] * 2, "user", "user"]
    assert "<<<data " in found["messages"][1]["content"]
    assert found["messages"][2]["content"] == read_prompt("vivid").examples[0].answer
    assert found["messages"][-2]["content"] == 'what is "this"?\n…'


def test_everything_before_the_row_is_the_same_for_all_rows() -> None:
    form = Form(read_prompt("vivid"), SMALL)
    one, two = form.body("a", None, 1), form.body("b", None, 2)
    assert one.index(b'"a"') == two.index(b'"b"')
    assert one[: one.index(b'"a"')] == two[: two.index(b'"b"')]


def test_a_schema_is_sent_or_written_into_the_prompt() -> None:
    schema = read_prompt("questions").schema_of_answer()
    enforced = body("questions", LARGE)
    assert enforced["response_format"]["json_schema"] == {"name": "questions", "schema": schema, "strict": True}
    assert "JSON schema" not in enforced["messages"][0]["content"]
    told = body("questions")
    assert "response_format" not in told
    assert told["messages"][0]["content"].endswith(json.dumps(schema, separators=(",", ":")))


def test_only_closed_schemas_are_strict() -> None:
    given = {
        "name": "open",
        "version": 1,
        "user": "x",
        "image": True,
        "sampling": {"max_tokens": 9},
        "schema": {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "string"}}}}},
    }
    assert body(Prompt.model_validate(given), LARGE)["response_format"]["json_schema"]["strict"] is False
    schema = given["schema"] | {"required": ["a"], "additionalProperties": False}  # type: ignore[operator]
    inside = body(Prompt.model_validate(given | {"schema": schema}), LARGE)
    assert inside["response_format"]["json_schema"]["strict"] is False
    assert "temperature" not in inside


def test_the_limit_of_tokens_has_the_endpoints_name() -> None:
    endpoint = SMALL.model_copy(update={"token_limit": "max_completion_tokens"})
    found = body("caption_short", endpoint)
    assert found["max_completion_tokens"] == 100
    assert "max_tokens" not in found


@pytest.mark.parametrize(
    ("answer", "outcome", "text"),
    [
        (completion(" a dog \n"), OK, "a dog"),
        (completion([{"type": "text", "text": "a "}, {"type": "text", "text": "dog"}]), OK, "a dog"),
        (completion("a do", "length"), TRUNCATED, "a do"),
        (completion("<think>hm</think>\n a dog"), OK, "a dog"),
        (completion("<think>hm", "length"), TRUNCATED, None),
        (completion("<think>hm"), TRUNCATED, None),
        (completion("a dog <think>hm"), TRUNCATED, "a dog"),
        (completion("hm</think> a dog"), OK, "a dog"),
        (completion("<think>a <think>b</think> c</think> a dog"), OK, "a dog"),
        (completion("[THINK]hm[/THINK]a dog"), OK, "a dog"),
        (completion("<seed:think>hm</seed:think>a dog"), OK, "a dog"),
        (completion("\u25c1think\u25b7hm\u25c1/think\u25b7a dog"), OK, "a dog"),
        (
            completion("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>a dog"),
            OK,
            "a dog",
        ),
        (completion("analysisThe user asks.assistantfinalA dog"), OK, "A dog"),
        (completion("<think>hm</think>\n<answer>\na dog\n</answer>"), OK, "a dog"),
        (completion("<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>a dog<|END_RESPONSE|>"), OK, "a dog"),
        (completion("Here is my thought process: hm\nHere is my response: a dog"), OK, "a dog"),
        (completion("<|channel>thought\nhm<channel|>a dog"), OK, "a dog"),
        (completion([{"type": "thinking", "text": "hm"}, {"type": "text", "text": "a dog"}]), OK, "a dog"),
        (completion("Analysis of a dog"), OK, "Analysis of a dog"),
        (completion("AnalysisPro is the name on the box"), OK, "AnalysisPro is the name on the box"),
        (completion("It reads: Here is my response: I agree."), OK, "It reads: Here is my response: I agree."),
        (completion("<|think|>hm<|end|><|begin|>assistant<|content|>a dog"), OK, "a dog"),
        (completion('<think time="3">hm</think >a dog'), OK, "a dog"),
        (completion("<analysis>hm</analysis><Output>a dog</Output>"), OK, "a dog"),
        (completion("Here are my steps:\nhm\n[BEGIN FINAL RESPONSE]\na dog\n[END FINAL RESPONSE]"), OK, "a dog"),
        (completion("A sign reads <|begin_of_box|>STOP<|end_of_box|>"), OK, "A sign reads STOP"),
        (
            completion("<|start|>assistant<|channel|>final <|constrain|>json<|message|>a dog<|return|>"),
            OK,
            "a dog",
        ),
        (completion(None, "content_filter: OTHER"), REFUSED, None),
        (completion("Sorry, I cannot.", "guardrail_intervened"), REFUSED, None),
        (completion("a do", "model_context_window_exceeded"), TRUNCATED, "a do"),
        (completion("</think>"), EMPTY, None),
        (completion(None, "length", message={"reasoning_content": "hm"}), TRUNCATED, None),
        (completion(None, message={"reasoning": "hm"}), EMPTY, None),
        (completion("a do", "MAX_TOKENS"), TRUNCATED, "a do"),
        (completion("a dog", "SAFETY"), REFUSED, None),
        (completion("a dog", "no_such_reason"), OK, "a dog"),
        (completion("a dog", "content_filter"), REFUSED, None),
        (completion(None, message={"refusal": "I can't."}), REFUSED, None),
        (completion(None), EMPTY, None),
        (completion("  \n"), EMPTY, None),
        (completion("\u200b \x00\ufeff"), EMPTY, None),
        (completion("🐶"), OK, "🐶"),
        (completion("", "length"), TRUNCATED, None),
        (completion("a \ud800dog"), OK, "a ?dog"),
    ],
)
def test_every_answer_has_an_outcome(answer: dict[str, Any], outcome: str, text: str | None) -> None:
    found = completion_of(answer)
    assert (found.outcome, found.text) == (outcome, text)
    assert (found.model, found.fingerprint) == ("tiny-1", "fp-1")
    assert (found.prompt_tokens, found.completion_tokens) == (30, 7)


@pytest.mark.parametrize(
    "usage", [None, {}, [], {"prompt_tokens": "3", "completion_tokens": -1}, {"prompt_tokens": 2**40}]
)
def test_tokens_that_are_not_reported_are_null(usage: Any) -> None:
    found = completion_of(completion("a", usage=usage, system_fingerprint=None, model=3))
    assert (found.prompt_tokens, found.completion_tokens, found.model, found.fingerprint) == (None,) * 4


def test_names_that_no_column_can_hold_are_changed() -> None:
    found = completion_of(completion("a", model="m\ud800", system_fingerprint="\udfff"))
    assert (found.model, found.fingerprint) == ("m?", "?")


@pytest.mark.parametrize(
    "answer", [None, [], {}, {"choices": []}, {"choices": [{}]}, {"error": "x" * 999}, {"choices": 3}]
)
def test_anything_but_a_completion_is_an_error(answer: Any) -> None:
    with pytest.raises(NoAnswer) as caught:
        completion_of(answer)
    assert caught.value.reason == "not_a_completion"
    assert len(str(caught.value)) < 300
