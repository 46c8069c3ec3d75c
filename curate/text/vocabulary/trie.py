"""All entries of a vocabulary in many texts at once: words become numbers, and a trie over numbers is walked by arrays.

Text and entries are compared word by word in the form of `curate.text.phrases`. All words of a batch are numbered at
once by a hash table that is looked up by arrays; then they are states of the trie, and step k asks which of those still
alive go on with the word k places further. A vocabulary of words and pairs takes two or three steps. Aho-Corasick over
characters (`Phrases`) finds the same; there, each of so many matches is a Python object.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from curate.text.phrases import blobs_of

LONGEST_WORDS = 20
"""Words of an entry at most: a step is needed for each, whatever the texts are."""
_END, _UNKNOWN = 0, -1
_HALF = 8
"""Bytes of a number: words of up to two are compared as two numbers, longer ones as what they are."""
_MASKS = np.array([(1 << (8 * size)) - 1 for size in range(_HALF + 1)], dtype=np.uint64)

Numbers = NDArray[np.int64]


class WordTrie:
    """Finds every entry (normalised, distinct, of 1 to LONGEST_WORDS words) that stands in a text, also within others.

    Memory: about 100 bytes per word and as many per entry of several words.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        split = [entry.encode().split() for entry in entries]
        if any(not 0 < len(words) <= LONGEST_WORDS for words in split):
            raise ValueError(f"an entry without words, or with more than {LONGEST_WORDS}")
        self._words = _Words([word for words in split for word in words])
        spelled = np.concatenate([np.empty(0, np.int64), self._words.numbers(b" ".join(map(b" ".join, split)))])
        lengths = np.array([len(words) for words in split], dtype=np.int64)
        first = np.cumsum(lengths) - lengths
        node, count = spelled[first], self._words.count
        edges: list[tuple[Numbers, Numbers, Numbers]] = [(np.empty(0, np.int64),) * 3]
        for step in range(1, int(lengths.max(initial=1))):
            longer = np.flatnonzero(lengths > step)
            pairs = np.stack([node[longer], spelled[first[longer] + step]])
            unique, inverse = np.unique(pairs, axis=1, return_inverse=True)
            edges.append((unique[0], unique[1], count + np.arange(unique.shape[1])))
            node[longer] = count + inverse.ravel()
            count += unique.shape[1]
        parents, words, children = (np.concatenate(column) for column in zip(*edges, strict=True))
        self._next = _Table(parents, words, children)
        self._inner = np.zeros(count, dtype=bool)
        self._inner[parents] = True
        self._entry = np.full(count, -1, dtype=np.int32)
        self._entry[node] = np.arange(len(node))

    def find(self, texts: Sequence[str | None]) -> tuple[Numbers, NDArray[np.int32]]:
        """Index of the text and of the entry (m,) of every entry that a text has: each pair once, sorted."""
        pairs = [np.empty(0, dtype=np.int64)]
        for start, blob in blobs_of(texts):
            ids = self._words.numbers(blob)
            text = np.cumsum(ids == _END) + start
            places, entries = self._walk(ids)
            pair = np.sort(text[places] * len(self._entry) + entries)  # far faster than np.unique, which hashes
            pairs.append(pair[np.diff(pair, prepend=-1) > 0])
        text, entry = np.divmod(np.concatenate(pairs), len(self._entry))
        return text, entry.astype(np.int32)

    def _walk(self, ids: Numbers) -> tuple[Numbers, NDArray[np.int32]]:
        """Place of the first word and entry of every match among word numbers that end with _END."""
        place = np.flatnonzero(ids > _END)
        node = ids[place]
        places, entries = [], []
        for step in range(1, LONGEST_WORDS + 1):
            entry = self._entry[node]
            here = entry >= 0
            places.append(place[here])
            entries.append(entry[here])
            inner = np.flatnonzero(self._inner[node])
            place, node = place[inner], node[inner]
            word = ids[place + step]  # there is one, since a text's last word is _END and no node goes past it
            node = self._next.get(node, word)
            place, node = place[node >= 0], node[node >= 0]
            if not len(place):
                break
        return np.concatenate(places), np.concatenate(entries)


class _Words:
    """Numbers the words of a blob: 1, 2, … those that it knows, _END, or _UNKNOWN."""

    def __init__(self, words: Iterable[bytes]) -> None:
        known = list(dict.fromkeys(words))
        self.count = len(known) + 1
        numbers = np.arange(1, self.count)
        lengths = np.array([len(word) for word in known], dtype=np.int64)
        short = np.flatnonzero(lengths <= 2 * _HALF)
        self._long = {known[i]: i + 1 for i in np.flatnonzero(lengths > 2 * _HALF).tolist()}
        blob = b"".join(known)
        self._short = _Table(*_halves(blob, (np.cumsum(lengths) - lengths)[short], lengths[short]), numbers[short])

    def numbers(self, blob: bytes) -> Numbers:
        """The number (n,) of each word of a blob of words between spaces."""
        edge = np.diff((np.frombuffer(b" " + blob + b" ", dtype=np.uint8) != ord(" ")).view(np.int8))
        start, stop = np.flatnonzero(edge == 1), np.flatnonzero(edge == -1)
        first, last = _halves(blob, start, stop - start)
        found = self._short.get(first, last)
        found[(first == 0) & (stop - start == 1)] = _END
        for word in np.flatnonzero(stop - start > 2 * _HALF).tolist():
            found[word] = self._long.get(blob[start[word] : stop[word]], _UNKNOWN)
        return found


def _halves(blob: bytes, start: Numbers, length: Numbers) -> tuple[Numbers, Numbers]:
    """The first 8 bytes and the next 8 of words (n,) of a blob as numbers, zeros beyond their ends: no two words of up
    to 16 bytes, without a zero byte, have the same."""
    data = blob + bytes(2 * _HALF)
    at = np.ndarray((len(data) - _HALF + 1,), dtype="<u8", buffer=data, strides=(1,))  # 8 bytes from each byte on
    first = at[start] & _MASKS[np.minimum(length, _HALF)]
    last = at[start + _HALF] & _MASKS[np.clip(length - _HALF, 0, _HALF)]
    return first.view(np.int64), last.view(np.int64)


class _Table:
    """Pairs of int64 -> values >= 0: open addressing with linear probing, looked up by arrays."""

    def __init__(self, first: Numbers, last: Numbers, values: Numbers) -> None:
        bits = max(4, int(2 * len(values)).bit_length())
        self._shift, self._mask = np.uint64(64 - bits), (1 << bits) - 1
        self._first, self._last = np.zeros((2, 1 << bits), dtype=np.int64)
        self._values = np.full(1 << bits, -1, dtype=np.int64)
        slot, rest = self._slot(first, last), np.arange(len(values))
        while len(rest):
            free = self._values[slot] < 0
            self._values[slot[free]] = values[rest[free]]  # of several that want one slot, the last has it
            mine = self._values[slot] == values[rest]
            self._first[slot[mine]], self._last[slot[mine]] = first[rest[mine]], last[rest[mine]]
            slot, rest = (slot[~mine] + 1) & self._mask, rest[~mine]

    def _slot(self, first: Numbers, last: Numbers) -> Numbers:
        mixed = first.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(32)
        mixed += last.view(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
        mixed *= np.uint64(0xFF51AFD7ED558CCD)
        return (mixed >> self._shift).view(np.int64)

    def get(self, first: Numbers, last: Numbers) -> Numbers:
        """The values (n,) of pairs (n,); -1 where there is none."""
        slot = self._slot(first, last)
        value = self._values[slot]
        mine = (self._first[slot] == first) & (self._last[slot] == last)
        rest = np.flatnonzero((value >= 0) & ~mine)
        while len(rest):
            slot[rest] = (slot[rest] + 1) & self._mask
            at = slot[rest]
            value[rest] = self._values[at]
            rest = rest[(value[rest] >= 0) & ~((self._first[at] == first[rest]) & (self._last[at] == last[rest]))]
        return value
