"""Secrets: parameters whose values never appear in a workspace, a log or a message.

A recipe has a reference, `env:NAME` or `file:PATH`. The process that needs the value reads it, so its machine must have
the variable or the file. The value is never forwarded, stored or shown.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin
from urllib.parse import quote, quote_plus

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import core_schema

from curate.core.errors import PreflightError

REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:[^\s\x00-\x1f][^\x00-\x1f]*")
FORWARDED = "CURATE_"
"""Prefix of variables that the driver forwards to workers through the scheduler, which stores them."""
SHORTEST_ENCODED = 8
"""Least length of an encoded secret to search for: shorter ones would match by chance."""

_read: dict[str, str] = {}
"""Every secret that this process has read -> its reference. `redact` removes these."""

E = TypeVar("E", bound=BaseException)


def is_reference(value: Any) -> bool:
    return isinstance(value, str) and REFERENCE.fullmatch(value) is not None


class Secret:
    """A reference to a secret: `api_key: Secret = Secret("env:API_KEY")`. Only `value()` returns the secret itself."""

    __slots__ = ("reference",)

    def __init__(self, reference: str) -> None:
        if not is_reference(reference):  # the message must not repeat the value, which may be the secret itself
            raise ValueError("expected a reference to a secret, env:NAME or file:PATH, not the secret itself")
        if reference.startswith(f"env:{FORWARDED}"):
            raise ValueError(f"variables named {FORWARDED}… are forwarded to workers in clear; choose another name")
        self.reference = reference

    def value(self) -> str:
        """Read the secret. Raises PreflightError if it is not set."""
        value, problem = self._look()
        if problem:
            raise PreflightError(problem)
        _read[value] = self.reference
        return value

    def problem(self) -> str | None:
        """The error of `value` in this process, in one line; None if it would succeed."""
        return self._look()[1]

    def _look(self) -> tuple[str, str | None]:
        """(value, problem). Catches all exceptions, because that of a wrong encoding contains the file's bytes."""
        kind, _, name = self.reference.partition(":")
        found, wrong = "", ""
        try:
            found = os.environ[name] if kind == "env" else Path(name).read_text(encoding="utf-8").strip()
        except KeyError:
            wrong = "is not set"
        except OSError as error:
            wrong = f"cannot be read ({error.strerror})"
        except UnicodeDecodeError:
            wrong = "is not UTF-8 text"
        if not found.strip():
            what = "environment variable" if kind == "env" else "file"
            wrong = f"the {what} {wrong or 'is empty'}; every machine that runs this stage needs it"
            return "", f"{self.reference}: {wrong}"
        return found, None

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
        def validate(value: Any) -> Secret:
            if isinstance(value, Secret):
                return value
            return cls(value if isinstance(value, str) else "")

        return core_schema.no_info_plain_validator_function(
            validate,
            serialization=core_schema.plain_serializer_function_ser_schema(str, return_schema=core_schema.str_schema()),
            json_schema_input_schema=core_schema.str_schema(pattern=f"^({REFERENCE.pattern})$"),
        )


# --- types that contain secrets ---------------------------------------------------------------------------------------


def is_secret(annotation: Any) -> bool:
    """Whether a type is `Secret` or `Secret | None`."""
    if get_origin(annotation) is Annotated:
        return is_secret(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [part for part in get_args(annotation) if part is not type(None)]
        return len(parts) == 1 and is_secret(parts[0])
    return isinstance(annotation, type) and issubclass(annotation, Secret)


def holds_secret(annotation: Any) -> bool:
    """Whether a type contains a Secret: in a container, in a union, or in a field of a pydantic model."""
    found = [annotation]
    for part in found:
        if isinstance(part, type) and issubclass(part, BaseModel):
            inside = [info.annotation for info in part.model_fields.values()]
        else:
            inside = list(get_args(part))
        found += [one for one in inside if one not in found]
    return any(is_secret(part) for part in found)


def references(value: Any) -> Iterator[str]:
    """References to secrets in a parameter's value. `file://` begins a URL, not a reference."""
    if isinstance(value, Secret):
        yield value.reference
    elif isinstance(value, str):
        if is_reference(value) and not value.startswith("file://"):
            yield value
    elif isinstance(value, BaseModel):
        yield from references(vars(value))
    elif isinstance(value, Mapping):
        yield from references([*value, *value.values()])
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from references(item)


# --- messages of other libraries --------------------------------------------------------------------------------------


def redact(text: str, secrets: Iterable[Secret] = ()) -> str:
    """The text without these secrets and all that this process has read, in their usual encodings too."""
    known = {secret._look()[0]: secret.reference for secret in secrets} | _read
    for value in filter(None, known):
        for form in sorted(_forms(value), key=len, reverse=True):
            text = text.replace(form, f"[{known[value]}]")
    return text


def redacted(error: E) -> E:
    """Remove secrets from an exception and its causes, in place, because callers use its type and attributes."""
    chain: list[BaseException] = [error] if _read else []
    for link in chain:
        inner = [link.__cause__, link.__context__]
        chain += [one for one in inner if one is not None and not any(one is known for known in chain)]
    for link in chain:
        link.args = tuple(_without(link.args))
        vars(link).update(zip(vars(link), list(_without(vars(link).values())), strict=True))
    for link in chain:  # an exception may build its text from attributes that cannot be set
        if link.__cause__ is not None and _leaks(str(link.__cause__)):
            link.__cause__ = None
        if link.__context__ is not None and _leaks(str(link.__context__)):
            link.__context__ = None
    return error


def _without(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, str):
            yield redact(value)
        else:
            yield redact(repr(value)) if _leaks(repr(value)) else value


def _leaks(text: str) -> bool:
    return redact(text) != text


def _forms(value: str) -> set[str]:
    """Forms of a secret in messages: unchanged, quoted, escaped, in hex, within base64."""
    lines = " ".join(value.split())
    quoted = {quote(value), quote(value, safe=""), quote_plus(value), html.escape(value)}
    quoted |= {repr(value)[1:-1], json.dumps(value)[1:-1]}
    data = value.encode("utf-8", "surrogateescape")
    encoded = {data.hex(), data.hex().upper()}
    for before in range(3):  # bytes before the secret in its first group of three
        text = base64.b64encode(bytes(before) + data).decode().rstrip("=")
        inside = text[(before * 8 + 5) // 6 : (before + len(data)) * 8 // 6]
        encoded |= {inside, inside.replace("+", "-").replace("/", "_")}
    return {value, lines, *quoted, *(form for form in encoded if len(form) >= SHORTEST_ENCODED)}
