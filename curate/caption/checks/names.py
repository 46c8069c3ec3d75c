"""Numbers and capitalised words of a text that occur in no context: names that the model may have invented.

An image shows names too, so that for a caption of an image the count only says how much rests on the model alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from curate.caption.checks.words import plain, words_of
from curate.kernels.sentences import split_sentences

_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*+")
_OWN = re.compile(r"['’]s$")
_NUMBERS = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty
"""
_NOT_NAMES = "i i'm i'd i'll i've ok tv dvd cd usb led lcd pdf 3d 2d 4k hd uk us usa diy"
NUMBER_WORDS = {word: str(number) for number, word in enumerate(_NUMBERS.split())}
NOT_NAMES = frozenset(_NOT_NAMES.split())
"""Capitalised words that are not names."""
TITLE_WORDS = 4
"""Words with a capital in the middle of sentences from which a text may be in title case."""
TITLE_SHARE = 0.6


def numbers_of(text: str) -> set[str]:
    """Numbers in digits, without separators of thousands and without zeros at the ends of fractions."""
    return {_number(match.group()) for match in _NUMBER.finditer(plain(text))}


def _number(text: str) -> str:
    text = "".join(str(unicodedata.decimal(sign, sign)) for sign in text)  # ٣ and ३ are 3
    whole = re.sub(r",(?=\d{3}(?!\d))", "", text)
    return whole.rstrip("0").rstrip(".") if whole.count(".") == 1 else whole


def names_of(text: str) -> list[str]:
    """Capitalised words, case-folded, except those that begin a sentence; none for a text in title case or upper case,
    where capitals say nothing."""
    capital, others = [], 0
    for sentence in split_sentences(text):
        for place, word in enumerate(_WORD.findall(plain(sentence))):
            if not word[0].isalpha():
                continue
            if place and word[0].isupper():
                capital.append(_OWN.sub("", word).casefold())
            elif place:
                others += 1
    if len(capital) >= TITLE_WORDS and len(capital) >= TITLE_SHARE * (len(capital) + others):
        return []
    return [word for word in capital if word not in NOT_NAMES]


class Known:
    """The words and numbers of some contexts."""

    def __init__(self, contexts: Iterable[str]) -> None:
        texts = list(contexts)
        self.words = {_OWN.sub("", word) for text in texts for word in words_of(text)}
        self.numbers = {number for text in texts for number in numbers_of(text)}
        self.numbers |= {NUMBER_WORDS[word] for word in self.words & NUMBER_WORDS.keys()}

    def unknown_names(self, text: str) -> list[str]:
        """Names of a text (see `names_of`) that no context has."""
        return sorted({word for word in names_of(text) if word not in self.words})

    def unknown_numbers(self, text: str) -> list[str]:
        """Numbers of a text that no context has, in digits or as a word."""
        return sorted(numbers_of(text) - self.numbers)
