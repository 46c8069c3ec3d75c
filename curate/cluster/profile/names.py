"""Names of clusters: the words and word pairs that tell a cluster's captions from the other clusters'.

Class-based TF-IDF (Grootendorst 2022, BERTopic, section 3.3): W(t, c) = tf(t, c) log(1 + A / f(t)), with tf(t, c) the
captions of cluster c that say term t (a caption counts once, however often it repeats a word), f(t) those of all
clusters, and A the terms that a cluster's captions say on average. Terms are words and pairs of neighbouring words.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from curate.kernels.words import words

LEAST_CAPTIONS, LEAST_SHARE = 2, 0.1
"""A name is said by so many of the cluster's captions, and by such a share of them."""
LEAST_LIFT = 1.2
"""How much more often a cluster says a name than the pool does."""


@dataclass(frozen=True)
class Said:
    """Which captions say which terms: `caption` and `term` (m,), each pair once; terms that one caption alone says are
    left out. Terms are numbered in the order of their spelling."""

    captions: int
    caption: NDArray[np.int64]
    term: NDArray[np.int64]
    vocabulary: list[str]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Said:
        ids: dict[str, int] = {}
        captions, terms = array("q"), array("q")
        for number, text in enumerate(texts):
            for term in terms_of(text):
                captions.append(number)
                terms.append(ids.setdefault(term, len(ids)))
        caption, term = (np.array(numbers, dtype=np.int64) for numbers in (captions, terms))
        spelled = np.array(list(ids), dtype=object)
        often = np.bincount(term, minlength=len(ids)) >= LEAST_CAPTIONS
        order = np.argsort(spelled[often]) if often.any() else np.empty(0, dtype=np.int64)
        number_of = np.full(len(ids), -1)
        number_of[np.flatnonzero(often)[order]] = np.arange(len(order))
        kept = number_of[term] >= 0
        return cls(len(texts), caption[kept], number_of[term][kept], spelled[often][order].tolist())


def terms_of(text: str) -> list[str]:
    """The distinct words of a caption and pairs of neighbours among them, common words left out first."""
    found = words(text)
    return list(dict.fromkeys([*found, *(f"{a} {b}" for a, b in pairwise(found) if a != b)]))


def names(said: Said, cluster: NDArray[np.int64], clusters: int, count: int = 3) -> list[str]:
    """cluster (captions,) -> the `count` best terms of each cluster, joined by commas; "" where nothing is typical.

    Of equal terms a pair comes first. A term that shares a word with a better one says nothing new and is passed over.
    """
    made = [""] * clusters
    if not len(said.term):
        return made
    width = len(said.vocabulary)
    pairs, tf = np.unique(cluster[said.caption] * width + said.term, return_counts=True)
    group, term = np.divmod(pairs, width)
    captions = np.bincount(cluster, minlength=clusters)
    everywhere = np.bincount(said.term, minlength=width)
    average = tf.sum() / max(1, len(np.unique(group)))
    weight = tf * np.log1p(average / everywhere[term])
    share = tf / captions[group]
    good = (tf >= LEAST_CAPTIONS) & (share >= LEAST_SHARE)
    good &= share >= LEAST_LIFT * everywhere[term] / said.captions
    group, term, weight = group[good], term[good], weight[good]
    pair = np.array([" " in word for word in said.vocabulary])[term]
    order = np.lexsort((term, ~pair, -weight, group))
    starts = np.flatnonzero(np.r_[True, np.diff(group[order]) > 0][: len(order)])
    for start, stop in pairwise([*starts, len(order)]):
        best = (said.vocabulary[number] for number in term[order[start:stop]])
        made[int(group[order[start]])] = ", ".join(_distinct(best, count))
    return made


def _distinct(terms: Iterable[str], count: int) -> list[str]:
    chosen: list[str] = []
    seen: list[str] = []
    for term in terms:
        parts = term.split()
        if not any(part.startswith(word) or word.startswith(part) for part in parts for word in seen):
            chosen.append(term)
            seen += parts
            if len(chosen) == count:
                break
    return chosen
