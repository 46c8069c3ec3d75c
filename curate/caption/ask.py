"""`caption.ask`: answers to questions about an image or a text, as columns."""

from __future__ import annotations

import re
import sys
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import Field, model_validator

from curate.caption.asking import COLUMNS, NAME, Answer, Asked, Asking
from curate.caption.prompt import Prompt, PromptOf

KINDS = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64(), "string": pa.string()}
"""JSON type -> type of the column."""
_PROPERTY = re.compile(r"[A-Za-z0-9_]+")


class Ask(Asking):
    """Ask questions about an image or texts, and get answers that fit a JSON schema.

    The prompt has `questions` or a `schema`. Each property of the schema with a plain type (boolean, integer, number,
    string) becomes a column OUTPUT_PROPERTY; OUTPUT is the whole answer as JSON. An answer that does not fit the schema
    is repaired if it is nearly JSON, then asked for once more, and otherwise in error: bad_schema. Writes the other
    columns of caption.generate too.
    """

    op: ClassVar[str] = "caption.ask"
    usual_prompt: ClassVar[str] = "questions"

    prompt: PromptOf = Field(
        "questions",
        validate_default=True,
        description="a prompt with questions or a schema: an included one by name, or the path or URL of a file",
    )
    output: str = Field("answers", pattern=NAME, description="name of the column of answers; others begin with it")

    @property
    def pixels(self) -> bool:
        """Whether a prompt needs the image."""
        return any(one.image for one in ([variant.prompt for variant in self.variants] or [self.prompt]))

    def problem_of(self, prompt: Prompt) -> str:
        if not prompt.schema_of_answer():
            return f"has neither `questions` nor `schema`, which {self.op} needs; use caption.generate for texts"
        return ""

    @model_validator(mode="after")
    def _one_type_per_property(self) -> Ask:
        kinds: dict[str, pa.DataType] = {}
        for way in self.ways():
            for name, kind in self._properties(way.prompt).items():
                where = f"{'variants' if self.variants else 'prompt'}: {way.prompt.name}: property {name!r}"
                if not _PROPERTY.fullmatch(name):
                    raise ValueError(
                        f"{where} cannot end the name of a column; expected letters, digits and _, such as has_text"
                    )
                if name in COLUMNS:
                    raise ValueError(f"{where} would be column {self.output}_{name}, which every answer has; rename it")
                if kinds.setdefault(name, kind) != kind:
                    raise ValueError(f"{where} has another type than in an earlier variant; use one type")
        return self

    @staticmethod
    def _properties(prompt: Prompt) -> dict[str, pa.DataType]:
        """Property -> type of its column, for properties with a plain type."""
        found = {}
        for name, about in ((prompt.schema_of_answer() or {}).get("properties") or {}).items():
            given = about.get("type") if isinstance(about, dict) else None
            types = [one for one in (given if isinstance(given, list) else [given]) if one != "null"]
            if len(types) == 1 and types[0] in KINDS:
                found[name] = KINDS[types[0]]
        return found

    def _all_properties(self) -> dict[str, pa.DataType]:
        return {name: kind for way in self.ways() for name, kind in self._properties(way.prompt).items()}

    def schema(self) -> pa.Schema:
        whole = self.standard().set(0, pa.field(self.output, pa.string(), metadata={"of": "the answer as JSON"}))
        about = {"of": "the model's answer; null if it has none"}
        fields = [
            pa.field(f"{self.output}_{name}", kind, metadata=about) for name, kind in self._all_properties().items()
        ]
        return pa.schema([*whole, *fields])

    def columns_of(self, asked: Asked, answer: Answer) -> dict[str, Any]:
        value = answer.value if isinstance(answer.value, dict) else {}
        found = {name: _plain(value.get(name), kind) for name, kind in self._all_properties().items()}
        return super().columns_of(asked, answer) | {f"{self.output}_{name}": one for name, one in found.items()}


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A JSON value of its column's type: 3.0 is an integer in JSON schema, and a number may be too large (null)."""
    if value is None:
        return None
    if pa.types.is_integer(kind):
        return int(value) if abs(value) < 2**63 else None
    if pa.types.is_floating(kind):
        return float(value) if abs(value) <= sys.float_info.max else None
    return value
