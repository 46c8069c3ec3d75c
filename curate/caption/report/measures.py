"""Measures of a set of texts: lengths, variety of words, repetition, and the words that distinguish two sets.

The number of distinct words or n-grams grows with the size of a set. So variety is measured within segments of 1,000
words and averaged over the segments: distinct words (the mean segmental type-token ratio, Johnson 1944), and the share
of distinct n-grams (distinct-n, Li et al. 2016, section 5.1). Repetition is as `caption.check` measures it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from curate.caption.checks.repetition import longest_loop, repeated_share
from curate.caption.checks.words import words_of

SEGMENT = 1000
"""Words of a segment."""
LOOP = 6
"""Words of the shortest loop that is counted."""
CONTENT = 4
"""Letters of the shortest word whose frequencies are compared: shorter ones are mostly articles and prepositions."""


@dataclass(frozen=True)
class Measures:
    """Figures of one set of texts. None: an empty set, or for variety fewer than 1,000 words."""

    texts: int
    lengths: NDArray[np.int64]
    """Words of each text (n,)."""
    characters: float | None
    """Mean."""
    types: float | None
    """Distinct words per 1,000 words."""
    distinct_2: float | None
    distinct_3: float | None
    repeated: float | None
    """Mean share of the characters in repeated n-grams."""
    loops: int
    """Texts with a loop."""
    with_word: Counter[str]
    """Word -> texts that contain it."""

    @classmethod
    def of(cls, texts: Iterable[str | None]) -> Self:
        """Nulls are left out."""
        known = [text for text in texts if text is not None]
        tokens = [words_of(text) for text in known]
        segments = list(_segments(tokens))
        return cls(
            texts=len(known),
            lengths=np.array([len(one) for one in tokens], dtype=np.int64),
            characters=_mean([len(text) for text in known]),
            types=_mean([SEGMENT * _distinct(one, 1) for one in segments]),
            distinct_2=_mean([_distinct(one, 2) for one in segments]),
            distinct_3=_mean([_distinct(one, 3) for one in segments]),
            repeated=_mean([repeated_share(one) for one in tokens]),
            loops=sum(longest_loop(one).words >= LOOP for one in tokens),
            with_word=Counter(word for one in tokens for word in set(one)),
        )

    @property
    def words(self) -> float | None:
        """Mean number of words."""
        return _mean(self.lengths)

    def quantile(self, share: float) -> float | None:
        """Quantile of the number of words."""
        return float(np.quantile(self.lengths, share)) if self.texts else None


def _segments(tokens: Iterable[Sequence[str]]) -> Iterable[list[Sequence[str]]]:
    """Whole segments of SEGMENT words: parts of texts, so that no n-gram spans two texts."""
    parts: list[Sequence[str]] = []
    held = 0
    for text in tokens:
        rest = text
        while held + len(rest) >= SEGMENT:
            cut = SEGMENT - held
            yield [*parts, rest[:cut]]
            parts, held, rest = [], 0, rest[cut:]
        parts.append(rest)
        held += len(rest)


def _distinct(parts: Iterable[Sequence[str]], size: int) -> float:
    """Share of distinct n-grams of `size` words."""
    grams = [tuple(part[start : start + size]) for part in parts for start in range(len(part) - size + 1)]
    return len(set(grams)) / len(grams) if grams else 0.0


def _mean(values: Sequence[float] | NDArray[np.int64]) -> float | None:
    return float(np.mean(values)) if len(values) else None


@dataclass(frozen=True)
class Shift:
    """Share of the texts with a word, before and after."""

    word: str
    before: float
    after: float


def shifts(before: Measures, after: Measures, count: int) -> tuple[list[Shift], list[Shift]]:
    """The words of CONTENT letters or more whose share of texts rose most and fell most, largest change first."""
    if not before.texts or not after.texts:
        return [], []
    found = [
        Shift(word, before.with_word[word] / before.texts, after.with_word[word] / after.texts)
        for word in before.with_word.keys() | after.with_word.keys()
        if len(word) >= CONTENT
    ]
    found.sort(key=lambda one: (one.before - one.after, one.word))
    risen = [one for one in found[:count] if one.after > one.before]
    fallen = [one for one in found[::-1][:count] if one.after < one.before]
    return risen, fallen
