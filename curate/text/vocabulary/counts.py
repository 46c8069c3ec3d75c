"""How many texts of a pool say each word and each pair of neighbouring words: states that add up, in bounded memory.

Counts are of texts: one that repeats a word a thousand times counts once. Where a pool says more distinct terms than
`most`, the rarest go (lossy counting, Manku and Motwani 2002, section 4.2): terms counted at most c times are dropped,
c the smallest that makes room, and from then on every count is short of the truth by at most the sum of such c. That
sum is told (`Counts.short`); it is 0 for pools that fit, whose counts are exact and the same for any cut into shards.
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
"""Distinct terms of a kind that are held; about 60 bytes each."""
_WORD_BYTES = 100
"""Longer words are no terms: what the web glues together is not said twice."""


@dataclass(frozen=True)
class Counts:
    """What a pool says. `unigrams`, `bigrams`: term and count, in no order; `short`: how much too low counts may be."""

    texts: int
    short: int
    unigrams: pl.DataFrame
    bigrams: pl.DataFrame

    @classmethod
    def of(cls, state: pa.Table) -> Counts:
        frame = _polars(state)
        texts, short = (int(frame.filter(pl.col("kind") == kind)["count"].sum()) for kind in (TEXTS, SHORT))
        kinds = (frame.filter(pl.col("kind") == kind).select("term", "count") for kind in (UNIGRAM, BIGRAM))
        return cls(texts, short, *kinds)


def count(texts: Sequence[str | None], keeps: Callable[[str], bool], bigrams: bool) -> pa.Table:
    """State of some texts. `keeps` says of a word whether it is a term; neighbours that both are make a bigram."""
    parts = [pl.DataFrame({"kind": [TEXTS], "term": [""], "count": [sum(text is not None for text in texts)]})]
    for _, blob in blobs_of(texts):
        parts += _counted(blob.split(), keeps, bigrams)
    return _arrow(_summed(pl.concat(parts)))


def _counted(words: list[bytes], keeps: Callable[[str], bool], bigrams: bool) -> list[pl.DataFrame]:
    """Terms of a chunk of texts. Words are numbered: 0 ends a text, words that are no terms are negative."""
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
    said = np.flatnonzero(ids > 0)
    number, number_count = _texts_per(text_of[said], ids[said], width)
    found = [_frame(UNIGRAM, names[number], number_count)]
    if bigrams:
        pair = said[:-1][np.diff(said) == 1]  # an end of a text is between words of two texts
        key, key_count = _texts_per(text_of[pair], ids[pair] * width + ids[pair + 1], width * width)
        found.append(_frame(BIGRAM, names[key // width] + " " + names[key % width], key_count))
    return found


def _texts_per(text: NDArray[np.int64], term: NDArray[np.int64], width: int) -> tuple[NDArray, NDArray]:
    """Distinct terms (of 0..width - 1), and how many distinct texts (m,) each occurs with."""
    pair = np.sort(text * width + term)
    term = np.sort(pair[np.diff(pair, prepend=-1) > 0] % width)
    first = np.flatnonzero(np.diff(term, prepend=-1) > 0)
    return term[first], np.diff(first, append=len(term))


def _frame(kind: str, terms: NDArray, counts: NDArray) -> pl.DataFrame:
    columns = {"term": pl.Series(terms.tolist(), dtype=pl.String), "count": pl.Series(counts, dtype=pl.Int64)}
    return pl.DataFrame(columns).select(pl.lit(kind).alias("kind"), "term", "count")


def merge(states: Iterable[pa.Table], most: int = MOST_TERMS) -> pa.Table:
    """States -> one; at most about twice `most` terms of a kind are held at a time."""
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
    """At most `most` terms of each kind, the rarest dropped; what that may have cost is added to SHORT."""
    lost = 0
    for kind in frame["kind"].unique().sort():
        counts = frame.filter(pl.col("kind") == kind)["count"]
        if len(counts) > most:
            least = int(np.partition(counts.to_numpy(), len(counts) - most)[len(counts) - most - 1])
            frame = frame.filter((pl.col("kind") != kind) | (pl.col("count") > least))
            lost = max(lost, least)
    if not lost:
        return frame
    told = pl.DataFrame({"kind": [SHORT], "term": [""], "count": [lost]})
    return _summed(pl.concat([frame, told]))


def _polars(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table.select(SCHEMA.names).cast(SCHEMA))
    assert isinstance(frame, pl.DataFrame)
    return frame


def _arrow(frame: pl.DataFrame) -> pa.Table:
    return frame.sort("kind", "term").to_arrow().cast(SCHEMA)
