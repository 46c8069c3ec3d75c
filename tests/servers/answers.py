"""What the scripted endpoint says: values for JSON schemas, damaged JSON, and answers to orders in the prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.servers.captions import digest, unit

WRAPPED = r"<<<data (?P<mark>[0-9a-f]{16})\n(?P<data>.*?)\n(?P=mark) data>>>"
"""How curate's prompts mark data (`curate.caption.untrusted`)."""

# --- JSON schemas -----------------------------------------------------------------------------------------------------


def value_of(schema: Mapping[str, Any], seed: object) -> Any:
    """A value that fits a JSON schema, by a hash."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][digest(seed, "enum") % len(schema["enum"])]
    for word in ("anyOf", "oneOf", "allOf"):
        if word in schema:
            return value_of(schema[word][0], seed)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return {name: value_of(part, (seed, name)) for name, part in schema.get("properties", {}).items()}
    if kind == "array":
        least = schema.get("minItems", 0)
        size = least + digest(seed, "size") % (min(schema.get("maxItems", least + 3), least + 3) - least + 1)
        return [value_of(schema.get("items", {}), (seed, n)) for n in range(size)]
    if kind in ("integer", "number"):
        return _number(schema, seed, whole=kind == "integer")
    return {"boolean": unit(seed, "yes") < 0.5, "null": None}.get(kind, _string(schema, seed))


def _number(schema: Mapping[str, Any], seed: object, whole: bool) -> float:
    low = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
    high = schema.get("maximum", max(low, schema.get("exclusiveMaximum", low + 11) - 1))
    return low + digest(seed, "number") % (high - low + 1) if whole else low + unit(seed, "number") * (high - low)


def _string(schema: Mapping[str, Any], seed: object) -> str:
    words = ["a", "quiet", "place", "with", "some", "light", "and", "many", "small", "things", "in", "it"]
    start = digest(seed, "words") % len(words)
    text = " ".join([*words[start:], *words[:start]][:5])
    return text.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength", 1000)]


def wrong_value_of(schema: Mapping[str, Any], seed: object) -> Any:
    """JSON that does not fit the schema."""
    value = value_of(schema, seed)
    if not isinstance(value, dict) or not value:
        return {"unexpected": value}
    name = sorted(value)[digest(seed, "wrong") % len(value)]
    changed: dict[str, Any] = {**value, name: {"nested": [value[name]]}}
    return changed if unit(seed, "missing") < 0.5 else {key: held for key, held in value.items() if key != name}


def schema_of(body: Mapping[str, Any], text: str) -> Any:
    """The schema that a request asks for: in its `response_format`, or written into the prompt. None: no schema."""
    asked = body.get("response_format") or {}
    if asked.get("type") == "json_schema":
        return asked["json_schema"]["schema"]
    for start in (match.start() for match in re.finditer(r"\{", text)):
        try:
            found, _ = json.JSONDecoder().raw_decode(text, start)
        except ValueError:
            continue
        if isinstance(found, dict) and "properties" in found and "type" in found:
            return found
    return None


def damaged(value: Any, seed: object) -> str:
    """JSON as models write it that nothing forces to: most of it can be repaired."""
    text = json.dumps(value)
    kinds = (
        f"```json\n{json.dumps(value, indent=2)}\n```",
        f"Sure, here is the JSON:\n\n{text}",
        f"{text}\n\nLet me know if you need anything else.",
        re.sub(r"\}$", ",}", text),
        text[:-1],
        repr(value),
        text.replace('"', "“", 1).replace('"', "”", 1),
    )
    return kinds[digest(seed, "damage") % len(kinds)]


# --- orders -----------------------------------------------------------------------------------------------------------


def obeyed(text: str, orders: Sequence[Mapping[str, str]], wrapped: str, share: float, seed: object) -> str | None:
    """What an order in the prompt makes the endpoint say; None if it finds no order, or does not follow it.

    orders: `find` (a regular expression) and `say` (which may refer to its groups). Outside of what `wrapped` matches
    an order is always followed, inside in `share` of cases."""
    outside = re.sub(wrapped, " ", text, flags=re.DOTALL) if wrapped else text
    for order in orders:
        if (found := re.search(order["find"], outside, re.DOTALL)) is not None:
            return found.expand(order["say"])
    if not wrapped or unit(seed, "obeys") >= share:
        return None
    for part in inside(text, wrapped):
        for order in orders:
            if (found := re.search(order["find"], part, re.DOTALL)) is not None:
                return found.expand(order["say"])
    return None


def inside(text: str, wrapped: str) -> list[str]:
    """The values between delimiters. Group `data` of `wrapped` (else the whole match) is JSON, or plain text."""
    if not wrapped:
        return []
    found = []
    for match in re.finditer(wrapped, text, re.DOTALL):
        data = match.groupdict().get("data") or match[0]
        try:
            found += list(_strings(json.loads(data)))
        except ValueError:
            found.append(data)
    return found


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)
