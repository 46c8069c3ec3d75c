"""Sets of keys, 16 bytes each in memory."""

from __future__ import annotations

from binascii import unhexlify

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.hashing import KEY_HEX, keys_of_words

Words = NDArray[np.uint64]


def words_of(keys: pa.ChunkedArray) -> Words:
    """`key_words` of a column without nulls, from its buffer."""
    parts = []
    for chunk in keys.cast(pa.string()).chunks:
        start, stop = np.frombuffer(chunk.buffers()[1], np.int32, len(chunk) + 1, 4 * chunk.offset)[[0, -1]]
        if stop - start != KEY_HEX * len(chunk) or chunk.null_count:
            raise ValueError(f"keys: expected {KEY_HEX} hex characters each")
        parts.append(np.frombuffer(unhexlify(memoryview(chunk.buffers()[2])[start:stop]), ">u8").astype(np.uint64))
    return np.concatenate(parts or [np.empty(0, np.uint64)]).reshape(-1, 2)


class Keys:
    """Lines by their key. `words`: the key of each line (n, 2), which may repeat."""

    def __init__(self, words: Words) -> None:
        order = np.lexsort((words[:, 1], words[:, 0]))
        ordered = words[order]
        first = np.ones(len(order), dtype=bool)
        first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
        self.order: NDArray[np.int64] = order
        """Lines, sorted by key."""
        self.words: Words = ordered[first]
        """(m, 2) the keys, sorted, each once."""
        self.edges: NDArray[np.int64] = np.append(np.flatnonzero(first), len(order))
        """Key i has the lines order[edges[i] : edges[i + 1]]."""
        high = self._high = np.ascontiguousarray(self.words[:, 0])
        self._low = np.ascontiguousarray(self.words[:, 1])
        same = np.flatnonzero(np.diff(np.flatnonzero(np.r_[True, high[1:] != high[:-1], True])) > 1)
        self._most = 1 if not len(same) else int(np.unique(high, return_counts=True)[1].max())

    def __len__(self) -> int:
        return len(self.words)

    def find(self, words: Words) -> NDArray[np.int64]:
        """Place of each key (q, 2) in `words`; -1 for a key that is missing."""
        found = np.full(len(words), -1, np.int64)
        order = np.argsort(words[:, 0])  # neighbouring searches then share what they read
        high, low = np.ascontiguousarray(words[order, 0]), np.ascontiguousarray(words[order, 1])
        place = np.searchsorted(self._high, high)
        for ahead in range(self._most if len(self) else 0):  # 64 bits are hardly ever shared, but may be
            at = np.minimum(place + ahead, len(self) - 1)
            hit = (self._high[at] == high) & (self._low[at] == low)
            found[order[hit]] = at[hit]
        return found

    def without(self, other: Keys) -> list[str]:
        """The keys that `other` lacks, sorted."""
        return keys_of_words(self.words[other.find(self.words) < 0])
