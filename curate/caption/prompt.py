"""Prompts: versioned files with instructions, context, examples and sampling.

    name: alt_text
    version: 1
    image: true
    context: {alt text: caption}     # label -> column; the model gets the values as data
    system: You write alt texts.
    user: |
      Write an alt text for this image.
      {context}
    sampling: {temperature: 0.2, max_tokens: 80}

A stage carries the whole prompt, so any change of it, except of `description`, asks the model again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import fsspec
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from curate.caption.questions import Question, lines_of, schema_of
from curate.caption.untrusted.wrap import CUT, RULE, wrap
from curate.core.contracts import Location
from curate.core.errors import CurateError, did_you_mean
from curate.core.recipe.document import Document, first_problem, message

PLACE = "{context}"
INCLUDED = Path(__file__).with_name("prompts")
"""Folder of the prompts that the package includes."""
_BRACES = re.compile(r"\{[^{}]*\}|[{}]")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_by_name=True, allow_inf_nan=False)


class Sampling(_Part):
    """How the model chooses tokens, and when it must stop. null: the endpoint's default, and nothing is sent."""

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    max_tokens: int = Field(ge=1)


class Example(_Part):
    """Context and the answer to it, shown as an earlier turn of the conversation."""

    context: dict[str, Any] = {}
    answer: str | dict[str, Any]

    def text(self) -> str:
        return self.answer if isinstance(self.answer, str) else json.dumps(self.answer, ensure_ascii=False)


class Prompt(_Part):
    """A prompt for one answer per sample."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    version: int = Field(ge=1)
    description: str = ""
    """For people; the only part that may change without a new answer."""
    system: str = ""
    user: str
    """Instructions; `{context}` is replaced by the context, which otherwise follows at the end."""
    image: bool = False
    """Whether the model gets the image."""
    context: dict[str, str] = {}
    """Label -> column, or field of the pool's meta (`meta.title`)."""
    context_characters: int = Field(CUT, ge=1)
    """Characters above which a text of the context is cut."""
    examples: list[Example] = []
    sampling: Sampling
    questions: list[Question] = []
    """Questions to answer, in place of a schema."""
    answer_schema: dict[str, Any] | None = Field(None, alias="schema")
    """JSON schema of the answer, an object; null: the answer is a text."""

    @field_validator("system", "user")
    @classmethod
    def _only_context_in_braces(cls, value: str) -> str:
        other = next((found for found in _BRACES.findall(value) if found != PLACE), None)
        if other is not None:
            raise ValueError(f"{other!r}: only {PLACE} may be in braces; give JSON under `examples` or `schema`")
        return value.strip()

    @field_validator("user")
    @classmethod
    def _not_blank(cls, value: str) -> str:
        if not value:
            raise ValueError("blank; give the instructions")
        return value

    @field_validator("answer_schema")
    @classmethod
    def _valid_schema(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None:
            _check_schema(value)
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Prompt:
        if PLACE in self.system or self.user.count(PLACE) > 1:
            raise ValueError(f"user: {PLACE} may occur once, in `user`")
        if PLACE in self.user and not self.context:
            raise ValueError(
                f"user: contains {PLACE}, but the prompt has no `context`; add `context: {{label: column}}`"
            )
        if not self.image and not self.context:
            raise ValueError("context: a prompt without an image and without context asks the same for every row")
        if self.questions and self.answer_schema:
            raise ValueError("questions: they determine the schema; remove `schema`")
        names = [question.name for question in self.questions]
        double = next((name for name in names if names.count(name) > 1), None)
        if double:
            raise ValueError(f"questions: {double!r} is the name of two questions; rename one")
        for number, example in enumerate(self.examples):
            self._check_example(f"examples.{number}", example)
        return self

    def _check_example(self, place: str, example: Example) -> None:
        unknown = next((label for label in example.context if label not in self.context), None)
        if unknown is not None:
            remedy = did_you_mean(unknown, self.context, "add it to the prompt's `context`")
            raise ValueError(f"{place}.context: the prompt has no context {unknown!r}; {remedy}")
        schema = self.schema_of_answer()
        if schema is None and not isinstance(example.answer, str):
            raise ValueError(f"{place}.answer: expected a text, because the prompt has no schema")
        if schema is not None:
            from curate.caption.answers import problem_of

            problem = problem_of(example.answer, schema)
            if problem:
                raise ValueError(f"{place}.answer: does not fit the schema: {problem}")

    @property
    def label(self) -> str:
        """Name and version, as recorded per row."""
        return f"{self.name}@{self.version}"

    def schema_of_answer(self) -> dict[str, Any] | None:
        return schema_of(self.questions) if self.questions else self.answer_schema

    def system_text(self) -> str:
        """The system prompt, which is the same for every row."""
        return "\n\n".join(part for part in (self.system, RULE if self.context else "") if part)

    def user_text(self, values: Mapping[str, Any], salt: str = "") -> str:
        """The text for a row; `values` are the context by label."""
        parts = [self.user, *([lines_of(self.questions)] if self.questions else [])]
        text = "\n\n".join(parts)
        if not self.context:
            return text
        data = wrap(values, f"{salt}\0{self.label}", self.context_characters)
        return text.replace(PLACE, data) if PLACE in text else f"{text}\n\n{data}"

    def json_value(self) -> dict[str, Any]:
        """What determines answers, as JSON-able data."""
        return self.model_dump(mode="json", exclude={"description"})


def _check_schema(schema: dict[str, Any]) -> None:
    from jsonschema import Draft202012Validator, SchemaError  # takes 0.1 s
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        place = ".".join(map(str, error.absolute_path))
        raise ValueError(f"not a JSON schema: {place + ': ' if place else ''}{error.message}") from None
    if schema.get("type") != "object" or not schema.get("properties"):
        raise ValueError("expected the schema of an object: type: object, with properties")
    if any(not str(target).startswith("#") for target in _targets(schema)):
        raise ValueError("$ref: points outside of the schema; write the definition into it")
    try:
        list(Draft202012Validator(schema).iter_errors({name: {} for name in schema["properties"]}))
        resolver = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
        for target in _targets(schema):
            resolver.lookup(str(target))
    except Unresolvable as error:
        raise ValueError(f"$ref: {error.ref!r} is not in the schema; add the definition") from None
    except RecursionError:
        raise ValueError("$ref: refers to itself without an object or list between; remove the loop") from None


def _targets(value: Any) -> list[Any]:
    """All targets of `$ref`."""
    if isinstance(value, Mapping):
        inside = [target for item in value.values() for target in _targets(item)]
        return [value["$ref"], *inside] if "$ref" in value else inside
    return [target for item in value for target in _targets(item)] if isinstance(value, list) else []


# --- files ------------------------------------------------------------------------------------------------------------


def included() -> list[str]:
    """Names of the prompts that the package includes."""
    return sorted(path.stem for path in INCLUDED.glob("*.yaml"))


def read_prompt(value: str) -> Prompt:
    """A prompt by its included name, or by the path or URL of its file. Raises ValueError: one line with the place."""
    named = not value.endswith((".yaml", ".yml"))
    if named and value not in included():
        remedy = did_you_mean(value, included(), f"there are {', '.join(included())}.")
        raise ValueError(f"no prompt has this name; {remedy} Or give the path of a .yaml file")
    path = str(INCLUDED / f"{value}.yaml") if named else value
    try:
        with fsspec.open(path, "rt", encoding="utf-8") as file:
            document = Document.parse(file.read(), value)
    except CurateError as error:
        raise ValueError(str(error)) from None
    except (OSError, ValueError) as error:
        reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None)
        reason = reason or type(error).__name__
        raise ValueError(
            f"{value}: cannot read the prompt ({reason}); expected a YAML file or an included name"
        ) from None
    if not isinstance(document.values, dict):
        raise ValueError(f"{value}: expected a mapping with name, version, user, sampling …")
    try:
        return Prompt.model_validate(document.values)
    except ValidationError as error:
        raise ValueError(_located(document, error)) from None


def _located(document: Document, error: ValidationError) -> str:
    """`file:line: place: problem`."""
    place, problem = first_problem(error, document.values)
    text = message(problem)
    unknown = next((item["loc"] for item in error.errors() if item["type"] == "extra_forbidden"), None)
    if unknown is not None:  # rather than the key that is missing because of a typo
        place, text = unknown, f"unknown key; {_remedy(unknown)}"
    elif not place:  # a rule about several keys, which begins with the one at fault
        named, _, rest = text.partition(": ")
        place, text = (tuple(named.split(".")), rest) if named.split(".")[0] in _KEYS[""] else (place, text)
    return f"{document.line(place)}: {'.'.join(map(str, place))}{': ' if place else ''}{text}"


def _remedy(place: tuple[int | str, ...]) -> str:
    """What to do about an unknown key: it may be misspelt, or belong into another part."""
    key, known = str(place[-1]), _KEYS.get(str(place[0]) if len(place) > 1 else "", _KEYS[""])
    others = [part for part, keys in _KEYS.items() if key in keys and part]
    if others:
        return f"it belongs under `{others[0]}`"
    return did_you_mean(key, known, f"the keys are {', '.join(known)}")


_PARTS: dict[str, type[BaseModel]] = {"": Prompt, "sampling": Sampling, "examples": Example, "questions": Question}
_KEYS = {part: [info.alias or name for name, info in of.model_fields.items()] for part, of in _PARTS.items()}
"""Part of a prompt -> its keys."""


def _read(value: Any) -> Any:
    return read_prompt(value) if isinstance(value, str) else value


PromptOf = Annotated[
    Prompt,
    BeforeValidator(_read, json_schema_input_type=str | dict[str, Any]),
    Location("prompt", included=lambda value: value in included()),
]
"""A parameter with a prompt: an included name, the path or URL of a file, which is read when the recipe is loaded, or
the prompt itself."""
