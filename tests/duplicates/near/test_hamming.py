from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.duplicates.near import hamming
from curate.duplicates.near.hamming import Edges, band_edges, band_values, components, group_edges, spanning


def near_edges(hashes: np.ndarray, max_distance: int) -> Iterator[Edges]:
    """Edges of all bands."""
    for band in range(max_distance + 1):
        yield from band_edges(hashes, band, max_distance)


def flipped(hashes: np.ndarray, flips: list[tuple[int, int]]) -> np.ndarray:
    bits = np.unpackbits(hashes, axis=1)
    for row, bit in flips:
        bits[row % len(bits), bit] ^= 1
    return np.packbits(bits, axis=1)


def brute(hashes: np.ndarray, max_distance: int) -> np.ndarray:
    bits = np.unpackbits(hashes, axis=1).astype(int)
    distance = (bits[:, None] != bits[None]).sum(axis=2)
    return components(len(hashes), [np.nonzero(distance <= max_distance)])


def partition(labels: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in np.unique(labels)}


@given(
    st.integers(1, 40),
    st.integers(0, 3),
    st.integers(0, 40),
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 255)), max_size=120),
)
def test_components_equal_those_of_all_pairs(rows: int, seed: int, distance: int, flips: list[tuple[int, int]]) -> None:
    rng = np.random.default_rng(seed)
    centres = rng.integers(0, 256, (3, 32), dtype=np.uint8) & rng.integers(0, 256, 32, dtype=np.uint8)
    hashes = flipped(centres[rng.integers(0, 3, rows)], flips)
    assert partition(components(rows, near_edges(hashes, distance))) == partition(brute(hashes, distance))


@pytest.mark.parametrize("distance", [0, 1, 6, 20])
@pytest.mark.parametrize("density", [0.001, 0.01, 0.04])
def test_crowded_bands_are_searched_in_full(monkeypatch: pytest.MonkeyPatch, distance: int, density: float) -> None:
    monkeypatch.setattr(hamming, "_CROWD", 4)
    monkeypatch.setattr(hamming, "_PAIRS_AT_ONCE", 64)
    rng = np.random.default_rng(7)
    bits = np.zeros((250, 256), dtype=np.uint8)
    bits[::2] = rng.integers(0, 2, 256)
    hashes = np.packbits(bits ^ (rng.random(bits.shape) < density), axis=1)
    assert partition(components(250, near_edges(hashes, distance))) == partition(brute(hashes, distance))


def test_a_heavy_head_does_not_list_all_pairs() -> None:
    """Each of 6,000 hashes has thousands within max_distance: about 17 million pairs, but under 1 million edges."""
    rng = np.random.default_rng(0)
    bits = np.repeat(rng.integers(0, 2, (1, 256), dtype=np.uint8), 6_000, axis=0)
    bits ^= rng.random(bits.shape) < 0.006
    edges = list(near_edges(np.packbits(bits, axis=1), 6))
    assert sum(len(first) for first, _ in edges) < 1_000_000
    assert len(np.unique(components(6_000, edges))) < 60


def test_empty_and_single() -> None:
    none = np.empty((0, 32), dtype=np.uint8)
    assert components(0, near_edges(none, 6)).tolist() == []
    assert components(1, near_edges(np.zeros((1, 32), np.uint8), 6)).tolist() == [0]


@given(st.lists(st.integers(-1, 5), max_size=30))
def test_groups_are_joined_and_negative_numbers_are_not(codes: list[int]) -> None:
    groups = np.array(codes, dtype=np.int64)
    labels = components(len(groups), [group_edges(groups)])
    for i, a in enumerate(codes):
        for j, b in enumerate(codes):
            assert (labels[i] == labels[j]) == (i == j or (a == b and a >= 0))


EDGES = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=40)


@given(EDGES)
def test_a_spanning_forest_has_the_same_components(pairs: list[tuple[int, int]]) -> None:
    edges = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    first, second = spanning([(edges[:, 0], edges[:, 1])])
    whole, fewest = components(21, [(edges[:, 0], edges[:, 1])]), components(21, [(first, second)])
    assert partition(whole) == partition(fewest)
    assert len(first) == 21 - len(np.unique(whole))


@given(st.integers(0, 1000), st.integers(0, 64))
def test_hashes_within_max_distance_agree_in_a_band(seed: int, distance: int) -> None:
    rng = np.random.default_rng(seed)
    bits = np.repeat(rng.integers(0, 2, (1, 256), dtype=np.uint8), 2, axis=0)
    bits[1, rng.choice(256, distance, replace=False)] ^= 1
    hashes = np.packbits(bits, axis=1)
    agree = [band for band in range(distance + 1) if np.ptp(band_values(hashes, band, distance)) == 0]
    assert agree
    assert sum(len(first) for first, _ in band_edges(hashes, agree[0], distance)) == 1
