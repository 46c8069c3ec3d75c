from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.caption.checks.words import LONGEST_WORD, is_blank, tokens_of, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A dog's Ball, 3 balls!", ["a", "dog's", "ball", "3", "balls"]),
        ("Ｆｕｌｌ width", ["full", "width"]),
        ("猫とdog", ["猫", "と", "dog"]),
        ("ÉTÉ e\u0301te\u0301", ["été", "été"]),
        ("नमस्ते दुनिया", ["नमसत", "दनय"]),
        ("in\u200bvisible snake_case", ["invisible", "snake", "case"]),
        ("", []),
        ("…!?", []),
    ],
)
def test_words_of_a_text(text: str, words: list[str]) -> None:
    assert words_of(text) == words


@pytest.mark.parametrize("text", ["", " \n\t", "\u3000", "\u200b\ufeff", "\x00", "\u202e \u200f"])
def test_a_text_that_shows_nothing_is_blank(text: str) -> None:
    assert is_blank(text)
    assert not is_blank(f"{text}.") and not is_blank(f"🐶{text}")


def test_signs_are_tokens_too() -> None:
    assert tokens_of("Hi: <a_b>") == ["hi", ":", "<", "a", "_", "b", ">"]


def test_a_long_run_of_letters_is_read_by_character() -> None:
    assert words_of("ha" * LONGEST_WORD) == ["h", "a"] * LONGEST_WORD
    assert words_of("a" * LONGEST_WORD) == ["a" * LONGEST_WORD]


@given(st.text(), st.text())
def test_a_text_has_the_words_of_its_lines(one: str, other: str) -> None:
    assert words_of(f"{one}\n{other}") == words_of(one) + words_of(other)
    assert [token for token in tokens_of(one) if token[0].isalnum()] == words_of(one)
