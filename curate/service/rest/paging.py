"""Cursors: the sort key of the last item of a page, its texts in base64. Rows that come or go move nothing, unlike
offsets."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from curate.service.problems import InvalidProblem
from curate.service.shapes import Page, Shape

Key = str | int | float
T = TypeVar("T", bound=Shape)
_FORMS = {
    int: "-?[0-9]{1,18}",  # the databases hold 63 bits
    float: "-?[0-9]{1,17}(?:[.][0-9]{1,20})?(?:e-?[0-9]{1,2})?",
    str: "(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-]{2,3})?",
}


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


def page_of(rows: Sequence[Any], limit: int, shape: Callable[[Any], T], *key: str) -> Page[T]:
    """A page of rows that a query has chosen and ordered: one more than `limit` if there is a next page. `key`: the
    columns that order them."""
    next = encode(*(getattr(rows[limit - 1], name) for name in key)) if len(rows) > limit else None
    return Page(items=[shape(row) for row in rows[:limit]], next=next)


def _plain(value: Any) -> Key:
    return value.timestamp() if isinstance(value, datetime) else "" if value is None else value


def form(*types: type) -> str:
    """The regular expression of the cursors whose key has these types: `decode` takes every text of this form."""
    return "^" + "~".join(f"({_FORMS[one]})" for one in types) + "$"


def encode(*key: Key) -> str:
    return "~".join(map(_text, key))


def decode(cursor: str, *types: type) -> tuple[Any, ...]:
    """The key, whose parts have these types. Raises InvalidProblem."""
    found = re.fullmatch(form(*types), cursor)
    if found is None or cursor.endswith("\n"):
        raise InvalidProblem("cursor: not one of ours; use `next` of the page before, or leave it out")
    return tuple(_part(text, one) for text, one in zip(found.groups(), types, strict=True))


def _text(part: Key) -> str:
    if isinstance(part, str):
        return base64.urlsafe_b64encode(part.encode()).decode().rstrip("=")
    return repr(part).replace("e+", "e")


def _part(text: str, expected: type) -> Key:
    if expected is not str:
        value: Key = expected(text)
        return value
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    return data.decode("utf-8", "replace").replace("\0", "")  # which PostgreSQL does not take
