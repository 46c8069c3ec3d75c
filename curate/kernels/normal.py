"""Unicode normal forms in linear time, whatever the text.

`unicodedata.normalize` sorts runs of combining marks by insertion: a text made of them (half a megabyte of two that
stand in the wrong order) takes it many minutes. In long texts such runs are sorted before.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

LONG = 1000
_MARKS = re.compile(b"[^\0]{32,}+")
"""A long run of combining classes other than 0."""


def normal_form(form: Literal["NFC", "NFKC", "NFD", "NFKD"], text: str) -> str:
    """`unicodedata.normalize`, also of texts that are made to take long."""
    if text.isascii():
        return text
    if len(text) > LONG and not unicodedata.is_normalized(form, text):
        text = _ordered("NFKD" if form in ("NFKC", "NFKD") else "NFD", text)
    return unicodedata.normalize(form, text)


def _ordered(form: Literal["NFD", "NFKD"], text: str) -> str:
    """Characters taken apart, long runs of marks in canonical order (the Unicode Standard, D109: a stable sort)."""
    apart = text.translate({ord(sign): unicodedata.normalize(form, sign) for sign in set(text) if not sign.isascii()})
    classes = bytes(map(unicodedata.combining, apart))
    pieces, end = [], 0
    for run in _MARKS.finditer(classes):
        marks = sorted(apart[run.start() : run.end()], key=unicodedata.combining)
        pieces += [apart[end : run.start()], *marks]
        end = run.end()
    return "".join([*pieces, apart[end:]])
