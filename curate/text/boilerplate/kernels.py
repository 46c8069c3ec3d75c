"""Kernels of boilerplate: phrases that many texts begin or end with. Functions of lists of words.

A phrase is boilerplate if it is frequent at that end of texts, if the word next to it (after a beginning, before an
ending) varies, and if it is rare elsewhere. The second condition separates `image for …` from `New York Times`, the
third from `black and white`, which occurs anywhere in a text.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence, Set
from typing import Literal, NamedTuple, TypeAlias

Place: TypeAlias = Literal["prefix", "suffix", "whole"]
Words: TypeAlias = tuple[str, ...]

_MARKS = (
    "\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670\u0900-\u0dff\u0e00-\u0fff"
    "\u1000-\u109f\u1780-\u17ff\u200c\u200d\u3099\u309a"
)
"""Characters within words that `re` does not count as letters: accents, points, and scripts with vowel signs."""
_WORD = re.compile(rf"\w[\w{_MARKS}]*+(?:['’]\w[\w{_MARKS}]*+)*+")
_NUMBER = re.compile(r"[\d_]+")
NUMBER = "#"
"""Stands for any word of digits: `stock photo #1214233` and `stock photo #28793439` have the same ending."""
_OPENING = "\"'“‘«([{¿¡#$£€@"
_BETWEEN = " \t\n\r\f\v\u00a0|-–—_:;,/\\·•*~=+&#@>([{«<"
"""Opening signs stay with their word; signs between words are removed together with the ending after them."""


class Phrase(NamedTuple):
    words: Words
    place: Place
    texts: int
    """Texts with the phrase in that place."""
    neighbours: float
    """2 ** entropy of the next word: the number of neighbours if all were equally frequent."""
    edge: float
    """Share of the texts with the phrase that have it in that place."""


class PhraseLimits(NamedTuple):
    shortest: int
    longest: int
    least_count: int
    least_neighbours: float
    least_edge: float


def spans(text: str) -> list[tuple[str, int, int]]:
    """(word, start, stop) of each word of a text, case-folded, with numbers as `#`."""
    found = []
    for match in _WORD.finditer(text):
        word = match.group()
        found.append((NUMBER if _NUMBER.fullmatch(word) else word.casefold(), match.start(), match.end()))
    return found


def words_of(text: str) -> Words:
    return tuple(word for word, _, _ in spans(text))


def boilerplate(texts: Sequence[Words], limits: PhraseLimits, *, whole: bool = False) -> list[Phrase]:
    """Phrases of `shortest` to `longest` words that are boilerplate, the most frequent first.

    `shortest` does not count numbers. A repeated text counts once, except for `whole` texts. A phrase within a longer
    one is kept only if `least_count` texts have it without the longer one.
    """
    distinct = list(dict.fromkeys(texts))
    beginnings = _frequent(distinct, limits)
    endings = {words[::-1]: beside for words, beside in _frequent([words[::-1] for words in distinct], limits).items()}
    edges = _edge_shares(distinct, {*beginnings, *endings}, limits)
    found: list[Phrase] = []
    sides: tuple[tuple[Place, dict[Words, Counter[str]]], ...] = (("prefix", beginnings), ("suffix", endings))
    for place, candidates in sides:
        passed: list[Phrase] = []
        for words, beside in candidates.items():
            phrase = Phrase(words, place, beside.total(), perplexity(beside), edges[words])
            if phrase.neighbours >= limits.least_neighbours and phrase.edge >= limits.least_edge:
                passed.append(phrase)
        found += _maximal(passed, limits.least_count)
    if whole:
        repeated = Counter(words for words in texts if 0 < len(words) <= limits.longest)
        found += [Phrase(words, "whole", n, 0.0, 1.0) for words, n in repeated.items() if n >= limits.least_count]
    return sorted(found, key=lambda phrase: (-phrase.texts, phrase.place, phrase.words))


def _frequent(texts: Sequence[Words], limits: PhraseLimits) -> dict[Words, Counter[str]]:
    """Frequent beginnings of at least `shortest` words -> counts of the next word. A longer beginning is frequent only
    if its shorter one is, so that each pass reads only the texts that remain."""
    found: dict[Words, Counter[str]] = {}
    left = [words for words in texts if len(words) > 1]
    for length in range(1, limits.longest + 1):
        counts = Counter(words[:length] for words in left)
        frequent = {words for words, count in counts.items() if count >= limits.least_count}
        left = [words for words in left if len(words) > length and words[:length] in frequent]
        if length >= limits.shortest:
            long_enough = {words for words in frequent if length - words.count(NUMBER) >= limits.shortest}
            beside: defaultdict[Words, Counter[str]] = defaultdict(Counter)
            for words in left:
                if words[:length] in long_enough:
                    beside[words[:length]][words[length]] += 1
            found |= {words: after for words, after in beside.items() if after.total() >= limits.least_count}
    return found


def _edge_shares(texts: Iterable[Words], phrases: Set[Words], limits: PhraseLimits) -> dict[Words, float]:
    """Share of the texts with more words than the phrase that begin or end with it, ignoring numbers."""
    first = {words[: limits.shortest] for words in phrases}
    anywhere, edges = Counter[Words](), Counter[Words]()
    for words in texts:
        begin, end = 0, len(words)
        while begin < end and words[begin] == NUMBER:
            begin += 1
        while end > begin and words[end - 1] == NUMBER:
            end -= 1
        met: dict[Words, bool] = {}
        for start in range(len(words) - limits.shortest + 1):
            if words[start : start + limits.shortest] in first:
                for stop in range(start + limits.shortest, min(start + limits.longest, len(words)) + 1):
                    phrase = words[start:stop]
                    if stop - start < len(words) and phrase in phrases:
                        met[phrase] = met.get(phrase, False) or start <= begin or stop >= end
        anywhere.update(met.keys())
        edges.update(phrase for phrase, at_edge in met.items() if at_edge)
    return {phrase: edges[phrase] / count for phrase, count in anywhere.items()}


def perplexity(counts: Counter[str]) -> float:
    total = counts.total()
    return 2 ** -sum(n / total * math.log2(n / total) for n in counts.values()) if total else 0.0


def _maximal(phrases: list[Phrase], least_count: int) -> list[Phrase]:
    """The phrases of one place that enough texts have without a longer one."""
    within: Counter[Words] = Counter()
    kept = []
    for phrase in sorted(phrases, key=lambda phrase: -len(phrase.words)):
        alone = phrase.texts - within[phrase.words]
        taken = within[phrase.words]
        if alone >= least_count:
            kept.append(phrase)
            taken = phrase.texts
        if len(phrase.words) > 1:
            shorter = phrase.words[:-1] if phrase.place == "prefix" else phrase.words[1:]
            within[shorter] += taken
    return kept


class Stripper:
    """Removes phrases from the ends of texts repeatedly, in time linear in the text."""

    def __init__(self, prefixes: Iterable[Words], suffixes: Iterable[Words], wholes: Iterable[Words] = ()) -> None:
        self.prefixes, self.suffixes, self.wholes = frozenset(prefixes), frozenset(suffixes), frozenset(wholes)
        self._longest = max((len(words) for words in self.prefixes | self.suffixes), default=0)

    def strip(self, text: str) -> str:
        """The text without phrases at its ends; empty if nothing else is in it."""
        found = spans(text)
        words = tuple(word for word, _, _ in found)
        if words in self.wholes:
            return ""
        begin, end = 0, len(words)
        while step := self._matched(words, begin, end, self.prefixes, first=True):
            begin += step
        while step := self._matched(words, begin, end, self.suffixes, first=False):
            end -= step
        if words and begin == end:
            return ""
        start, stop = 0, len(text)
        if begin:
            start = found[begin][1]
            while start > found[begin - 1][2] and text[start - 1] in _OPENING:
                start -= 1
        if end < len(words):
            stop = found[end][1]
        kept = text[start:stop]
        return kept.rstrip(_BETWEEN) if end < len(words) else kept

    def _matched(self, words: Words, begin: int, end: int, phrases: Set[Words], *, first: bool) -> int:
        for length in range(min(self._longest, end - begin), 0, -1):
            piece = words[begin : begin + length] if first else words[end - length : end]
            if piece in phrases:
                return length
        return 0
