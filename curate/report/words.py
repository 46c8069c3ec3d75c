"""Names for clusters: the words typical of their captions, next to the captions of the whole pool."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from curate.kernels.words import words

MIN_LIFT = 1.2
"""How much more often a cluster says a word than the pool does, for the word to be its name."""


def document_counts(texts: Iterable[str]) -> tuple[Counter[str], int]:
    """In how many of the texts each word occurs, and how many texts there are."""
    counts: Counter[str] = Counter()
    number = 0
    for text in texts:
        counts.update(set(words(text)))
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
