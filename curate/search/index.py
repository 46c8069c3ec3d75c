"""Nearest rows of a query in the artifact of `search.fit`.

Leaves are visited by the cosine of their centroids until they have enough rows. Their vectors are compared in half
precision, mapped from the files; then float64 decides among the nearest. Nothing is kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.kernels.vectors import dots, vectors_of
from curate.search.fit import ROWS

SCANNED_ROWS = 1 << 15
"""Rows that a search compares, at least."""
MORE_LEAVES = 8
"""In a tree that was fitted by cells, leaves are compared of the nearest cells with this many times as many rows."""
OPEN_FILES = 64
"""Files that stay mapped."""
SPARE = 32
"""Rows that float64 compares beyond those asked for."""


class SearchIndex:
    """Thread-safe. `artifact` is a StoredArtifact of `search.fit`, `tree` of the tree whose leaves it has."""

    def __init__(self, artifact: Any, tree: Any = None) -> None:
        self._artifact, self._tree = artifact, tree
        self.about: Mapping[str, Any] = artifact["summary"]
        self._edges, self._firsts = artifact["edges"], artifact["first_leaves"]
        self._file = lru_cache(OPEN_FILES)(lambda file: artifact.part(ROWS, file))

    def nearest(
        self, query: NDArray[np.float32], count: int, scanned: int = SCANNED_ROWS
    ) -> tuple[list[str], NDArray[np.float64]]:
        """Keys and cosines of the (about) `count` nearest rows to a query (d,), nearest first; equal ones by key."""
        unit = query.astype(np.float64) / np.linalg.norm(query)
        short, spans, held = unit.astype(np.float32), list[tuple[int, int, int]](), list[NDArray[np.float32]]()
        for span in self._spans(short, max(scanned, count)):
            spans.append(span)
            held.append(dots(self._rows(*span)["vectors"], short))
        score = np.concatenate(held)
        best = np.argpartition(-score, min(count + SPARE, len(score)) - 1)[: count + SPARE]
        starts = np.concatenate([[0], np.cumsum([len(one) for one in held])])
        span_of = np.searchsorted(starts, best, side="right") - 1
        found: list[tuple[float, str]] = []
        for number in np.unique(span_of).tolist():
            rows = self._rows(*spans[number])
            some = best[span_of == number] - starts[number]
            cosine = vectors_of(rows)[some].astype(np.float64) @ unit
            keys = (f"{high:016x}{low:016x}" for high, low in rows["key"][some].tolist())
            found += zip(cosine.tolist(), keys, strict=True)
        found.sort(key=lambda one: (-one[0], one[1]))
        return [key for _, key in found[:count]], np.array([cosine for cosine, _ in found[:count]])

    def _rows(self, file: int, start: int, stop: int) -> dict[str, NDArray[Any]]:
        """Rows of a file, mapped."""
        return {name: array[start:stop] for name, array in self._file(file).items()}

    def _spans(self, query: NDArray[np.float32], rows: int) -> Iterator[tuple[int, int, int]]:
        """(file, first row, stop) of the nearest leaves, until they have `rows` rows."""
        seen = 0
        leaves, score = self._leaves(query, rows * MORE_LEAVES)
        for leaf in leaves[np.argsort(-score, kind="stable")].tolist():
            start, stop = (int(edge) for edge in self._edges[leaf : leaf + 2])
            if start < stop:
                file = int(np.searchsorted(self._firsts, leaf, side="right")) - 1
                base = int(self._edges[self._firsts[file]])
                yield file, start - base, stop - base
                seen += stop - start
            if seen >= rows:
                return

    def _leaves(self, query: NDArray[np.float32], rows: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Leaves, and the cosine of their centroids with the query: all of them, or those of the nearest cells."""
        tree = self._tree
        if tree is None:
            return np.arange(len(self._edges) - 1), self._artifact["centroids"] @ query
        if "cells" not in tree:
            return np.arange(len(self._edges) - 1), _cosines(tree["centroids_1"], query)
        offsets, held, seen = np.asarray(tree["offsets"]), list[tuple[int, int]](), 0
        for cell in np.argsort(-_cosines(tree["cells"], query), kind="stable").tolist():
            held.append((cell, int(offsets[cell])))
            seen += int(self._edges[offsets[cell + 1]] - self._edges[offsets[cell]])
            if seen >= rows:
                break
        found = [_cosines(vectors_of(tree.part("leaves", cell))[:], query) for cell, _ in held]
        leaves = [np.arange(first, first + len(one)) for (_, first), one in zip(held, found, strict=True)]
        return np.concatenate(leaves), np.concatenate(found)


def _cosines(centroids: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """Centroids of raw vectors have any length."""
    lengths = np.sqrt(np.einsum("kd,kd->k", centroids, centroids))
    return np.asarray(centroids @ query / np.maximum(lengths, np.finfo(np.float32).tiny))
