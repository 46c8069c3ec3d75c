from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.service.watch.tail import Position, parse, place

PLACES = st.builds(Position, st.integers(1, 999), st.integers(1, 999_999), st.integers(1, 10**6))


@given(PLACES)
def test_ids_are_read_back(at: Position) -> None:
    assert re.fullmatch(r"\d+:\d+", at.id)
    assert parse(at.id) == at
    assert place(at.attempt, at.within) == at


@given(PLACES, PLACES)
def test_ids_grow_from_attempt_to_attempt(first: Position, second: Position) -> None:
    def number(at: Position) -> tuple[int, int]:
        segment, _, line = at.id.partition(":")
        return int(segment), int(line)

    assert (first < second) == (number(first) < number(second))


@pytest.mark.parametrize(
    "text", [None, "", "null", "undefined", "3", "3:", ":3", "-1:2", "a:b", "1:2:3", "9" * 40 + ":1"]
)
def test_anything_else_is_not_a_place(text: str | None) -> None:
    assert parse(text) is None
