"""Questions of a prompt: each becomes a line of the request and a property of the JSON schema of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "yes_no": ("true or false", {"type": "boolean"}),
    "choice": ("", {"type": "string"}),
    "number": ("a number", {"type": "number"}),
    "text": ("a text", {"type": "string"}),
}


class Question(BaseModel):
    """A question, the name of its answer, and the type of the answer."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    question: str = Field(min_length=1)
    type: Literal["yes_no", "choice", "number", "text"] = "yes_no"
    choices: list[str] = []
    """What `choice` chooses from."""

    @model_validator(mode="after")
    def _choices_of_a_choice(self) -> Question:
        if (self.type == "choice") != bool(self.choices):
            need = "needs choices" if self.type == "choice" else "has no choices; use type: choice"
            raise ValueError(f"question {self.name!r} of type {self.type} {need}")
        if self.choices and (len(self.choices) < 2 or len(set(self.choices)) < len(self.choices)):
            raise ValueError(f"question {self.name!r}: expected two or more choices, all different")
        return self

    def line(self) -> str:
        kind = " or ".join([", ".join(self.choices[:-1]), self.choices[-1]]) if self.choices else _KINDS[self.type][0]
        return f"- {self.name} ({kind}): {self.question}"

    def property(self) -> dict[str, Any]:
        """JSON schema of the answer."""
        return _KINDS[self.type][1] | ({"enum": list(self.choices)} if self.choices else {})


def lines_of(questions: Sequence[Question]) -> str:
    return "\n".join(["Questions:", *(question.line() for question in questions)])


def schema_of(questions: Sequence[Question]) -> dict[str, Any]:
    """JSON schema of an object with all answers."""
    return {
        "type": "object",
        "properties": {question.name: question.property() for question in questions},
        "required": [question.name for question in questions],
        "additionalProperties": False,
    }
