"""64-bit hashes of strings, thousands at a time: the same on every machine and in every version.

A string is its UTF-8 bytes in little-endian words of 64 bits, the last one padded with zeros. Each word is added to the
state by exclusive or, then `mixed` (a step of splitmix64) spreads it. The hash is not cryptographic, but two hashes of
one string that begin differently are independent of each other.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.hashing import mixed

WORD = 8
LONG_BYTES = 512
"""Longer strings are hashed by BLAKE2b: one of them would cost all others of its block a round per word."""
BLOCK_ROWS = 1 << 15
"""Rows whose words and states fit into a core's cache, and that outweigh the cost of a call."""
_NULL = b"null"
_WORD_BITS = np.uint64(64)
_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)
_SEED = np.uint64(0xD1B54A32D192ED03)

Words = NDArray[np.uint64]


def hashed(column: pa.StringArray, count: int = 1) -> Words:
    """Hashes of each string (count, n), at most 8; null has separate ones."""
    edges, data = _bytes(column)
    words = np.zeros(len(data) // WORD + 2, dtype="<u8")
    words.view(np.uint8)[: len(data)] = data
    found = np.empty((count, len(column)), dtype=np.uint64)
    for first in range(0, len(column), BLOCK_ROWS):
        block = edges[first : first + BLOCK_ROWS + 1]
        found[:, first : first + BLOCK_ROWS] = _hashed_block(words, block[:-1], np.diff(block), count)
    for row in np.flatnonzero(np.diff(edges) > LONG_BYTES):
        found[:, row] = _long(data[edges[row] : edges[row + 1]].tobytes(), count)
    if column.null_count:
        found[:, column.is_null().to_numpy(zero_copy_only=False)] = _long(_NULL, count)[:, None]
    return found


def joined(first: Words, second: Words) -> Words:
    """Hash of each pair of hashes; their order counts."""
    return mixed(mixed(first) ^ second)


def _long(text: bytes, count: int) -> Words:
    return np.frombuffer(hashlib.blake2b(text).digest(), "<u8")[:count].astype(np.uint64)


def _bytes(column: pa.StringArray) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """(first byte of each string, and the end of the last, (n + 1,); bytes), both from 0."""
    if not len(column):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    _, offsets, data = column.buffers()
    edges = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    if data is None:
        return edges - edges[0], np.zeros(0, np.uint8)
    return edges - edges[0], np.frombuffer(data, np.uint8)[edges[0] : edges[-1]]


def _hashed_block(words: Words, starts: NDArray[np.int64], lengths: NDArray[np.int64], count: int) -> Words:
    """Hashes (count, n) of the strings that have `lengths` bytes of `words` from `starts` on."""
    lengths = np.where(lengths > LONG_BYTES, 0, lengths)
    many = -(-lengths // WORD)
    order = np.argsort(-many.astype(np.int16), kind="stable")  # longest first: those with a further word are a prefix
    starts, lengths, many = starts[order], lengths[order], many[order]
    having = np.searchsorted(-many, -np.arange(many[0] + 1))
    place, bits = starts >> 3, ((starts & 7) << 3).astype(np.uint64)  # its first word, and the first bit in it
    states = [mixed(lengths.astype(np.uint64) + seed) for seed in np.arange(count, dtype=np.uint64) * _SEED]
    here = words.take(place)
    for number in range(many[0]):
        rows, further = having[number], having[number + 1]
        after = words.take(place[:rows] + (number + 1))
        word = (here[:rows] >> bits[:rows]) | (after << (_WORD_BITS - bits[:rows]))
        ending = (WORD * (number + 1) - lengths[further:rows]).astype(np.uint64)
        word[further:] &= _ONES >> (np.uint64(8) * ending)
        for state in states:
            state[:rows] = mixed(state[:rows] ^ word)
        here = after
    found = np.empty((count, len(order)), dtype=np.uint64)
    found[:, order] = states
    return found
