"""Splits tags into words: `#goldenRetriever`, `golden-retriever`, `GOLDEN_RETRIEVER` and `goldenretriever` are equal.

Separators and changes of case are word boundaries. A run of letters without them is split so that the product of the
words' frequencies is largest (unigram segmentation, Norvig 2009, Beautiful Data, chapter 14), by Viterbi's algorithm,
in time linear in length x longest word.
"""

from __future__ import annotations

import functools
import html
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping

from curate.kernels.normal import normal_form

LONGEST_WORD = 24
"""Most characters of a word that segmentation finds; longer runs of letters are unknown words."""
SHORT = 4
"""Letters below which an unknown word does not become more likely."""
_DIGITS = re.compile(r"\d++|\D++")
_LEFT_OUT = frozenset("'’\u02bc`´") | {chr(code) for code in range(0xFE00, 0xFE10)}
"""Apostrophes, which tags cannot contain (`valentines`), and variation selectors, which do not belong to letters."""


def folded(tag: str) -> str:
    """The form for counting and looking up tags: NFKC, case-folded, without signs, a space for each separator.

    `#GoldenRetriever` -> `goldenretriever`, `GOLDEN_RETRIEVER` -> `golden retriever`. Empty if it has no letter or
    digit. Decodes HTML entities; idempotent.
    """
    if tag.isascii() and tag.isalnum():
        return tag.lower()
    return " ".join(_runs(_caseless(_unescaped(tag))))


def chunks(tag: str) -> list[str]:
    """Runs of letters, digits and marks, with their case."""
    if tag.isascii() and tag.isalnum():
        return [tag]
    return _runs(normal_form("NFKC", _unescaped(tag)))


def _unescaped(tag: str) -> str:
    return html.unescape(tag) if "&" in tag else tag


def _caseless(text: str) -> str:
    return normal_form("NFKC", normal_form("NFKC", text).casefold())


def _runs(text: str) -> list[str]:
    """Runs of letters, digits and marks. Format characters (soft hyphens, joiners, marks of direction) are removed; all
    other characters separate."""
    spaced = "".join(" " if (shown := _shown(char)) is None else shown for char in text)
    return [run for run in spaced.split() if any(map(str.isalnum, run))]


@functools.lru_cache(maxsize=1 << 14)
def _shown(char: str) -> str | None:
    kind = unicodedata.category(char)
    return "" if kind == "Cf" or char in _LEFT_OUT else char if kind[0] in "LMN" else None


def split_at_case(chunk: str) -> list[str]:
    """Splits a chunk where case changes: goldenRetriever -> golden, Retriever; HTMLPage -> HTML, Page. iPhone stays,
    because a single letter is not a word."""
    cuts = [0]
    for at in range(1, len(chunk)):
        before, here = chunk[at - 1], chunk[at]
        starts = here.isupper() and before.islower()
        acronym_ends = here.islower() and before.isupper() and at >= 2 and chunk[at - 2].isupper()
        cut = at if starts else at - 1 if acronym_ends else 0
        if cut > cuts[-1]:
            cuts.append(cut)
    pieces = [chunk[start:stop] for start, stop in zip(cuts, [*cuts[1:], len(chunk)], strict=True)]
    return pieces if all(len(piece) > 1 for piece in pieces) else [chunk]


class Segmenter:
    """Splits runs of letters into words by word frequencies.

    An unknown word has the share 10 / (N 10^length), with N the sum of all counts and a length of at least SHORT. An
    unknown run is therefore one word rather than many, and known words are preferred.
    """

    def __init__(self, counts: Mapping[str, float]) -> None:
        self._total = math.log(max(1.0, math.fsum(counts.values())))
        self._cost = {word: self._total - math.log(count) for word, count in counts.items() if count > 0}
        self._longest = min(LONGEST_WORD, max(map(len, self._cost), default=1))

    def knows(self, word: str) -> bool:
        return word in self._cost

    def words(self, tag: str) -> list[str]:
        """Case-folded words whose concatenation is the tag's letters. A change of case is a boundary unless the whole
        is a known word (YouTube, if `youtube` is known)."""
        found: list[str] = []
        for chunk in chunks(tag):
            whole = _caseless(chunk)
            if self.knows(whole):
                found.append(whole)
                continue
            for piece in split_at_case(chunk):
                found += self.split(_caseless(piece))
        return found

    def split(self, run: str) -> list[str]:
        """The most likely words of a run of letters and digits. An unknown word never mixes letters and digits."""
        if self.knows(run):
            return [run]
        return [word for part in _DIGITS.findall(run) for word in _joined(self._cheapest(part), self._cost)]

    def _cheapest(self, run: str) -> list[str]:
        """Viterbi: the cheapest split up to each position, by the word that ends there."""
        best, start_of = [0.0], [0]
        for stop in range(1, len(run) + 1):
            starts = range(max(0, stop - self._longest), stop)
            cost, start = min((best[start] + self._cost_of(run[start:stop]), start) for start in starts)
            best.append(cost)
            start_of.append(start)
        words, stop = [], len(run)
        while stop:
            words.append(run[start_of[stop] : stop])
            stop = start_of[stop]
        return words[::-1]

    def _cost_of(self, word: str) -> float:
        known = self._cost.get(word)
        return self._total + (max(len(word), SHORT) - 1) * math.log(10) if known is None else known


def _joined(words: Iterable[str], known: Mapping[str, float]) -> list[str]:
    """Joins neighbouring unknown pieces: together they are one unknown word longer than LONGEST_WORD."""
    joined: list[str] = []
    unknown = False
    for word in words:
        if word not in known and unknown:
            joined[-1] += word
        else:
            joined.append(word)
        unknown = word not in known
    return joined
