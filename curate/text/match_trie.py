"""All entries of a vocabulary in many texts at once: words become numbers, and a trie over numbers is walked by arrays.

Text and entries are compared word by word in the form of `curate.text.phrases`. A batch's words are looked up in one
dictionary; from then on everything is arrays: all words of the batch are states of the trie at once, and step k asks
which of those still alive go on with the word k places further. A vocabulary of common words and pairs of words takes
two or three steps. Aho-Corasick over characters (`Phrases`) finds the same at half the speed, since an overlapping
match is a Python object there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from curate.text.phrases import words_of

LONGEST_WORDS = 32
"""Words of an entry at most: a step is needed for each, whatever the texts are."""
_END, _UNKNOWN = 0, -1
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class WordTrie:
    """Finds every entry (normalised, distinct, of 1 to LONGEST_WORDS words) that stands in a text, also within others.

    Memory: about 200 bytes per distinct word and 50 per further word of an entry.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        self._words: dict[bytes, int] = {b"\0": _END}
        split = [entry.encode().split() for entry in entries]
        number = self._words.setdefault
        spelled = [[number(word, len(self._words)) for word in words] for words in split]
        if any(not 0 < len(words) <= LONGEST_WORDS for words in split):
            raise ValueError(f"an entry without words, or with more than {LONGEST_WORDS}")
        lengths = np.array([len(words) for words in spelled], dtype=np.int64)
        nodes = np.array([words[0] for words in spelled], dtype=np.int64)
        count, keys, values = len(self._words), [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for step in range(1, int(lengths.max(initial=1))):
            longer = np.flatnonzero(lengths > step)
            key = self._key(nodes[longer], np.array([spelled[i][step] for i in longer], dtype=np.int64))
            unique, inverse = np.unique(key, return_inverse=True)
            keys.append(unique)
            values.append(count + np.arange(len(unique)))
            nodes[longer] = count + inverse
            count += len(unique)
        self._entry = np.full(count, -1, dtype=np.int32)
        self._entry[nodes] = np.arange(len(nodes))
        self._next = _Table(np.concatenate(keys), np.concatenate(values))
        self._inner = np.zeros(count, dtype=bool)
        self._inner[np.concatenate(keys) // len(self._words)] = True

    def _key(self, node: NDArray[np.int64], word: NDArray[np.int64]) -> NDArray[np.int64]:
        return node * len(self._words) + word

    def find(self, texts: Sequence[str | None]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Index of the text and of the entry (m,) of every entry that a text has: each pair once, sorted."""
        pairs = [np.empty(0, dtype=np.int64)]
        width = max(1, len(self._entry))
        for start, words in words_of(texts):
            ids = np.fromiter(map(self._words.get, words, repeat(_UNKNOWN)), dtype=np.int64, count=len(words))
            text = np.cumsum(ids == _END) + start
            places, entries = self._walk(ids)
            pair = np.sort(text[places] * width + entries)  # far faster than np.unique, which hashes
            pairs.append(pair[np.diff(pair, prepend=-1) > 0])
        text, entry = np.divmod(np.concatenate(pairs), width)
        return text, entry.astype(np.int32)

    def _walk(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
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
            word = ids[place[inner] + step]  # there is one, since a text's last word is _END and no node goes past it
            known = word > _END
            place, node, word = place[inner][known], node[inner][known], word[known]
            node = self._next.get(self._key(node, word))
            place, node = place[node >= 0], node[node >= 0]
            if not len(place):
                break
        return np.concatenate(places), np.concatenate(entries)


class _Table:
    """int64 keys >= 0 -> values: open addressing with linear probing, looked up by arrays."""

    def __init__(self, keys: NDArray[np.int64], values: NDArray[np.int64]) -> None:
        bits = max(4, int(2 * len(keys)).bit_length())
        self._shift, self._mask = np.uint64(64 - bits), (1 << bits) - 1
        self._keys = np.full(1 << bits, -1, dtype=np.int64)
        self._values = np.full(1 << bits, -1, dtype=np.int64)
        slot, rest = self._slot(keys), np.arange(len(keys))
        while len(rest):
            free = self._keys[slot] < 0
            self._keys[slot[free]] = keys[rest[free]]  # of several that want one slot, the last has it
            mine = self._keys[slot] == keys[rest]
            self._values[slot[mine]] = values[rest[mine]]
            slot, rest = (slot[~mine] + 1) & self._mask, rest[~mine]

    def _slot(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        return ((keys.astype(np.uint64) * _FACTOR) >> self._shift).astype(np.int64)

    def get(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """The values (n,) of keys (n,); -1 where there is none."""
        found = np.full(len(keys), -1, dtype=np.int64)
        slot, rest = self._slot(keys), np.arange(len(keys))
        while len(rest):
            there = self._keys[slot]
            mine = there == keys[rest]
            found[rest[mine]] = self._values[slot[mine]]
            on = ~mine & (there >= 0)
            slot, rest = (slot[on] + 1) & self._mask, rest[on]
        return found
