from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.caption.checks.names import Known, names_of, numbers_of


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1,000 dogs", {"1000"}),
        ("3.50 or 3.5", {"3.5"}),
        ("in 1999, 12:30", {"1999", "12:30"}),
        ("１２ cats", {"12"}),
        ("two dogs", set()),
        ("2.0", {"2"}),
        ("10", {"10"}),
        ("٣ كلاب", {"3"}),
        ("१९ आम", {"19"}),
    ],
)
def test_numbers(text: str, numbers: set[str]) -> None:
    assert numbers_of(text) == numbers


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("A dog in Paris. Anna's cat sleeps near Tom's hat.", ["paris", "tom"]),
        ("A Photo Of A Dog In Paris", []),  # title case
        ("THE BIG DOG IS HERE NOW", []),
        ("A woman and I watch TV", []),
        ("In Paris", ["paris"]),
        ("", []),
    ],
)
def test_names(text: str, names: list[str]) -> None:
    assert names_of(text) == names


def test_names_and_numbers_that_no_context_has() -> None:
    known = Known(["Eiffel tower, PARIS 1889", "three visitors"])
    text = "A view of Paris with the Eiffel Tower, seen by 3 visitors and Marie in 1889 or 1900."
    assert known.unknown_names(text) == ["marie"]
    assert known.unknown_numbers(text) == ["1900"]


@given(st.text())
def test_a_text_is_known_to_itself(text: str) -> None:
    known = Known([text])
    assert known.unknown_names(text) == [] and known.unknown_numbers(text) == []
