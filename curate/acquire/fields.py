"""Turns the fields of a source into a caption and JSON-able metadata, with all strings encodable as UTF-8."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from curate.acquire.values import UNREADABLE
from curate.core.errors import Reject

CAPTION_FIELDS = ("caption", "text", "title", "alt_text", "alt", "description")
"""Usual caption fields, in order of preference, for recipes that name none."""
MAX_TEXT_BYTES = 16 << 20
"""Larger captions and metadata of a sample are rejected unread."""
DEEP = 100
"""Most levels of objects and lists in metadata: readers of what is packed give up at about 1,000."""

REASONS = {
    "caption_not_utf8": "the caption's bytes are not UTF-8; the image is kept in the shard",
    "bad_metadata": "the sample's metadata cannot be read (invalid JSON, over 100 levels of it, a wrong number of "
    "fields, over 16 MiB)",
}
"""Reasons that captions and metadata give, with their meaning."""


def decode_caption(data: bytes) -> str | None:
    """Stripped text of UTF-8 bytes, with or without a byte order mark; None if empty. Raises Reject."""
    try:
        return data.decode("utf-8-sig").strip() or None
    except UnicodeDecodeError as error:
        raise Reject("caption_not_utf8", str(error)) from None


def decode_object(data: bytes) -> dict[str, Any]:
    """A JSON object as JSON-able fields; any other JSON value as the field `json`. Raises Reject."""
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise Reject("bad_metadata", str(error)) from None
    return plain(value) if isinstance(value, dict) else {"json": plain(value)}


def split_caption(fields: Mapping[str, Any], name: str | None) -> tuple[str | None, dict[str, Any]]:
    """(caption, other fields). The caption is the field `name`, or the first of CAPTION_FIELDS with text.

    If the field is a list of captions, the first is used, and the list stays in the other fields.
    """
    for candidate in (name,) if name else CAPTION_FIELDS:
        value = fields.get(candidate)
        if isinstance(value, list):
            first = next((item for item in value if isinstance(item, str) and item.strip()), None)
            if first is not None:
                return first.strip(), dict(fields)
        elif value is not None and not isinstance(value, dict) and (text := str(value).strip()):
            return text, {key: item for key, item in fields.items() if key != candidate}
    return None, dict(fields)


def plain(value: Any, levels: int = DEEP) -> Any:
    """A value of JSON or Arrow, made JSON-able and encodable as UTF-8: NaN and infinities become null, times ISO 8601,
    unpaired surrogates U+FFFD, integers of more than 64 bits text. Bytes are dropped from objects and null elsewhere.
    Raises Reject if it has more `levels`, or holds UNREADABLE."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 64 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping | list | tuple) and not levels:
        raise Reject("bad_metadata", f"more than {DEEP} levels of objects and lists")
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item, levels - 1) for key, item in value.items() if not isinstance(item, bytes)}
    if isinstance(value, list | tuple):
        return [plain(item, levels - 1) for item in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if value is UNREADABLE:
        raise Reject("bad_metadata", "a value that is not UTF-8")
    return str(value) if isinstance(value, Decimal) else None


def decode_label(data: bytes) -> int | str | None:
    """Content of a `.cls` member: an integer if it is one, otherwise text."""
    text = data.decode("utf-8", "replace").strip()
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text or None
