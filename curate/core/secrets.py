"""Secrets: parameters of which a workspace, a log or a message only ever holds where the value is to be found.

A recipe gives a reference, `env:NAME` or `file:PATH`. The value is read by the worker that needs it, which must have
the variable or the file; it is never forwarded, stored or shown.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

from curate.core.errors import PreflightError

KINDS = ("env:", "file:")


def is_reference(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(KINDS) and len(value) > len(value.split(":")[0]) + 1


class Secret:
    """A reference to a secret: `api_key: Secret = Secret("env:API_KEY")`. Only `value()` has the secret itself."""

    __slots__ = ("reference",)

    def __init__(self, reference: str) -> None:
        if not is_reference(reference):  # the message must not repeat it: it may be the secret itself
            raise ValueError("expected a reference to a secret, env:NAME or file:PATH, not the secret itself")
        self.reference = reference

    def value(self) -> str:
        """The secret, read here and now. Raises PreflightError where it is not set."""
        kind, _, name = self.reference.partition(":")
        try:
            found = os.environ[name] if kind == "env" else Path(name).read_text(encoding="utf-8").strip()
        except (KeyError, OSError, UnicodeDecodeError):
            found = ""
        if not found:
            what = f"the environment variable {name}" if kind == "env" else f"the file {name}"
            raise PreflightError(
                f"{self.reference}: {what} is missing or empty; set it on every machine that runs tasks"
            )
        return found

    def problem(self) -> str | None:
        """Why `value` would fail, in a line; None where it would not."""
        try:
            self.value()
        except PreflightError as error:
            return str(error)
        return None

    def __repr__(self) -> str:
        return f"Secret({self.reference!r})"

    def __str__(self) -> str:
        return self.reference

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.reference == self.reference

    def __hash__(self) -> int:
        return hash(self.reference)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def made(value: Any) -> Secret:
            if isinstance(value, Secret):
                return value
            return cls(value if isinstance(value, str) else "")

        return core_schema.no_info_plain_validator_function(
            made,
            serialization=core_schema.plain_serializer_function_ser_schema(str, return_schema=core_schema.str_schema()),
            json_schema_input_schema=core_schema.str_schema(pattern=r"^(env|file):.+"),
        )
