"""Reads fastText model files (quantised `.ftz`, plain `.bin`) into the arrays that curate.text.language.model uses.

The layout is that of facebookresearch/fastText 0.9 (`FastText::loadModel`, `Dictionary::load`, `QuantMatrix::load`),
version 12, little-endian. Quantised rows are expanded.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import InputError

MAGIC, VERSION = 793712314, 12
SUPERVISED, HIERARCHICAL, SOFTMAX = 3, 1, 3
LABEL = b"__label__"
CENTROIDS = 256


@dataclass(frozen=True)
class FastText:
    """A supervised model that predicts labels from words and their character n-grams."""

    words: dict[bytes, int]
    """Word -> row of `rows`."""
    labels: tuple[str, ...]
    """Without the prefix `__label__`."""
    label_counts: NDArray[np.int64]
    """(L,), descending: count of each label in training."""
    shortest: int
    longest: int
    """Characters of an n-gram; no n-grams if `longest` is 0."""
    buckets: int
    kept: NDArray[np.int32] | None
    """(buckets,): row of each n-gram bucket after the rows of words, -1 if pruned; None if nothing was pruned."""
    rows: NDArray[np.float32]
    """(R, D): a vector per word, then per bucket."""
    outputs: NDArray[np.float32]
    """(L, D): per label, or per inner node of the tree of labels (the last row is unused)."""
    hierarchical: bool


class _Reader:
    def __init__(self, path: str) -> None:
        self.path, self.at = path, 0
        with Path(path).open("rb") as file:
            empty = not file.read(1)
            self.data = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def take(self, layout: str) -> tuple:
        try:
            values = struct.unpack_from("<" + layout, self.data, self.at)
        except struct.error:
            raise _unreadable(self.path, "the file is truncated") from None
        self.at += struct.calcsize("<" + layout)
        return values

    def array(self, kind: str, count: int) -> NDArray:
        size = count * np.dtype(kind).itemsize
        if count < 0 or self.at + size > len(self.data):
            raise _unreadable(self.path, "the file is truncated")
        self.at += size
        return np.require(np.frombuffer(self.data, kind, count, self.at - size), requirements="A")

    def word(self) -> bytes:
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise _unreadable(self.path, "the file is truncated")
        word, self.at = self.data[self.at : end], end + 1
        return word


def _unreadable(path: str, why: str) -> InputError:
    return InputError(
        f"text.language.model: {path!r} is not a fastText model for languages ({why}); "
        "give lid.176.ftz, lid.176.bin or a similar model"
    )


def existing(path: str) -> str:
    if not Path(path).is_file():
        raise InputError(
            f"text.language.model: no file {path!r}; give a fastText model, or leave it out for the built-in model"
        )
    return path


def read(path: str) -> FastText:
    """Raises InputError (one line) for a missing file, and for any other format."""
    reader = _Reader(existing(path))
    if len(reader.data) < 8 or reader.take("2i") != (MAGIC, VERSION):
        raise _unreadable(path, "wrong magic number or version")
    dim, _, _, _, _, word_ngrams, loss, kind, buckets, shortest, longest, _, _ = reader.take("12id")
    if kind != SUPERVISED or loss not in (HIERARCHICAL, SOFTMAX) or word_ngrams > 1:
        raise _unreadable(
            path, "expected a supervised model with softmax or hierarchical softmax, without word n-grams"
        )
    words, labels, counts, pruned = _dictionary(reader)
    rows, outputs = _matrix(reader, _flag(reader)), _matrix(reader, _flag(reader))
    expected = len(words) + (buckets if pruned is None else len(pruned))
    if (len(rows), len(outputs)) != (expected, len(labels)) or {rows.shape[1], outputs.shape[1]} != {dim}:
        raise _unreadable(path, "its tables have other sizes than its header")
    kept = None
    if pruned is not None:
        kept = np.full(buckets, -1, dtype=np.int32)
        kept[pruned[:, 0]] = pruned[:, 1]
    return FastText(
        words, tuple(labels), np.array(counts), shortest, longest, buckets, kept, rows, outputs, loss == HIERARCHICAL
    )


def _dictionary(reader: _Reader) -> tuple[dict[bytes, int], list[str], list[int], NDArray | None]:
    size, _, _, _, pruned = reader.take("3iqq")
    words: dict[bytes, int] = {}
    labels: list[str] = []
    counts: list[int] = []
    for _ in range(size):
        word = reader.word()
        count, is_label = reader.take("qb")
        if is_label:
            labels.append(word.removeprefix(LABEL).decode("utf-8", "replace"))
            counts.append(count)
        else:
            words[word] = len(words)
    return words, labels, counts, None if pruned < 0 else reader.array("<i4", 2 * pruned).reshape(-1, 2)


def _flag(reader: _Reader) -> bool:
    return bool(reader.take("b")[0])


def _matrix(reader: _Reader, quantised: bool) -> NDArray[np.float32]:
    if not quantised:
        rows, columns = reader.take("2q")
        return reader.array("<f4", rows * columns).reshape(rows, columns)
    with_norms, rows, columns, size = reader.take("b2qi")
    codes = reader.array("u1", size)
    centroids, spans = _quantiser(reader)
    table = np.concatenate(
        [centroids[part][codes.reshape(rows, -1)[:, part], :width] for part, width in enumerate(spans)], axis=1
    )
    if with_norms:
        steps = reader.array("u1", rows)
        norms, _ = _quantiser(reader)
        table = table * norms[0][steps, :1]
    return table.astype(np.float32).reshape(rows, columns)


def _quantiser(reader: _Reader) -> tuple[NDArray[np.float32], list[int]]:
    """Centroids (parts, 256, width), and the width of each part; the last may be narrower."""
    dim, parts, width, last = reader.take("4i")
    flat = reader.array("<f4", dim * CENTROIDS)
    spans = [width] * (parts - 1) + [last]
    centroids = np.zeros((parts, CENTROIDS, max(width, last)), dtype=np.float32)
    for part, span in enumerate(spans):
        start = part * CENTROIDS * width
        centroids[part, :, :span] = flat[start : start + CENTROIDS * span].reshape(CENTROIDS, span)
    return centroids, spans
