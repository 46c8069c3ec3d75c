"""Counts of texts with each word and each pair of neighbouring words: mergeable states, in bounded memory.

A text that repeats a word a thousand times counts once. If a pool has more than `most` distinct terms, the rarest are
dropped (lossy counting, Manku and Motwani 2002, section 4.2): terms counted at most c times, with the smallest c that
makes room. Every later count is then too low by at most the sum of these c, which `TermCounts.short` records. It is 0
for pools that fit; their counts are exact and do not depend on the shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from curate.text.phrases import blobs_of

UNIGRAM, BIGRAM, TEXTS, SHORT = "unigram", "bigram", "texts", "short"
SCHEMA = pa.schema([("kind", pa.string()), ("term", pa.string()), ("count", pa.int64())])
MOST_TERMS = 10_000_000
"""Most distinct terms of a kind in memory, about 60 bytes each."""
_WORD_BYTES = 100
"""Longer words do not count: strings without spaces in web texts do not recur."""


@dataclass(frozen=True)
class TermCounts:
    """`unigrams`, `bigrams`: term and count, unordered; `short`: how much too low counts can be."""

    texts: int
    short: int
    unigrams: pl.DataFrame
    bigrams: pl.DataFrame

    @classmethod
    def of(cls, state: pa.Table) -> TermCounts:
        frame = _polars(state)
        texts, short = (int(frame.filter(pl.col("kind") == kind)["count"].sum()) for kind in (TEXTS, SHORT))
        kinds = (frame.filter(pl.col("kind") == kind).select("term", "count") for kind in (UNIGRAM, BIGRAM))
        return cls(texts, short, *kinds)


def count_terms(texts: Sequence[str | None], keeps: Callable[[str], bool], bigrams: bool) -> pa.Table:
    """State of some texts. `keeps` decides whether a word is a term; two neighbouring terms are a bigram."""
    parts = [pl.DataFrame({"kind": [TEXTS], "term": [""], "count": [sum(text is not None for text in texts)]})]
    for _, blob in blobs_of(texts):
        parts += _counted(blob.split(), keeps, bigrams)
    return _arrow(_summed(pl.concat(parts)))


def _counted(words: list[bytes], keeps: Callable[[str], bool], bigrams: bool) -> list[pl.DataFrame]:
    """Terms of a chunk of texts. Word number 0 ends a text; negative numbers are words that are not terms."""
    distinct = [word for word in dict.fromkeys(words) if word != b"\0"]
    spelled, numbers = [""], {b"\0": 0}
    for word in distinct:
        text = word.decode()
        if len(word) <= _WORD_BYTES and keeps(text):
            numbers[word] = len(spelled)
            spelled.append(text)
    ids = np.fromiter(map(numbers.get, words, repeat(-1)), dtype=np.int64, count=len(words))
    text_of = np.cumsum(ids == 0)
    names, width = np.array(spelled, dtype=object), len(spelled)
    places = np.flatnonzero(ids > 0)
    number, number_count = _texts_per(text_of[places], ids[places], width)
    found = [_frame(UNIGRAM, names[number], number_count)]
    if bigrams:
        pair = places[:-1][np.diff(places) == 1]  # words of two texts are not neighbours: an end is between them
        key, key_count = _texts_per(text_of[pair], ids[pair] * width + ids[pair + 1], width * width)
        found.append(_frame(BIGRAM, names[key // width] + " " + names[key % width], key_count))
    return found


def _texts_per(
    text: NDArray[np.int64], term: NDArray[np.int64], width: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Distinct terms (of 0..width - 1), and the number of distinct texts (m,) with each."""
    pair = np.sort(text * width + term)
    term = np.sort(pair[np.diff(pair, prepend=-1) > 0] % width)
    first = np.flatnonzero(np.diff(term, prepend=-1) > 0)
    return term[first], np.diff(first, append=len(term))


def _frame(kind: str, terms: NDArray, counts: NDArray) -> pl.DataFrame:
    columns = {"term": pl.Series(terms.tolist(), dtype=pl.String), "count": pl.Series(counts, dtype=pl.Int64)}
    return pl.DataFrame(columns).select(pl.lit(kind).alias("kind"), "term", "count")


def merge_terms(states: Iterable[pa.Table], most: int = MOST_TERMS) -> pa.Table:
    """States -> one state; holds at most about twice `most` terms of a kind at a time."""
    held, waiting, rows = _polars(SCHEMA.empty_table()), [], 0
    for state in states:
        waiting.append(_polars(state))
        rows += state.num_rows
        if rows > max(held.height, most // 4):
            held = _cut(_summed(pl.concat([held, *waiting])), most)
            waiting, rows = [], 0
    return _arrow(_cut(_summed(pl.concat([held, *waiting])), most))


def _summed(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.group_by("kind", "term").agg(pl.col("count").sum())


def _cut(frame: pl.DataFrame, most: int) -> pl.DataFrame:
    """The `most` most frequent terms of each kind; the possible loss is added to SHORT."""
    lost = 0
    for kind in frame["kind"].unique().sort():
        counts = frame.filter(pl.col("kind") == kind)["count"]
        if len(counts) > most:
            least = int(np.partition(counts.to_numpy(), len(counts) - most)[len(counts) - most - 1])
            frame = frame.filter((pl.col("kind") != kind) | (pl.col("count") > least))
            lost = max(lost, least)
    if not lost:
        return frame
    short = pl.DataFrame({"kind": [SHORT], "term": [""], "count": [lost]})
    return _summed(pl.concat([frame, short]))


def _polars(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table.select(SCHEMA.names).cast(SCHEMA))
    assert isinstance(frame, pl.DataFrame)
    return frame


def _arrow(frame: pl.DataFrame) -> pa.Table:
    return frame.sort("kind", "term").to_arrow().cast(SCHEMA)
