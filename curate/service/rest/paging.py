"""Cursors: the sort key of the last item of a page, in base64. Rows that come or go move nothing, unlike offsets."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeVar

from curate.service.problems import InvalidProblem
from curate.service.shapes.common import Page, Shape

Key = str | int | float
T = TypeVar("T", bound=Shape)


def paged(items: Iterable[T], cursor: str | None, limit: int, *, newest: bool = False, **key: type) -> Page[T]:
    """A page of items that are all in memory. `key`: the fields that order them and tell them apart, with their types
    in a cursor; times are float. `newest`: in descending order. Raises InvalidProblem."""

    def place(item: T) -> tuple[Key, ...]:
        return tuple(_plain(getattr(item, field)) for field in key)

    ordered = sorted(items, key=place, reverse=newest)
    if cursor:
        after = decode(cursor, *key.values())
        ordered = [item for item in ordered if (place(item) < after if newest else place(item) > after)]
    return Page(items=ordered[:limit], next=encode(*place(ordered[limit - 1])) if len(ordered) > limit else None)


def _plain(value: Any) -> Key:
    return value.timestamp() if isinstance(value, datetime) else "" if value is None else value


def encode(*key: Key) -> str:
    return base64.urlsafe_b64encode(json.dumps(key, separators=(",", ":")).encode()).decode().rstrip("=")


def decode(cursor: str, *types: type) -> tuple[Any, ...]:
    """The key, whose parts have these types. Raises InvalidProblem."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        key = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        raise _invalid() from None
    if not isinstance(key, list) or len(key) != len(types):
        raise _invalid()
    return tuple(_part(value, expected) for value, expected in zip(key, types, strict=True))


def _part(value: Any, expected: type) -> Key:
    if expected is float and type(value) is int and abs(value) < 1 << 53:
        value = float(value)
    wrong = type(value) is not expected
    if isinstance(value, float):
        wrong |= not math.isfinite(value)
    elif isinstance(value, int):
        wrong |= abs(value) >= 1 << 63  # more than the databases hold
    elif isinstance(value, str):
        wrong |= not value.isprintable()
    if wrong or not isinstance(value, str | int | float):
        raise _invalid()
    return value


def _invalid() -> InvalidProblem:
    return InvalidProblem("cursor: not one of ours; use `next` of the page before, or leave it out")
