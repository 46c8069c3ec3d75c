"""Phrases with which very many texts begin or end and that say nothing of any of them: functions of lists of words.

A phrase is boilerplate at its end of texts if it is frequent there, if what stands beside it (the next word of a
beginning, the word before an ending) is hardly ever the same, and if it is rarely met elsewhere. The second tells
`image for …` from `New York Times`, the third from `black and white`, which is anywhere in a text.
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
"""Signs within words that are no letters to `re`: accents, points, and blocks of scripts with vowel signs."""
_WORD = re.compile(rf"\w[\w{_MARKS}]*+(?:['’]\w[\w{_MARKS}]*+)*+")
_NUMBER = re.compile(r"[\d_]+")
NUMBER = "#"
"""Stands for every word of digits: `stock photo #1214233` and `stock photo #28793439` end alike."""
_OPENING = "\"'“‘«([{¿¡#$£€@"
_BETWEEN = " \t\n\r\f\v\u00a0|-–—_:;,/\\·•*~=+&#@>([{«<"
"""What opens a word stays with it; what only stands between words goes with the ending that it led to."""


class Phrase(NamedTuple):
    words: Words
    place: Place
    count: int
    """Texts that have it there."""
    neighbours: float
    """2 ** entropy of the word beside it: as many neighbours, were all of them equally frequent."""
    edge: float
    """Share of the texts with the phrase that have it there."""


class Limits(NamedTuple):
    shortest: int
    longest: int
    least_count: int
    least_neighbours: float
    least_edge: float


def spans(text: str) -> list[tuple[str, int, int]]:
    """Words of a text, case-folded, numbers as `#`, with their places: (word, start, stop)."""
    found = []
    for match in _WORD.finditer(text):
        word = match.group()
        found.append((NUMBER if _NUMBER.fullmatch(word) else word.casefold(), match.start(), match.end()))
    return found


def words_of(text: str) -> Words:
    return tuple(word for word, _, _ in spans(text))


def boilerplate(texts: Sequence[Words], limits: Limits, *, whole: bool = False) -> list[Phrase]:
    """Phrases of `shortest` to `longest` words that are boilerplate, the most frequent first.

    Numbers do not count as words of the shortest. A text that is there many times counts once, but for `whole` texts.
    Of phrases within each other only those stay that `least_count` texts have without a longer one that stays.
    """
    distinct = list(dict.fromkeys(texts))
    beginnings = _frequent(distinct, limits)
    endings = {words[::-1]: beside for words, beside in _frequent([words[::-1] for words in distinct], limits).items()}
    edges = _edge_shares(distinct, {*beginnings, *endings}, limits)
    found: list[Phrase] = []
    for place, candidates in (("prefix", beginnings), ("suffix", endings)):
        passed: list[Phrase] = []
        for words, beside in candidates.items():
            phrase = Phrase(words, place, beside.total(), perplexity(beside), edges[words])
            if phrase.neighbours >= limits.least_neighbours and phrase.edge >= limits.least_edge:
                passed.append(phrase)
        found += _maximal(passed, limits.least_count)
    if whole:
        repeated = Counter(words for words in texts if 0 < len(words) <= limits.longest)
        found += [Phrase(words, "whole", n, 0.0, 1.0) for words, n in repeated.items() if n >= limits.least_count]
    return sorted(found, key=lambda phrase: (-phrase.count, phrase.place, phrase.words))


def _frequent(texts: Sequence[Words], limits: Limits) -> dict[Words, Counter[str]]:
    """Beginnings of `shortest` words or more that enough texts go on after -> the words that they go on with. A longer
    beginning is frequent only if a shorter one is, so each pass looks at what the one before has left."""
    found: dict[Words, Counter[str]] = {}
    left = [words for words in texts if len(words) > 1]
    for length in range(1, limits.longest + 1):
        counts = Counter(words[:length] for words in left)
        frequent = {words for words, count in counts.items() if count >= limits.least_count}
        left = [words for words in left if len(words) > length and words[:length] in frequent]
        if length >= limits.shortest:
            told = {words for words in frequent if length - words.count(NUMBER) >= limits.shortest}
            beside: defaultdict[Words, Counter[str]] = defaultdict(Counter)
            for words in left:
                if words[:length] in told:
                    beside[words[:length]][words[length]] += 1
            found |= {words: after for words, after in beside.items() if after.total() >= limits.least_count}
    return found


def _edge_shares(texts: Iterable[Words], phrases: Set[Words], limits: Limits) -> dict[Words, float]:
    """Of the texts that hold a phrase with a word beside it: the share that begin or end with it, numbers aside."""
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
    """Those of one place that enough texts have without a longer one."""
    within: Counter[Words] = Counter()
    kept = []
    for phrase in sorted(phrases, key=lambda phrase: -len(phrase.words)):
        alone = phrase.count - within[phrase.words]
        taken = within[phrase.words]
        if alone >= least_count:
            kept.append(phrase)
            taken = phrase.count
        if len(phrase.words) > 1:
            shorter = phrase.words[:-1] if phrase.place == "prefix" else phrase.words[1:]
            within[shorter] += taken
    return kept


class Stripper:
    """Removes phrases from the ends of texts, again and again, in time that grows with the text alone."""

    def __init__(self, prefixes: Iterable[Words], suffixes: Iterable[Words], wholes: Iterable[Words] = ()) -> None:
        self.prefixes, self.suffixes, self.wholes = frozenset(prefixes), frozenset(suffixes), frozenset(wholes)
        self._longest = max((len(words) for words in self.prefixes | self.suffixes), default=0)

    def strip(self, text: str) -> str:
        """The text itself where no phrase is at its ends; empty where nothing is left."""
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
