"""Bucket by bucket the same sets are found as over all rows at once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.group import MemoryGroup
from curate.image import duplicate_edges
from curate.image.duplicate_edges import exact_edges, near_edges
from curate.image.hamming import components, group_edges
from tests.image.test_hamming import brute, flipped, partition


def parts(count: int, **arrays: np.ndarray) -> list[dict[str, Any]]:
    cuts = np.linspace(0, len(next(iter(arrays.values()))), count + 1).astype(int)
    return [{n: a[x:y] for n, a in arrays.items()} for x, y in pairwise(cuts)]


@pytest.fixture(autouse=True, scope="module")
def small_buckets() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicate_edges, "BUCKET_ROWS", 4)
        yield


@given(
    st.integers(0, 40),
    st.integers(1, 4),
    st.integers(-1, 20),
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 255)), max_size=120),
)
def test_near_in_parts_and_buckets(rows: int, count: int, distance: int, flips: list[tuple[int, int]]) -> None:
    rng = np.random.default_rng(rows)
    centres = rng.integers(0, 256, (3, 32), dtype=np.uint8)
    hashes = centres[rng.integers(0, 3, rows)]
    hashes = flipped(hashes, flips) if rows else hashes
    comparable = rng.random(rows) < 0.9
    group = MemoryGroup(parts(count, hash=hashes, comparable=comparable))
    found = components(rows, [near_edges(group, distance)])
    where = np.flatnonzero(comparable)
    labels = brute(hashes[where], distance)
    wanted = np.arange(rows)
    for label in np.unique(labels):
        wanted[where[labels == label]] = where[labels == label][0]
    assert partition(found) == partition(wanted)


@given(st.lists(st.tuples(st.integers(-1, 4), st.integers(-1, 4)), max_size=30), st.integers(1, 4))
def test_equal_in_parts_and_buckets(codes: list[tuple[int, int]], count: int) -> None:
    """The same digest as another's of the other sort is no match."""
    values = np.array(codes, dtype=np.int64).reshape(-1, 2)
    digests = np.repeat((values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))[..., None], 4, axis=2)
    group = MemoryGroup(parts(count, digests=digests, known=values >= 0))
    found = components(len(values), [exact_edges(group)])
    assert partition(found) == partition(components(len(values), [group_edges(sort) for sort in values.T]))
