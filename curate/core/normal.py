"""Unicode normal forms in linear time, whatever the text.

`unicodedata.normalize` sorts runs of combining marks by insertion: a text made of them (half a megabyte of two that
stand in the wrong order) takes it many minutes. Long texts are normalised in pieces instead.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

LONG = 1000
_PIECE = re.compile("[\x00-\x7f]*+[^\x00-\x7f]{0,256}+[\u0300-\u036f\u3099\u309a]{0,64}+", re.S)
"""Ends before an ASCII character, which nothing before it composes with; within very long stretches of others, after
their next marks."""


def normal_form(form: Literal["NFC", "NFKC", "NFD", "NFKD"], text: str) -> str:
    """`unicodedata.normalize`; texts of over 1,000 characters may differ from it after each 256 others than ASCII."""
    if text.isascii():
        return text
    if len(text) <= LONG or unicodedata.is_normalized(form, text):
        return unicodedata.normalize(form, text)
    return "".join(unicodedata.normalize(form, piece) for piece in _PIECE.findall(text))
