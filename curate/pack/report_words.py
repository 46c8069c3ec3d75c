"""Names for clusters: the words typical of their captions, next to the captions of the whole pool."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

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
MIN_LIFT = 1.2
"""How much more often a cluster says a word than the pool does, for the word to be its name."""


def words(text: str) -> set[str]:
    """The distinct words of a text, of 3 to 24 letters of any script, case-folded."""
    return set(_WORD.findall(text.casefold())) - _COMMON


def document_counts(texts: Iterable[str]) -> tuple[Counter[str], int]:
    """In how many of the texts each word occurs, and how many texts there are."""
    counts: Counter[str] = Counter()
    number = 0
    for text in texts:
        counts.update(words(text))
        number += 1
    return counts, number


def typical_words(texts: Sequence[str], background: Counter[str], number: int, count: int = 3) -> list[str]:
    """The `count` words that tell a cluster's texts from `number` background texts with those document counts.

    Score: p log(p / q), a word's term in the Kullback-Leibler divergence between its share of the cluster's texts (p)
    and of the background's (q, one added to each count). A name occurs in at least two of the texts, in a tenth of
    them, and MIN_LIFT times as often as in the background; the beginning of another name says nothing new.
    """
    found, size = document_counts(texts)
    scored = []
    for word, times in found.items():
        if times < max(2, size / 10):
            continue
        share = times / size
        lift = share * (number + 2) / (background[word] + 1)
        if lift > MIN_LIFT:
            scored.append((-share * math.log(lift), word))
    chosen: list[str] = []
    for _, word in sorted(scored):
        if not any(word.startswith(other) or other.startswith(word) for other in chosen):
            chosen.append(word)
        if len(chosen) == count:
            break
    return chosen
