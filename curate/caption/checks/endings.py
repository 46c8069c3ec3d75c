"""Whether a text ends in the middle of a sentence."""

from __future__ import annotations

import re

from curate.kernels.sentences import split_sentences

_ENDS = re.compile(r"[.!?…。｡．！？؟۔।॥։።။។][\"'”’»」』）)\]*_`]*+$")
_TAIL = re.compile(r"(?:(?<!\S)([^\W\d_]+)|([,;:(\[{–—&+-]))$")


def _words(lines: str) -> frozenset[str]:
    return frozenset(lines.split())


_DANGLING = _words("""
    a an the and or nor but of to in on at by for from with without into onto upon over under between among through
    is are was were be been being has have had its their his our your this these those that which who whose while as
    if than because where when
    der die das ein eine und oder mit von im le la les un une des du et ou avec dans sur el los las una y o de con en
    os as um uma e do da em il lo gli di
""")
"""Words that do not end a phrase, in the languages of most captions."""
_LAST_PART = 20_000
"""Characters of the end of the text that are read."""


def breaks_off(text: str) -> bool:
    """Whether the text ends with a comma, an open bracket or a word that ends no phrase, such as "the". A capital
    makes it a name: "vitamin A", "The Who"."""
    text = text.rstrip()[-_LAST_PART:]
    if not text or _ENDS.search(text):
        return False
    tail = _TAIL.search(text)
    dangles = bool(tail and (tail[2] or (tail[1].lower() in _DANGLING and (tail[1].islower() or text.isupper()))))
    return dangles or text.count("(") > text.count(")")


def lacks_end(text: str) -> bool:
    """Whether the last sentence has no end although an earlier one has. A text of one sentence, or a title, needs
    none."""
    text = text.rstrip()[-_LAST_PART:]
    return not _ENDS.search(text) and any(_ENDS.search(sentence) for sentence in split_sentences(text)[:-1])
