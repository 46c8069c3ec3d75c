from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.kernels.normal import LONG, normal_form

FORMS = st.sampled_from(["NFC", "NFKC", "NFD", "NFKD"])


@given(FORMS, st.text(st.characters()))
def test_short_texts(form: str, text: str) -> None:
    assert normal_form(form, text) == unicodedata.normalize(form, text)  # type: ignore[arg-type]


@given(FORMS, st.text(max_size=30), st.sampled_from(["cafe\u0301 ", "a\u0323\u0301 b", "語 か\u3099", "하\u11ab "]))
def test_long_texts_with_spaces(form: str, text: str, piece: str) -> None:
    whole = (text + piece) * (LONG // len(piece))
    assert normal_form(form, whole) == unicodedata.normalize(form, whole)  # type: ignore[arg-type]


@given(
    FORMS, st.lists(st.sampled_from("\u0f71\u0f72\u0f73\u0344\u0323\u0301a中ﾊ\uff9eﷺ가\u11a8"), min_size=1, max_size=5)
)
def test_long_texts_of_marks(form: str, signs: list[str]) -> None:
    whole = "".join(signs) * (2 * LONG // len(signs))
    assert normal_form(form, whole) == unicodedata.normalize(form, whole)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "piece",
    ["\u0f71\u0f72", "\u0301\u0323", "\u0323\u0301", "a\u0301\u0323\u0301", "ﷺ", "か\u3099", "\ud800"],
)
@pytest.mark.timeout(60)
def test_a_megabyte_is_linear(piece: str) -> None:
    """Takes a third of a second; `unicodedata.normalize` would take minutes and reach the time-out."""
    text = piece * (1_000_000 // len(piece.encode("utf-8", "surrogatepass")))
    assert len(normal_form("NFC", text)) <= len(text)
