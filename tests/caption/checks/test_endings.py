from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.caption.checks.endings import breaks_off, lacks_end


@pytest.mark.parametrize(
    "text",
    [
        "A dog on the",
        "A dog, a cat,",
        "A dog (brown",
        "A dog and",
        "Ein Hund mit",
        "Un chien dans le",
        "A dog –",
        "a",
        "A DOG ON THE",
    ],
)
def test_a_text_that_breaks_off(text: str) -> None:
    assert breaks_off(text)


@pytest.mark.parametrize(
    "text",
    [
        "A dog",
        "A dog on a sofa.",
        "A bottle of vitamin A",
        "A concert by The Who",
        'It says "Stop!"',
        "A dog (brown)",
        "狗。",
        "visit shop.com",
        "",
        " ",
        "5 / 7",
        "Is it?",
    ],
)
def test_a_text_that_is_complete(text: str) -> None:
    assert not breaks_off(text) and not lacks_end(text)


def test_a_last_sentence_without_an_end() -> None:
    assert lacks_end("A dog sits on a sofa. It looks at a")
    assert lacks_end("A dog sits on a sofa. It looks happy")
    assert not lacks_end("A dog sits on a sofa. It looks happy.")
    assert not lacks_end("Mr. Smith on a sofa")


@given(st.text())
def test_an_end_completes_any_text(text: str) -> None:
    assert not breaks_off(f"{text}.") and not lacks_end(f"{text}.")
