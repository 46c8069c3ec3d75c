from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.service.problems import InvalidProblem
from curate.service.rest.paging import decode, encode


@settings(max_examples=30)
@given(st.floats(allow_nan=False, allow_infinity=False), st.text("aZ09-._ü"), st.integers(-(2**62), 2**62))
def test_a_cursor_is_read_back(time: float, name: str, number: int) -> None:
    assert decode(encode(time, name, number), float, str, int) == (time, name, number)


def forged(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "cursor",
    [
        "", "x", "%%%", "ü", "\0", forged("[1"), forged("{}"), forged('[1,"a"]'), forged('["1","a",1]'),
        forged('[1,"a",true]'),
        forged('[NaN,"a",1]'), forged('[1,"a\\u0000",1]'), forged('[1,"a",9223372036854775808]'),
        forged('[1,"a",1.5]'), forged("[" * 5000),
    ],
)  # fmt: skip
def test_a_cursor_that_is_not_ours_is_rejected(cursor: str) -> None:
    with pytest.raises(InvalidProblem, match="cursor: not one of ours"):
        decode(cursor, float, str, int)
