from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from curate.caption.answers import problem_of
from curate.caption.prompt import Prompt, included, read_prompt
from curate.caption.untrusted.wrap import RULE, unwrapped

GIVEN: dict[str, Any] = {
    "name": "mine",
    "version": 3,
    "user": "Describe it.",
    "image": True,
    "sampling": {"temperature": 0, "max_tokens": 50},
}


def written(folder: Path, **changes: Any) -> str:
    path = folder / "mine.yaml"
    values = {name: value for name, value in (GIVEN | changes).items() if value is not None}
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return str(path)


def problem(folder: Path, **changes: Any) -> str:
    with pytest.raises(ValueError) as caught:
        read_prompt(written(folder, **changes))
    text = str(caught.value)
    assert "\n" not in text
    return text.removeprefix(str(folder))


def test_a_prompt_is_read_from_a_file(tmp_path: Path) -> None:
    prompt = read_prompt(written(tmp_path))
    assert prompt.label == "mine@3"
    assert prompt.sampling.temperature == 0
    assert prompt.user_text({}) == "Describe it."
    assert prompt.system_text() == ""


@pytest.mark.parametrize("name", included())
def test_included_prompts_are_complete(name: str) -> None:
    prompt = read_prompt(name)
    assert prompt.name == name
    assert prompt.description.endswith(".")
    values = dict.fromkeys(prompt.context, "some text")
    assert unwrapped(prompt.user_text(values)) == values
    assert (RULE in prompt.system_text()) == bool(prompt.context)


def test_there_is_a_prompt_for_each_purpose() -> None:
    purposes = {
        "caption_short",
        "caption_long",
        "alt_text",
        "vivid",
        "video_summary_72",
        "video_summary_120",
        "questions",
    }
    assert purposes <= set(included())
    assert "fewer than thirty words" in read_prompt("alt_text").user
    assert len(read_prompt("video_questions").questions) == 26


def test_context_stands_where_the_prompt_says_or_at_the_end() -> None:
    context = {"context": {"title": "meta.title"}}
    inside = Prompt.model_validate(GIVEN | context | {"user": "Before {context} after"})
    assert inside.user_text({"title": "A"}).startswith("Before <<<data ")
    assert inside.user_text({"title": "A"}).endswith(" data>>> after")
    behind = Prompt.model_validate(GIVEN | context)
    assert behind.user_text({"title": "A"}).startswith("Describe it.\n\n<<<data ")


def test_questions_become_lines_and_a_schema() -> None:
    questions = [
        {"name": "people", "question": "Are there people?"},
        {"name": "kind", "question": "What is it?", "type": "choice", "choices": ["photo", "drawing", "other"]},
        {"name": "count", "question": "How many?", "type": "number"},
        {"name": "subject", "question": "What is shown?", "type": "text"},
    ]
    prompt = Prompt.model_validate(GIVEN | {"questions": questions})
    assert "- people (true or false): Are there people?" in prompt.user_text({})
    assert "- kind (photo, drawing or other): What is it?" in prompt.user_text({})
    schema = prompt.schema_of_answer()
    assert schema is not None
    good = {"people": True, "kind": "photo", "count": 2, "subject": "a dog"}
    assert problem_of(good, schema) == ""
    assert "'sketch' is not one of" in problem_of(good | {"kind": "sketch"}, schema)
    assert "'people' is a required property" in problem_of({}, schema)
    assert "unexpected" in problem_of(good | {"more": 1}, schema)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"usr": "x"}, "/mine.yaml:8: usr: unknown key; did you mean 'user'?"),
        ({"version": "1"}, "/mine.yaml:2: version: input should be a valid integer"),
        ({"name": "Mine!"}, "/mine.yaml:1: name: string should match pattern"),
        ({"user": None}, "/mine.yaml: user: field required"),
        (
            {"sampling": {"max_tokens": 0}},
            "/mine.yaml:6: sampling.max_tokens: input should be greater than or equal to 1",
        ),
        ({"sampling": {"max_token": 9}}, "sampling.max_token: unknown key"),
        ({"temperature": 1.0}, "/mine.yaml:8: temperature: unknown key; it belongs under `sampling`"),
        ({"user": "{caption}"}, "/mine.yaml:3: user: '{caption}': only {context} may be in braces"),
        ({"user": 'Answer {"a": 1}'}, "only {context} may be in braces"),
        ({"user": "{context}"}, "/mine.yaml:3: user: contains {context}, but the prompt has no `context`"),
        ({"system": "{context}", "context": {"a": "b"}}, "user: {context} may occur once, in `user`"),
        ({"image": False}, "asks the same for every row"),
        (
            {"examples": [{"context": {"titel": "x"}, "answer": "y"}], "context": {"title": "t"}},
            "did you mean 'title'?",
        ),
        ({"examples": [{"answer": {"a": 1}}]}, "examples.0.answer: expected a text"),
        (
            {"schema": {"type": "object", "properties": {"a": {"type": "bool"}}}},
            "/mine.yaml:8: schema: not a JSON schema",
        ),
        ({"schema": {"type": "string"}}, "expected the schema of an object"),
        ({"schema": {"type": "object", "properties": {"a": {"$ref": "http://x/y"}}}}, "points outside of the schema"),
        (
            {
                "schema": {"type": "object", "properties": {"a": {"type": "number"}}},
                "examples": [{"answer": {"a": "b"}}],
            },
            "examples.0.answer: does not fit the schema: a: 'b' is not of type 'number'",
        ),
        (
            {"schema": {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}},
            "$ref: '/$defs/b' is not in the schema; add the definition",
        ),
        (
            {"schema": {"type": "object", "properties": {"a": {}}, "$ref": "#"}},
            "$ref: refers to itself without an object or list between",
        ),
        ({"user": " "}, "/mine.yaml:3: user: blank; give the instructions"),
        (
            {"questions": [{"name": "a", "question": "?", "type": "choice", "choices": ["b"]}]},
            "question 'a': expected two or more choices, all different",
        ),
        (
            {"questions": [{"name": "a", "question": "?", "type": "choice", "choices": ["b", "b"]}]},
            "question 'a': expected two or more choices, all different",
        ),
        (
            {"questions": [{"name": "a", "question": "?", "type": "choice"}]},
            "question 'a' of type choice needs choices",
        ),
        ({"questions": [{"name": "a", "question": "?", "choices": ["b"]}]}, "has no choices; use type: choice"),
        ({"questions": [{"name": "a", "question": "?"}] * 2}, "'a' is the name of two questions"),
    ],
)
def test_a_wrong_prompt_is_one_line_with_its_place(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    assert expected in problem(tmp_path, **changes)


def test_a_file_that_is_not_a_prompt_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    for text, expected in (
        ("a: [", "bad.yaml:1: not YAML"),
        ("- a", "expected a mapping"),
        ("a: 1\na: 2", "a is set twice"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=expected):
            read_prompt(str(path))
    with pytest.raises(ValueError, match="cannot read the prompt"):
        read_prompt(str(tmp_path / "none.yaml"))
    with pytest.raises(ValueError, match="did you mean 'caption_short'"):
        read_prompt("caption_shrt")


def test_a_prompt_survives_json(tmp_path: Path) -> None:
    for name in included():
        prompt = read_prompt(name)
        assert Prompt.model_validate(json.loads(prompt.model_dump_json())) == prompt
