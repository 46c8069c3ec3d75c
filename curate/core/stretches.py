"""What a Fit says of single rows, stored by stretch of shards, so that a Map reads only what is said of its own rows.

A group's parts are stretches of whole shards. Each part stores a file about its rows (`Part.store`), sorted by what it
is searched by; the artifact's `shards` says which part a shard is in, in 16 bytes a shard. A Map that is told the shard
of each row (`Map.by_shard`) opens one file a shard, of at most some million rows. Rows of shards that the fit has not
seen (a pinned artifact, a pool that was cut anew) are searched for in all files, one after the other.
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
"""Column of a batch of a `Map.by_shard`, and metadata of the table that `Fit.load` gets: the id of the shard."""
HELD_PARTS = 4
"""Files that a Map keeps mapped."""
_PACKED = 1 << 20


def shard_word(shard: str) -> np.uint64:
    """64 bits of a shard's id; never 0, which means unknown."""
    return np.uint64(int.from_bytes(hashlib.blake2b(shard.encode(), digest_size=8).digest(), "big") or 1)


def shard_words(table: pa.Table) -> NDArray[np.uint64]:
    """For `Fit.load`: the shard's word, once for each row (n,)."""
    shard = (table.schema.metadata or {}).get(SHARD.encode(), b"").decode()
    return np.full(table.num_rows, shard_word(shard) if shard else 0, dtype=np.uint64)


def shard_index(group: Group) -> NDArray[np.uint64]:
    """What the artifact keeps as `shards`. Parts have `shard` (n,) of `shard_words`."""
    found = [np.empty((0, 2), np.uint64)]
    for part, words in enumerate(group.each(_shards_of)):
        found.append(np.stack([words, np.full(len(words), part, np.uint64)], axis=1))
    index = np.concatenate(found)
    return index[np.argsort(index[:, 0], kind="stable")]


def _shards_of(part: Part, shared: Mapping[str, Any]) -> NDArray[np.uint64]:
    words = np.unique(np.asarray(part.arrays[SHARD]))
    return words[words > 0]


def starts_of(group: Group) -> NDArray[np.int64]:
    """Number of the first row of each part, and of all rows."""
    return np.concatenate([[0], np.cumsum(group.rows)]).astype(np.int64)


def part_of(starts: NDArray[np.int64], rows: NDArray[np.integer]) -> NDArray[np.int64]:
    """The part (n,) that holds each row, by its number in the group."""
    return np.searchsorted(starts, rows, side="right").astype(np.int64) - 1


def store(held: Group, name: str) -> None:
    """Each part of `held` stores its arrays as `name`, sorted by `key`. A group made by `partition` with `part_of` as
    cells has the parts of the group that the rows come from."""
    for _ in held.each(_store, name=name):
        pass


def _store(part: Part, shared: Mapping[str, Any]) -> None:
    order = np.argsort(part.arrays["key"], kind="stable")
    part.store(shared["name"], {name: np.asarray(array)[order] for name, array in part.arrays.items()})


class Stretches:
    """The files of an artifact that rows of a batch have to be looked up in."""

    def __init__(self, artifact: Any, name: str) -> None:
        """`artifact`: a StoredArtifact with `shards` and what its parts stored as `name`."""
        self._artifact, self._name = artifact, name
        index = np.asarray(artifact[SHARDS])
        self._words, self._parts = np.ascontiguousarray(index[:, 0]), index[:, 1].astype(np.int64)
        self._all: list[int] = artifact.parts(name)
        self._held: dict[int, Arrays] = {}

    def only(self, table: pa.Table) -> Iterator[tuple[NDArray[np.int64], Arrays]]:
        """The same, without the rows whose shard is unknown."""
        home = self._homes(table)
        for part in np.unique(home[home >= 0]).tolist():
            yield np.flatnonzero(home == part), self._part(part)

    def of(self, table: pa.Table) -> Iterator[tuple[NDArray[np.int64], Arrays]]:
        """(rows (m,) of the batch, the file's arrays) for each file that says something of them: one where a row's
        shard is known, else all."""
        home = self._homes(table)
        unknown = bool((home < 0).any())
        for part in self._all if unknown else np.unique(home).tolist():
            yield np.flatnonzero((home == part) | (home < 0)), self._part(part)

    def _homes(self, table: pa.Table) -> NDArray[np.int64]:
        """Part (n,) of each row's shard, -1 where the fit has not seen it."""
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
    """Keys (n strings of 32 hex characters) -> bytes (n,) of 16; a million of them are strings at a time."""
    pieces = (column.slice(start, _PACKED).to_pylist() for start in range(0, len(column), _PACKED))
    found = [as_bytes(key_words(piece)) for piece in pieces]
    return np.concatenate(found) if found else np.zeros(0, dtype="S16")


def found_in(ascending: NDArray[Any], wanted: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Place (n,) of each wanted value in a sorted array, where it is there, and whether it is."""
    if not len(ascending):
        return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=bool)
    at = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    return at, ascending[at] == wanted
