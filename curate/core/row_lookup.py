"""Results of a Fit for single rows, stored by part, so that a Map reads only the results that it needs.

The parts of a group are ranges of whole shards. Each part stores a file about its rows (`Part.store`), sorted by the
key to look up; the artifact's `shards` maps each shard to its part, in 16 bytes per shard. A Map that gets the shard of
each row (`Map.by_shard`) opens one file per shard, of at most a few million rows. Rows of shards unknown to the fit (of
a pinned artifact, or of a pool that was sharded again) are looked up in all files in turn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.group import Arrays, Group, Part
from curate.core.hashing import key_words

SHARDS = "shards"
"""Name of the index in an artifact: (shards, 2) words, `shard_word` and part, ascending."""
SHARD = "shard"
"""Shard id: a column of the batches of a `Map.by_shard`, and metadata of the table passed to `Fit.load`."""
HELD_PARTS = 4
"""Files that a Map keeps memory-mapped."""
_PACKED = 1 << 20


def shard_word(shard: str) -> np.uint64:
    """64 bits of a shard's id; never 0, which means unknown."""
    return np.uint64(int.from_bytes(hashlib.blake2b(shard.encode(), digest_size=8).digest(), "big") or 1)


def shard_words(table: pa.Table) -> NDArray[np.uint64]:
    """For `Fit.load`: the shard's word, once for each row (n,)."""
    shard = (table.schema.metadata or {}).get(SHARD.encode(), b"").decode()
    return np.full(table.num_rows, shard_word(shard) if shard else 0, dtype=np.uint64)


def shard_index(group: Group) -> NDArray[np.uint64]:
    """The `shards` of an artifact. Parts have an array `shard` (n,) of `shard_words`."""
    found = [np.empty((0, 2), np.uint64)]
    for part, words in enumerate(group.each(_shards_of)):
        found.append(np.stack([words, np.full(len(words), part, np.uint64)], axis=1))
    index = np.concatenate(found)
    return index[np.argsort(index[:, 0], kind="stable")]


def _shards_of(part: Part, shared: Mapping[str, Any]) -> NDArray[np.uint64]:
    words = np.unique(np.asarray(part.arrays[SHARD]))
    return words[words > 0]


def starts_of(group: Group) -> NDArray[np.int64]:
    """First row number of each part, then the number of all rows."""
    return np.concatenate([[0], np.cumsum(group.rows)]).astype(np.int64)


def part_of(starts: NDArray[np.int64], rows: NDArray[np.integer]) -> NDArray[np.int64]:
    """Part (n,) of each row, by its number in the group."""
    return np.searchsorted(starts, rows, side="right").astype(np.int64) - 1


def store(group: Group, name: str) -> None:
    """Let each part of `group` store its arrays as `name`, sorted by `key`. Regroup first, with `partition` and the
    cells of `part_of`, so that each part has the rows that it had in the original group."""
    for _ in group.each(_store, name=name):
        pass


def _store(part: Part, shared: Mapping[str, Any]) -> None:
    order = np.argsort(part.arrays["key"], kind="stable")
    part.store(shared["name"], {name: np.asarray(array)[order] for name, array in part.arrays.items()})


class RowLookup:
    """Looks rows of a batch up in the files of an artifact."""

    def __init__(self, artifact: Any, name: str) -> None:
        """`artifact`: a StoredArtifact with `shards` and the files that its parts stored as `name`."""
        self._artifact, self._name = artifact, name
        index = np.asarray(artifact[SHARDS])
        self._words, self._parts = np.ascontiguousarray(index[:, 0]), index[:, 1].astype(np.int64)
        self._all: list[int] = artifact.parts(name)
        self._held: dict[int, Arrays] = {}

    def files(self, table: pa.Table) -> Iterator[tuple[NDArray[np.int64], Arrays]]:
        """(rows (m,) of the batch, arrays of a file) for each file that may have results for them: one if a row's
        shard is known, otherwise all."""
        parts = self._parts_of(table)
        unknown = bool((parts < 0).any())
        for part in self._all if unknown else np.unique(parts).tolist():
            yield np.flatnonzero((parts == part) | (parts < 0)), self._part(part)

    def known_rows(self, table: pa.Table) -> Iterator[tuple[NDArray[np.int64], Arrays]]:
        """Like `files`, without the rows of unknown shards."""
        parts = self._parts_of(table)
        for part in np.unique(parts[parts >= 0]).tolist():
            yield np.flatnonzero(parts == part), self._part(part)

    def _parts_of(self, table: pa.Table) -> NDArray[np.int64]:
        """Part (n,) of each row's shard; -1 if the shard is unknown to the fit."""
        if SHARD not in table.column_names or not table.num_rows:
            return np.full(table.num_rows, -1, dtype=np.int64)
        shards = table.column(SHARD).combine_chunks().dictionary_encode()
        words = np.array([shard_word(shard) for shard in shards.dictionary.to_pylist()], dtype=np.uint64)
        at, known = found_in(self._words, words)
        parts = np.full(len(words), -1, dtype=np.int64)
        parts[known] = self._parts[at[known]]
        return parts[shards.indices.to_numpy()]

    def _part(self, part: int) -> Arrays:
        arrays = self._held.get(part)
        if arrays is None:
            arrays = self._artifact.part(self._name, part)
            self._held = dict([*self._held.items(), (part, arrays)][-HELD_PARTS:])
        return arrays


def as_bytes(words: NDArray[np.uint64]) -> NDArray[np.bytes_]:
    """Words (n, 2) -> bytes (n,) of 16, in the same order."""
    return np.frombuffer(words.astype(">u8").tobytes(), dtype="S16")


def as_words(packed: NDArray[np.bytes_]) -> NDArray[np.uint64]:
    """Bytes (n,) of 16 -> words (n, 2)."""
    return np.frombuffer(np.asarray(packed, dtype="S16").tobytes(), dtype=">u8").astype(np.uint64).reshape(-1, 2)


def packed_keys(column: pa.ChunkedArray) -> NDArray[np.bytes_]:
    """Keys (n strings of 32 hex characters) -> bytes (n,) of 16, converted a million at a time."""
    pieces = (column.slice(start, _PACKED).to_pylist() for start in range(0, len(column), _PACKED))
    found = [as_bytes(key_words(piece)) for piece in pieces]
    return np.concatenate(found) if found else np.zeros(0, dtype="S16")


def found_in(ascending: NDArray[Any], wanted: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Position (n,) of each wanted value in a sorted array, and whether it is in it."""
    if not len(ascending):
        return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=bool)
    at = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    return at, ascending[at] == wanted
