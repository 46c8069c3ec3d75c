"""Unicode normal forms in linear time, for any text.

`unicodedata.normalize` sorts runs of combining marks by insertion: half a megabyte of alternating marks takes it many
minutes. In long texts, `normal_form` sorts such runs itself.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

LONG = 1000
_MARKS = re.compile(b"[^\0]{32,}+")
"""A long run of combining classes other than 0."""


def normal_form(form: Literal["NFC", "NFKC", "NFD", "NFKD"], text: str) -> str:
    """`unicodedata.normalize` in linear time, also for adversarial texts."""
    if text.isascii():
        return text
    if len(text) > LONG and not unicodedata.is_normalized(form, text):
        text = _ordered("NFKD" if form in ("NFKC", "NFKD") else "NFD", text)
    return unicodedata.normalize(form, text)


def _ordered(form: Literal["NFD", "NFKD"], text: str) -> str:
    """The decomposed text with long runs of marks in canonical order (the Unicode Standard, D109: a stable sort)."""
    apart = text.translate({ord(sign): unicodedata.normalize(form, sign) for sign in set(text) if not sign.isascii()})
    classes = bytes(map(unicodedata.combining, apart))
    pieces, end = [], 0
    for run in _MARKS.finditer(classes):
        marks = sorted(apart[run.start() : run.end()], key=unicodedata.combining)
        pieces += [apart[end : run.start()], *marks]
        end = run.end()
    return "".join([*pieces, apart[end:]])
