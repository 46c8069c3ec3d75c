"""How repetitive a text is. All scores are linear in the length of the text.

- The longest loop: a unit of words that follows itself at once, "a red car, a red car, a red car". It is the usual form
  of a language model's degeneration (Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration").
- Repeated n-grams: the share of characters in n-grams of words that occurred before (Rae et al. 2021, "Scaling Language
  Models: Methods, Analysis & Insights from Training Gopher", table A1: duplicate n-grams).
- The compression ratio: bytes, one per character, per byte of zlib (Radford et al. 2022, "Robust Speech Recognition via
  Large-Scale Weak Supervision", section 4.5, where an output above 2.4 counts as repetitive; there over UTF-8).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

TIMES = 3
"""How often the unit of a loop occurs at least; "very very" and a sentence given twice are not loops."""
NGRAM = 4
"""Words of the n-grams. Gopher uses 5 to 10 for documents; captions have one or two sentences."""
LONGEST_PERIOD = 256
"""Words of the longest unit of a loop that is found, which keeps the search linear."""


class Loop(NamedTuple):
    """A stretch of words that repeats a unit of `period` words."""

    words: int
    """Words of the stretch, with the fraction of the last unit; 0 without a loop."""
    period: int


def longest_loop(words: Sequence[str]) -> Loop:
    """The longest stretch in which a unit occurs TIMES times or more in a row; if several are as long, that with
    the shortest unit."""
    best = Loop(0, 0)
    if len(set(words)) == len(words):
        return best
    numbers: dict[str, int] = {}
    ids = np.fromiter((numbers.setdefault(word, len(numbers)) for word in words), np.int32, len(words))
    for period in range(1, min(LONGEST_PERIOD, len(words) // TIMES) + 1):
        same = ids[period:] == ids[:-period]
        least = max(best.words, TIMES * period - 1) - period + 1
        if np.count_nonzero(same) >= least:
            run = _longest_run(same)
            if run >= least:
                best = Loop(run + period, period)
    return best


def _longest_run(same: np.ndarray) -> int:
    """Length of the longest run of True."""
    breaks = np.flatnonzero(~same)
    return int(np.diff(breaks, prepend=-1, append=len(same)).max()) - 1


def repeated_share(words: Sequence[str], n: int = NGRAM) -> float:
    """Share (0..1) of the words' characters in n-grams that occurred before and do not overlap."""
    seen: set[tuple[str, ...]] = set()
    repeated, start = 0, 0
    while start + n <= len(words):
        gram = tuple(words[start : start + n])
        if gram in seen:
            repeated += sum(map(len, gram))
            start += n
        else:
            seen.add(gram)
            start += 1
    return repeated / max(1, sum(map(len, words)))


def compression_ratio(text: str) -> float:
    """Bytes per byte of zlib, with white space as single spaces; 0 for an empty text, below 1 for short ones.

    A text has one byte per character (two from 257 different ones), because UTF-8 has two or three for many scripts,
    the first of them nearly constant: an ordinary Thai or Tamil text would count as repetitive.
    """
    data = " ".join(text.split()).encode("utf-8", "surrogatepass")
    if not data.isascii():
        codes = np.frombuffer(data.decode("utf-8", "surrogatepass").encode("utf-32-le", "surrogatepass"), np.uint32)
        distinct, numbers = np.unique(codes, return_inverse=True)
        data = numbers.astype(np.uint8 if len(distinct) <= 256 else np.uint16).tobytes()
    return len(data) / len(zlib.compress(data)) if data else 0.0
