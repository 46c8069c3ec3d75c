"""Ids of events on a run's stream: `<segment>:<line>` of the attempt's log, with the segments of attempt n counted from
(n - 1) * 1,000,000 + 1, so that ids grow from attempt to attempt."""

from __future__ import annotations

import re
from typing import NamedTuple

SEGMENTS = 1_000_000
"""More than an attempt has: a run of a day writes about 1,500."""
FORM = "([0-9]{1,15}):([0-9]{1,9})"


class Place(NamedTuple):
    """Place of an event; places are ordered."""

    attempt: int
    segment: int
    line: int

    @property
    def id(self) -> str:
        return f"{(self.attempt - 1) * SEGMENTS + self.segment}:{self.line}"

    @property
    def within(self) -> str:
        """The id within its attempt, which the engine uses."""
        return f"{self.segment}:{self.line}"


def place(attempt: int, within: str) -> Place:
    segment, _, line = within.partition(":")
    return Place(attempt, int(segment), int(line))


def parse(text: str | None) -> Place | None:
    """The place of an id; None for anything else, because browsers send back whatever they were given once."""
    found = re.fullmatch(FORM, (text or "").strip())
    if found is None:
        return None
    attempt, segment = divmod(int(found[1]), SEGMENTS)
    return Place(attempt + 1, segment, int(found[2]))
