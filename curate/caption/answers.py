"""Answers in JSON: read from a model's text, repaired if they are nearly JSON, and checked against a schema."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

LONGEST = 1 << 16
"""Characters above which a text is not repaired."""
LITERALS = {
    "True": "true",
    "False": "false",
    "None": "null",
    "yes": "true",
    "no": "false",
    "Yes": "true",
    "No": "false",
}
STRAIGHT = str.maketrans("“”„‟’‘", '""""\'\'')
_TOKENS = re.compile(
    r'"(?:[^"\\]|\\.)*"'  # a JSON string
    r"|(?P<single>'(?:[^'\\]|\\.)*')(?=\s*[:,}\]])"
    r"|(?P<word>\b(?:True|False|None|yes|no|Yes|No)\b)"
    r"|(?P<comma>,)(?=\s*[}\]])"
    r"|(?P<name>\b[A-Za-z_][A-Za-z0-9_]*)(?=\s*:)",
    re.DOTALL,
)


def parsed(text: str) -> Any:
    """The value of a JSON text. Raises ValueError, also for NaN and infinities, and for lone surrogates."""
    value = json.loads(text, parse_constant=_reject, parse_float=_finite)
    return _storable(value) if "\\u" in text else value


def repaired(text: str) -> Any:
    """The object in a text that is nearly JSON: in a code block or between sentences, with Python's literals, other
    quotes, names without quotes, a comma too many, or without the last brace. Raises ValueError for anything else;
    values that are missing are not made up."""
    start = text.find("{")
    if start < 0 or len(text) > LONGEST:
        raise ValueError("it has no object")
    inside = text[start:].rstrip("` \n")
    for candidate in (inside, inside.translate(STRAIGHT)):
        for tried in (candidate, fixed := _TOKENS.sub(_repair, candidate), f"{fixed}}}"):
            with suppress(ValueError):
                return _first(tried)
    raise ValueError("it cannot be repaired")


def _first(text: str) -> Any:
    """The value at the beginning of a text, whatever follows."""
    return _storable(json.JSONDecoder(parse_constant=_reject, parse_float=_finite).raw_decode(text)[0])


def _repair(token: re.Match[str]) -> str:
    if token["single"]:
        return json.dumps(token["single"][1:-1].replace("\\'", "'"))
    if token["word"]:
        return LITERALS[token["word"]]
    if token["comma"]:
        return ""
    if token["name"]:
        return f'"{token["name"]}"'
    return token[0].replace("\n", "\\n").replace("\t", "\\t")


def _reject(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _reject(digits)


def _storable(value: Any) -> Any:
    """The value, if UTF-8 can encode its texts: JSON may have an escape of half a character."""
    json.dumps(value, ensure_ascii=False).encode()
    return value


def problem_of(value: Any, schema: Mapping[str, Any]) -> str:
    """Why a value does not fit a schema, in one line; empty if it does."""
    errors = _validator(json.dumps(schema, sort_keys=True)).iter_errors(value)
    first = min(errors, key=lambda error: (len(error.absolute_path), str(error.absolute_path)), default=None)
    if first is None:
        return ""
    place = ".".join(map(str, first.absolute_path))
    text = " ".join(first.message.split())
    return f"{place + ': ' if place else ''}{text if len(text) <= 300 else text[:299] + '…'}"


@lru_cache(maxsize=64)
def _validator(schema: str) -> Draft202012Validator:
    from jsonschema import Draft202012Validator  # takes 0.1 s

    return Draft202012Validator(json.loads(schema))


def read_answer(text: str, schema: Mapping[str, Any], repair: bool = True) -> tuple[Any, str]:
    """(value of an answer, why it does not fit the schema; empty if it does). Text that is not JSON is repaired."""
    try:
        try:
            value = parsed(text)
        except ValueError:
            if not repair:
                raise
            value = repaired(text)
    except (ValueError, RecursionError) as error:
        return None, f"not JSON ({error})" if isinstance(error, ValueError) else "nested too deeply"
    return value, problem_of(value, schema)
