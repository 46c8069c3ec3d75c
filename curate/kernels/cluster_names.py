"""Names of clusters: the words and word pairs that set a cluster's captions apart from the other clusters' captions.

Class-based TF-IDF (Grootendorst 2022, BERTopic, section 3.3): W(t, c) = tf(t, c) log(1 + A / f(t)), where tf(t, c) is
the number of captions of cluster c that contain term t (a caption counts once, however often it repeats a word), f(t)
the number of all captions that contain it, and A the mean number of terms of a cluster's captions. Terms are words and
pairs of adjacent words.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

MIN_CAPTIONS, MIN_SHARE = 2, 0.1
"""Least number and least share of a cluster's captions that contain its name."""
MIN_LIFT = 1.2
"""A name's share of the cluster's captions over its share of all captions, at least."""

_WORD = re.compile(r"[^\W\d_]{3,24}")
_COMMON_TEXT = (
    "the and for with from that this are was were has have his her its not but you your our all one two any can into "
    "out over under about than then there their they them she who what when where which while will would also more "
    "most other some such only very been being der die das und mit von den dem ein eine ist auf für des les une est "
    "dans pour par sur avec aux los las una por para con del que nel della dei per com www http https html png jpg "
    "jpeg gif svg image images picture pictures photo"
)
_COMMON = frozenset(_COMMON_TEXT.split())
"""Frequent words of several languages, and words that web captions use for the image itself."""


def words(text: str) -> list[str]:
    """The words of a text in order: 3 to 24 letters of any script, case-folded, without common ones."""
    return [word for word in _WORD.findall(text.casefold()) if word not in _COMMON]


@dataclass(frozen=True)
class Terms:
    """The terms of captions: `caption` and `term` (m,), each pair once. Terms that occur in one caption only are left
    out; the rest are numbered alphabetically."""

    captions: int
    caption: NDArray[np.int64]
    term: NDArray[np.int64]
    vocabulary: list[str]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Self:
        ids: dict[str, int] = {}
        captions, terms = array("q"), array("q")
        for number, text in enumerate(texts):
            for term in _terms(text):
                captions.append(number)
                terms.append(ids.setdefault(term, len(ids)))
        caption, term_ids = (np.array(numbers, dtype=np.int64) for numbers in (captions, terms))
        spelled = np.array(list(ids), dtype=object)
        often = np.bincount(term_ids, minlength=len(ids)) >= MIN_CAPTIONS
        order = np.argsort(spelled[often]) if often.any() else np.empty(0, dtype=np.int64)
        number_of = np.full(len(ids), -1)
        number_of[np.flatnonzero(often)[order]] = np.arange(len(order))
        kept = number_of[term_ids] >= 0
        return cls(len(texts), caption[kept], number_of[term_ids][kept], spelled[often][order].tolist())


def _terms(text: str) -> list[str]:
    """The distinct words of a caption and their adjacent pairs, after common words are removed."""
    found = words(text)
    return list(dict.fromkeys([*found, *(f"{a} {b}" for a, b in pairwise(found) if a != b)]))


def cluster_names(terms: Terms, cluster: NDArray[np.int64], clusters: int, count: int = 3) -> list[str]:
    """cluster (captions,) -> the `count` best terms of each cluster, joined by commas; "" if no term is typical.

    Captions of cluster -1 count only towards the frequency of terms in all captions. Pairs win ties. A term that shares
    a word with a better one adds nothing and is skipped.
    """
    names = [""] * clusters
    width = len(terms.vocabulary)
    inside = cluster[terms.caption] >= 0
    pairs, tf = np.unique((cluster[terms.caption] * width + terms.term)[inside], return_counts=True)
    if not len(pairs):
        return names
    group, term = np.divmod(pairs, width)
    captions = np.bincount(cluster[cluster >= 0], minlength=clusters)
    everywhere = np.bincount(terms.term, minlength=width)
    average = tf.sum() / max(1, len(np.unique(group)))
    weight = tf * np.log1p(average / everywhere[term])
    share = tf / captions[group]
    good = (tf >= MIN_CAPTIONS) & (share >= MIN_SHARE)
    good &= share >= MIN_LIFT * everywhere[term] / terms.captions
    group, term, weight = group[good], term[good], weight[good]
    pair = np.array([" " in word for word in terms.vocabulary])[term]
    order = np.lexsort((term, ~pair, -weight, group))
    starts = np.flatnonzero(np.r_[True, np.diff(group[order]) > 0][: len(order)])
    for start, stop in pairwise([*starts, len(order)]):
        best = (terms.vocabulary[number] for number in term[order[start:stop]])
        names[int(group[order[start]])] = ", ".join(_distinct(best, count))
    return names


def _distinct(terms: Iterable[str], count: int) -> list[str]:
    chosen: list[str] = []
    used: list[str] = []
    for term in terms:
        parts = term.split()
        if not any(part.startswith(word) or word.startswith(part) for part in parts for word in used):
            chosen.append(term)
            used += parts
            if len(chosen) == count:
                break
    return chosen
