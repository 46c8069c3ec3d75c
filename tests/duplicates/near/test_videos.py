"""Sets of videos from their lists of hashes."""

from __future__ import annotations

import hashlib
import tracemalloc
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from curate.core.group import MemoryGroup
from curate.duplicates.near import hamming
from curate.duplicates.near.videos import FindVideoDuplicates
from curate.video.facts import SCHEMA
from tests.core.stored import Stored, members
from tests.duplicates.near.test_hamming import flipped

RANDOM = np.random.default_rng(5)
Hashes = list[bytes]


def some(count: int) -> Hashes:
    return [row.tobytes() for row in RANDOM.integers(0, 256, (count, 32), dtype=np.uint8)]


def near(hashes: Hashes, bits: int = 12) -> Hashes:
    """As of a re-encoded copy."""
    rows = np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, 32)
    flips = [(row, int(bit)) for row in range(len(rows)) for bit in RANDOM.choice(256, bits, replace=False)]
    return [row.tobytes() for row in flipped(rows, flips)]


def sets(videos: list[list[bytes | None]], shards: int = 1, equal: bool = False, **parameters: Any) -> list[list[int]]:
    """Numbers of the videos of each set, the keeper first."""
    stage, count = FindVideoDuplicates(**parameters), len(videos)
    table = pa.table(
        {
            "key": [f"{number:032x}" for number in range(count)],
            "source_id": [f"{number}.mp4" for number in range(count)],
            "sha256": [
                hashlib.sha256(b"" if equal else bytes([number % 256, number >> 8])).hexdigest()
                for number in range(count)
            ],
            "frame_hashes": pa.array(videos, SCHEMA.field("frame_hashes").type),
            "width": pa.array([100] * count, pa.int32()),
            "height": pa.array([100] * count, pa.int32()),
            "duration_ms": pa.array([1000 * len(hashes) for hashes in videos], pa.int64()),
        }
    )
    parts = [table.slice(start, -(-count // shards)) for start in range(0, count, -(-count // shards))]
    group = MemoryGroup([stage.load(part) for part in parts])
    found: dict[int, list[int]] = {}
    for row in members(Stored(stage.fit(group), group)):
        found.setdefault(int(row["keeper"], 16), []).append(int(row["key"], 16))
    return sorted([keeper, *sorted(set(rows) - {keeper})] for keeper, rows in found.items())


def test_copies_are_sets_and_the_longest_is_kept() -> None:
    film, other = some(20), some(20)
    videos = [near(film)[4:], film, near(film), other, near(other), some(20)]
    for shards in (1, 3):
        assert sets(videos, shards) == [[1, 0, 2], [3, 4]]


def test_a_part_is_a_copy_if_enough_of_the_longer_video_matches() -> None:
    film = some(20)
    videos = [film, near(film[:10])]
    assert sets(videos, min_share=0.5) == [[0, 1]] and sets(videos, min_share=0.51) == []


@pytest.mark.parametrize("shared", [1, 3])
def test_a_title_in_common_is_not_a_copy(shared: int) -> None:
    title = some(shared)
    assert sets([title + some(9), near(title) + some(9), title + some(20)]) == []


def test_copies_of_calm_videos_are_found_whatever_noise_adds() -> None:
    """Where little moves, hashes drift; one copy has a few of them, the other many."""
    drift = some(1)
    for _ in range(150):
        drift += near(drift[-1:], 2)
    coarse = near([drift[step // 15 * 15] for step in range(len(drift))], 0)
    noisy = [near([one], 4)[0] for one in drift]
    assert sets([noisy, coarse]) == [[0, 1]] and len(set(noisy)) > 10 * len(set(coarse))
    assert sets([noisy, noisy[:120], some(1) * 50 + some(3)]) == [[0, 1]]


def test_a_repeated_hash_counts_once() -> None:
    still = some(1)
    assert sets([still * 30 + some(9), still * 30 + some(9)]) == []


def test_videos_without_hashes_are_compared_by_their_bytes() -> None:
    assert sets([[None], [None], []]) == [] and sets([[None], [None], []], equal=True) == [[0, 1, 2]]
    assert sets([some(3), some(3)], equal=True) == [[0, 1]] == sets([some(3)] * 2, max_distance=-1, equal=True)


def test_all_pairs_are_found_and_equal_ones_once() -> None:
    hashes = [one for base in some(12) for copies in ([base] * 2, near([base] * 3, 8)) for one in copies]
    rows = np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, 32)
    bits = np.unpackbits(rows, axis=1)
    expected = {(a, b) for a, b in combinations(range(len(rows)), 2) if (bits[a] != bits[b]).sum() <= 20}
    found = [
        tuple(sorted(pair))
        for band in range(21)
        for first, second in hamming.band_pairs(rows, band, 20)
        for pair in zip(first.tolist(), second.tolist(), strict=True)
    ]
    assert set(found) == expected
    assert [found.count((5 * place, 5 * place + 1)) for place in range(12)] == [1] * 12


@pytest.mark.long
def test_a_title_of_very_many_videos_takes_little_memory_and_hides_no_copies() -> None:
    title, count = some(1), 3000
    videos: list[Any] = [title + some(3) if number % 2 else near(title, 3) + some(3) for number in range(count)]
    videos += [videos[7][:1] + near(videos[7][1:]), videos[8][:1] + near(videos[8][1:])]
    tracemalloc.start()
    try:
        assert sets(videos) == [[7, count], [8, count + 1]]
        assert tracemalloc.get_traced_memory()[1] < 400e6  # all pairs of the title alone: 650 MB
    finally:
        tracemalloc.stop()
