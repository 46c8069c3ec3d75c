from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.caption.untrusted.language import differs, is_backwards, language_of, script_of
from tests.caption.untrusted import captions

PROMPT = "Describe this image in one or two sentences, at most forty words."
ENGLISH = (
    "A brown dog sits on a sofa.",
    "Red bicycle, wooden bench",
    "A photo of La Casa de Papel on a screen",
    "The mayor of Rio de Janeiro with a trophy",
    "A plate of huevos rancheros",
    "OPEN",
    "42",
)


@pytest.mark.parametrize("code", captions.FOREIGN)
def test_captions_in_other_languages_differ_from_an_english_prompt(code: str) -> None:
    english = language_of(PROMPT)
    assert english == "english"
    assert all(differs(text, english) for text in captions.FOREIGN[code])


@pytest.mark.parametrize("text", ENGLISH)
def test_captions_in_english_do_not(text: str) -> None:
    assert not differs(text, "english")


def test_the_language_of_the_prompt_counts() -> None:
    spanish = language_of("Describe esta imagen en una o dos frases, con un máximo de cuarenta palabras.")
    assert spanish == "spanish"
    assert not differs(captions.FOREIGN["es"][0], spanish)
    assert differs("A brown dog sits on a sofa near the window.", spanish)
    chinese = language_of("用一句话描述这张图片。")
    assert chinese == "han"
    assert not differs(captions.FOREIGN["zh"][0], chinese)
    assert not differs("A brown dog sits on a sofa near the window.", chinese)  # models answer in English by default


def test_scripts() -> None:
    assert script_of("犬がいます") == "kana"
    assert script_of("12 !") == ""


def test_text_written_backwards() -> None:
    assert is_backwards("A dog sits on the sofa with a cat"[::-1])
    assert not is_backwards("A dog sits on the sofa with a cat")


@given(st.text())
def test_a_text_does_not_differ_from_its_own_language(text: str) -> None:
    assert not differs(text, language_of(text)) or language_of(text) == "roman"
