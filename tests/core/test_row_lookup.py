"""Results of a fit are looked up in one file if the shard of a row is known, otherwise in all files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from curate.core.group import MemoryGroup
from curate.core.hashing import key_words, make_key
from curate.core.nouns.artifacts import StoredArtifact, save_artifact
from curate.core.row_lookup import (
    HELD_PARTS,
    SHARDS,
    RowLookup,
    as_bytes,
    as_words,
    found_in,
    packed_keys,
    part_of,
    shard_index,
    shard_words,
    starts_of,
    store,
)
from curate.core.store.arrays import write_arrays
from curate.core.store.storage import Storage

PARTS = 7


def loaded(part: int) -> dict[str, np.ndarray]:
    """Two shards per part, three rows each."""
    tables = [pa.table({"key": ["k"] * 3}).replace_schema_metadata({"shard": f"{part}{which}"}) for which in "ab"]
    return {"shard": np.concatenate([shard_words(table) for table in tables]), "value": np.arange(6)}


@pytest.fixture
def artifact(storage: Storage) -> StoredArtifact:
    group = MemoryGroup([loaded(part) for part in range(PARTS)])
    save_artifact(storage, "artifacts/op/f", {SHARDS: shard_index(group)})
    for part in range(PARTS):
        write_arrays(storage, f"artifacts/op/f/found/{part:06d}.npz", {"part": np.array([part])})
    return StoredArtifact(storage, "artifacts/op/f")


def looked_up(lookup: RowLookup, shards: list[str] | None, only: bool = False) -> list[tuple[int, list[int]]]:
    table = pa.table({"key": ["k"] * 4})
    if shards is not None:
        table = pa.table({"key": ["k"] * len(shards), "shard": pa.array(shards, pa.string()).dictionary_encode()})
    found = (lookup.known_rows if only else lookup.files)(table)
    return [(int(held["part"][0]), rows.tolist()) for rows, held in found]


def test_rows_are_looked_up_in_the_part_of_their_shard(artifact: StoredArtifact) -> None:
    lookup = RowLookup(artifact, "found")
    assert looked_up(lookup, ["5b", "2a", "2b", "5a"]) == [(2, [1, 2]), (5, [0, 3])]
    assert looked_up(lookup, []) == []


def test_rows_of_unknown_shards_are_looked_up_in_all(artifact: StoredArtifact) -> None:
    lookup = RowLookup(artifact, "found")
    expected = [(part, [0, 1, 2] if part == 3 else [2]) for part in range(PARTS)]
    assert looked_up(lookup, ["3a", "3b", "new"]) == expected
    assert looked_up(lookup, None) == [(part, [0, 1, 2, 3]) for part in range(PARTS)]
    assert looked_up(lookup, ["3a", "new"], only=True) == [(3, [0])]
    assert looked_up(lookup, None, only=True) == []


def test_few_files_are_held(artifact: StoredArtifact) -> None:
    lookup = RowLookup(artifact, "found")
    for _ in range(2):
        assert len(looked_up(lookup, None)) == PARTS
        assert len(lookup._held) == HELD_PARTS


def test_the_index_has_each_shard_once(artifact: StoredArtifact) -> None:
    index = artifact[SHARDS]
    assert index.shape == (2 * PARTS, 2) and (np.diff(index[:, 0].astype(object)) > 0).all()
    assert sorted(index[:, 1].tolist()) == [part for part in range(PARTS) for _ in range(2)]
    assert not shard_words(pa.table({"key": ["k"]})).any(), "a table without the id of its shard"
    assert shard_index(MemoryGroup([{"shard": np.zeros(3, np.uint64)}])).shape == (0, 2)


def test_rows_are_stored_with_their_part_by_key() -> None:
    group = MemoryGroup([{"x": np.arange(rows)} for rows in (3, 0, 4)])
    assert part_of(starts_of(group), np.arange(7)).tolist() == [0, 0, 0, 2, 2, 2, 2]
    keys = as_bytes(key_words([make_key("k", str(row)) for row in range(7)]))

    def to_part(part: Any, shared: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        row = np.asarray(part.arrays["row"])
        return part_of(shared["starts"], row), {"key": keys[row], "row": row}

    scattered = group.scatter("rows", {"row": np.array([6, 0, 5, 2, 3])})
    store(scattered.partition("part", to_part, 3, starts=starts_of(group)), "found")
    for part, rows in enumerate(([0, 2], [], [3, 5, 6])):
        held = group._stored["found"][part]
        assert held["key"].tolist() == sorted(keys[rows].tolist()) and sorted(held["row"].tolist()) == rows


def test_keys_as_bytes() -> None:
    keys = [*(make_key("k", str(row)) for row in range(9)), "00" * 16, "ff" * 15 + "00"]
    packed = packed_keys(pa.chunked_array([keys[:4], keys[4:]]))
    assert (as_words(packed) == key_words(keys)).all() and packed.dtype == "S16"
    assert np.argsort(packed).tolist() == sorted(range(len(keys)), key=lambda row: keys[row])
    at, present = found_in(np.sort(packed)[:5], packed)
    assert present.sum() == 5 and (np.sort(packed)[at[present]] == packed[present]).all()
    assert not found_in(packed[:0], packed)[1].any()
