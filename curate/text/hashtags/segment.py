"""A tag becomes its words: `#goldenRetriever`, `golden-retriever`, `GOLDEN_RETRIEVER` and `goldenretriever` are one.

Separators and changes of case are what the writer has said of word boundaries; a run of letters without any is cut
where the product of its words' frequencies is largest (unigram segmentation, Norvig 2009, Beautiful Data, chapter 14),
by Viterbi's algorithm: linear in length x longest word.
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
"""Characters of a word that segmentation may find; longer runs of letters stay in pieces of unknown words."""
SHORT = 4
"""Letters of an unknown word below which it is no likelier."""
_DIGITS = re.compile(r"\d++|\D++")
_LEFT_OUT = frozenset("'’\u02bc`´") | {chr(code) for code in range(0xFE00, 0xFE10)}
"""Apostrophes, as tags cannot hold any (`valentines`), and variation selectors, which are no marks of letters."""


def folded(tag: str) -> str:
    """The form in which tags are counted and looked up: NFKC, without case and signs, a space for each separator.

    `#GoldenRetriever` -> `goldenretriever`, `GOLDEN_RETRIEVER` -> `golden retriever`. Empty if there is no letter or
    digit. HTML entities are resolved; idempotent.
    """
    if tag.isascii() and tag.isalnum():
        return tag.lower()
    return " ".join(_runs(_caseless(_unescaped(tag))))


def chunks(tag: str) -> list[str]:
    """Runs of letters, digits and marks, in the case they were written in."""
    if tag.isascii() and tag.isalnum():
        return [tag]
    return _runs(normal_form("NFKC", _unescaped(tag)))


def _unescaped(tag: str) -> str:
    return html.unescape(tag) if "&" in tag else tag


def _caseless(text: str) -> str:
    return normal_form("NFKC", normal_form("NFKC", text).casefold())


def _runs(text: str) -> list[str]:
    """Format characters (soft hyphens, joiners, marks of direction) are left out, all else separates."""
    spaced = "".join(" " if (shown := _shown(char)) is None else shown for char in text)
    return [run for run in spaced.split() if any(map(str.isalnum, run))]


@functools.lru_cache(maxsize=1 << 14)
def _shown(char: str) -> str | None:
    kind = unicodedata.category(char)
    return "" if kind == "Cf" or char in _LEFT_OUT else char if kind[0] in "LMN" else None


def humps(chunk: str) -> list[str]:
    """A chunk cut where case changes: goldenRetriever -> golden, Retriever; HTMLPage -> HTML, Page; iPhone stays, since
    a piece of one letter is no word."""
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
    """Cuts runs of letters into words by how often words are said.

    Words that are not known have the share 10 / (N 10^length), with N all that is counted, and none more than one of
    SHORT letters: an unknown run is rather one word than many, and known words are preferred to it.
    """

    def __init__(self, counts: Mapping[str, float]) -> None:
        self._total = math.log(max(1.0, math.fsum(counts.values())))
        self._cost = {word: self._total - math.log(count) for word, count in counts.items() if count > 0}
        self._longest = min(LONGEST_WORD, max(map(len, self._cost), default=1))

    def knows(self, word: str) -> bool:
        return word in self._cost

    def words(self, tag: str) -> list[str]:
        """Words of a tag, without case, which join to the tag's letters. A change of case is a boundary unless the
        whole is a word (YouTube, where `youtube` is known)."""
        found: list[str] = []
        for chunk in chunks(tag):
            whole = _caseless(chunk)
            if self.knows(whole):
                found.append(whole)
                continue
            for piece in humps(chunk):
                found += self.split(_caseless(piece))
        return found

    def split(self, run: str) -> list[str]:
        """The likeliest words of a run of letters and digits; digits are never part of an unknown word with letters."""
        if self.knows(run):
            return [run]
        return [word for part in _DIGITS.findall(run) for word in _joined(self._cheapest(part), self._cost)]

    def _cheapest(self, run: str) -> list[str]:
        """Viterbi: the best way to each place, by the word that ends there."""
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
    """Neighbouring unknown pieces are one unknown word, which was only longer than a word may be."""
    made: list[str] = []
    unknown = False
    for word in words:
        if word not in known and unknown:
            made[-1] += word
        else:
            made.append(word)
        unknown = word not in known
    return made
