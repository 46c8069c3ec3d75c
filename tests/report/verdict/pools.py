"""Pools with labels and embeddings, and selections from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from curate.report.verdict.compare import Comparison, compare

Integers = NDArray[np.int64]
LONG_TAIL = tuple(int(400 * 0.02 ** (place / 9)) for place in range(10))
EQUAL = (80,) * 10


def pool(sizes: Sequence[int], seed: int) -> tuple[Integers, NDArray[np.float32], np.random.Generator]:
    """Labels (n,) and unit vectors (n, 16) around a centre per label, in random order."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    vectors = random.standard_normal((len(sizes), 16))[labels] + random.standard_normal((len(labels), 16))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return labels, vectors.astype(np.float32), random


def evened(labels: Integers, count: int, random: np.random.Generator) -> Integers:
    """Copies of a selection with as many rows of each label as there are, up to a common limit."""
    place = np.zeros(len(labels), np.int64)
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        place[rows] = np.arange(len(rows))
    return taken(np.argsort(place, kind="stable")[:count], len(labels))


def uniform(labels: Integers, count: int, random: np.random.Generator) -> Integers:
    return taken(random.permutation(len(labels))[:count], len(labels))


def largest(labels: Integers, count: int, random: np.random.Generator) -> Integers:
    """The largest labels first."""
    rows = random.permutation(len(labels))
    return taken(rows[np.argsort(-np.bincount(labels)[labels[rows]], kind="stable")][:count], len(labels))


def central(labels: Integers, vectors: NDArray[np.float32], each: int) -> Integers:
    """The `each` images of each label that lie nearest to its centre."""
    centres = np.stack([vectors[labels == label].mean(0) for label in np.unique(labels)])
    order = np.argsort(-(vectors * centres[labels]).sum(1), kind="stable")
    return taken(np.concatenate([order[labels[order] == label][:each] for label in np.unique(labels)]), len(labels))


def taken(rows: Integers, count: int) -> Integers:
    copies = np.zeros(count, np.int64)
    copies[rows] = 1
    return copies


def compared(
    copies: Integers, labels: Integers | None, vectors: NDArray[np.float32] | None, random: np.random.Generator
) -> Comparison | None:
    held_out = random.random(len(copies)) < 0.1
    known = np.full(len(copies), -1) if labels is None else labels
    seen = np.full((len(copies), 1), np.nan, np.float32) if vectors is None else vectors
    return compare(copies, known, np.bincount(known[known >= 0]), seen, held_out, held_out)
