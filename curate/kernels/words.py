"""Words of captions, as names for clusters are made of them: the same for every stage that names something."""

from __future__ import annotations

import re

_WORD = re.compile(r"[^\W\d_]{3,24}")
_COMMON_TEXT = (
    "the and for with from that this are was were has have his her its not but you your our all one two any can into "
    "out over under about than then there their they them she who what when where which while will would also more "
    "most other some such only very been being der die das und mit von den dem ein eine ist auf für des les une est "
    "dans pour par sur avec aux los las una por para con del que nel della dei per com www http https html png jpg "
    "jpeg gif svg image images picture pictures photo"
)
_COMMON = frozenset(_COMMON_TEXT.split())
"""Words of several languages that name nothing, and what captions of the web say about themselves."""


def words(text: str) -> list[str]:
    """The words of a text in their order: 3 to 24 letters of any script, case-folded, without common ones."""
    return [word for word in _WORD.findall(text.casefold()) if word not in _COMMON]
