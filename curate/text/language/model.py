"""fastText's classifier (Joulin et al. 2016; Grave et al. 2018) over arrays of texts.

A text is the mean of the vectors of its words and of their character n-grams. Labels are leaves of a Huffman tree whose
inner nodes are logistic regressions, so that a label's probability is the product along its path. The library computes
text by text; here each distinct word of a batch is computed once and cached, and the tree is evaluated for all texts
together. Results equal the library's up to rounding. Sums run elementwise or row by row, always in the text's order, so
that a text's score has the same bits in any batch.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.text.language.file import LABEL, FastText

END = b"</s>"
MOST_WORDS, LONGEST_WORD = 1 << 17, 64
"""Most cached words, and their most bytes: about 20 MB. A full cache is emptied."""
BLOCK = 256
"""Texts per computation of scores, chosen to fit a core's cache."""
_SLICE_BYTES = 1 << 20
_LEAST, _MOST_LOGIT = np.float32(1e-5), np.float32(80)
"""fastText's addition to each branch's probability (`std_log`); the largest logit with a finite float32 exponential."""


class LanguageModel:
    """Predicts a label and its probability for each text. Not thread-safe."""

    def __init__(self, model: FastText) -> None:
        self._model = model
        self.labels = model.labels
        self._slots: dict[bytes, int] = {}
        self._sums = np.empty((MOST_WORDS, model.rows.shape[1]), dtype=np.float32)
        self._counts = np.empty(MOST_WORDS, dtype=np.float32)
        self._outputs = np.ascontiguousarray(model.outputs.T)
        self._levels = huffman_levels(model.label_counts) if model.hierarchical else []

    def predict(self, texts: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Strings (n,) -> label (n,) and probability (n,); -1 and 0 if the model knows no part of the text."""
        sums, counts = self._texts(texts)
        label = np.full(len(texts), -1, dtype=np.int32)
        score = np.zeros(len(texts), dtype=np.float32)
        known = np.flatnonzero(counts)
        if (end := self._model.words.get(END)) is not None:
            sums, counts = sums + self._model.rows[end], counts + 1
        for start in range(0, len(known), BLOCK):
            rows = known[start : start + BLOCK]
            label[rows], score[rows] = self._best(sums[rows] / counts[rows, None])
        return label, score

    def _texts(self, texts: pa.Array) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Sum (n, D) and number (n,) of the vectors of each text."""
        lists = pc.ascii_split_whitespace(pc.replace_substring(pc.fill_null(texts, ""), "\0", " "))
        coded = lists.values.cast(pa.binary()).dictionary_encode()
        sums, counts = self._words(coded.dictionary.to_pylist())
        indices, offsets = coded.indices.to_numpy(), lists.offsets.to_numpy()
        numbers = sum_rows(indices, offsets, counts[:, None])[:, 0]
        return sum_rows(indices, offsets, sums), numbers

    def _words(self, words: list[bytes]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Sum (w, D) and number (w,) of the vectors of each distinct word."""
        slots = np.array([self._slots.get(word, -1) for word in words], dtype=np.int64)
        sums, counts = self._sums[slots], self._counts[slots]
        new = np.flatnonzero(slots < 0)
        if len(new):
            found = [words[place] for place in new.tolist()]
            sums[new], counts[new] = word_sums(self._model, found)
            self._remember(found, sums[new], counts[new])
        return sums, counts

    def _remember(self, words: list[bytes], sums: NDArray[np.float32], counts: NDArray[np.float32]) -> None:
        short = [place for place, word in enumerate(words) if len(word) <= LONGEST_WORD][:MOST_WORDS]
        if len(self._slots) + len(short) > MOST_WORDS:
            self._slots.clear()
        first = len(self._slots)
        self._slots.update(zip((words[place] for place in short), range(first, first + len(short)), strict=True))
        self._sums[first : first + len(short)] = sums[short]
        self._counts[first : first + len(short)] = counts[short]

    def _best(self, hidden: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Means (b <= BLOCK, D) -> best label (b,) and its probability (b,)."""
        across = np.zeros(
            (hidden.shape[1], BLOCK), dtype=np.float32
        )  # one fixed shape, so that sums do not depend on b
        across[:, : len(hidden)] = hidden.T
        logits = np.einsum("dn,db->nb", self._outputs, across)
        likely = self._tree(logits[:-1]) if self._levels else softmax(logits)
        best = likely.argmax(axis=0)[: len(hidden)]
        return best.astype(np.int32), likely[best, np.arange(len(best))]

    def _tree(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits of inner nodes (L - 1, b) -> probabilities of labels (L, b)."""
        labels = len(logits) + 1
        right = 1 / (1 + np.exp(np.minimum(-logits, _MOST_LOGIT)))
        branches = np.concatenate([1 - right, right]) + _LEAST
        likely = np.ones((2 * labels - 1, logits.shape[1]), dtype=np.float32)
        for nodes, parents, branch in self._levels:
            likely[nodes] = likely[parents] * branches[branch]
        return likely[:labels]


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Over the first axis."""
    powers = np.exp(logits - logits.max(axis=0))
    return powers / powers.sum(axis=0)


def huffman_levels(counts: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
    """The Huffman tree over labels with descending counts (L,), from the root down: for each level, its nodes, their
    parents and their branches (parent - L for a left child, parent - 1 for a right child). Labels are nodes
    0 .. L - 1; the last node is the root."""
    labels = len(counts)
    weight = [*counts.tolist(), *([10**15] * (labels - 1))]
    parent, branch = np.zeros((2, 2 * labels - 1), dtype=np.int64)
    leaf, inner = labels - 1, labels
    for node in range(labels, 2 * labels - 1):
        weight[node] = 0
        for side in (0, 1):
            if leaf >= 0 and (inner >= node or weight[leaf] < weight[inner]):
                child, leaf = leaf, leaf - 1
            else:
                child, inner = inner, inner + 1
            weight[node] += weight[child]
            parent[child], branch[child] = node, node - labels + side * (labels - 1)
    depth = np.zeros(2 * labels - 1, dtype=np.int64)
    for node in range(2 * labels - 3, -1, -1):
        depth[node] = depth[parent[node]] + 1
    levels = [np.flatnonzero(depth == level) for level in range(1, int(depth.max(initial=0)) + 1)]
    return [(nodes, parent[nodes], branch[nodes]) for nodes in levels]


def sum_rows(indices: NDArray, offsets: NDArray, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sum of rows[indices[offsets[i] : offsets[i + 1]]] for each i, added in order: (len(offsets) - 1, D)."""
    from scipy.sparse import csr_array  # a tenth of a second, which `curate plan` does not need

    ones = np.ones(len(indices), dtype=np.float32)
    return csr_array((ones, indices, offsets), shape=(len(offsets) - 1, len(rows))) @ rows


def word_sums(model: FastText, words: list[bytes]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Sum (w, D) and number (w,) of the vectors of each word: its own and those of its n-grams."""
    edges = [0]
    size = 0
    for place, word in enumerate(words):
        if size + len(word) > _SLICE_BYTES and place > edges[-1]:
            edges.append(place)
            size = 0
        size += len(word)
    parts = [_word_sums(model, words[a:b]) for a, b in pairwise([*edges, len(words)])]
    return np.concatenate([sums for sums, _ in parts]), np.concatenate([counts for _, counts in parts])


def _word_sums(model: FastText, words: list[bytes]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    own = [(place, model.words[word]) for place, word in enumerate(words) if word in model.words]
    spelt = [place for place, word in enumerate(words) if word not in (b"", END) and not word.startswith(LABEL)]
    whole = np.array(spelt, dtype=np.int64)
    place, bucket = ngrams([words[index] for index in whole], model.shortest, model.longest, model.buckets)
    place = whole[place]
    if model.kept is not None:
        bucket = model.kept[bucket].astype(np.int64)
        place, bucket = place[bucket >= 0], bucket[bucket >= 0]
    owner = np.concatenate([np.array([at for at, _ in own], dtype=np.int64), place])
    row = np.concatenate([np.array([word for _, word in own], dtype=np.int64), len(model.words) + bucket])
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=len(words))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return sum_rows(row[order], offsets, model.rows), counts.astype(np.float32)


def ngrams(
    words: list[bytes], shortest: int, longest: int, buckets: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The character n-grams of `<word>`: index of the word (m,) and bucket (m,) of the FNV-1a hash, by length, then
    position."""
    if not longest or not words:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    text = np.frombuffer(b"<" + b"><".join(words) + b">", dtype=np.int8)
    start = np.flatnonzero((text & -64) != -128)  # not a UTF-8 continuation byte
    length = np.diff(start, append=len(text))
    word = np.repeat(np.arange(len(words)), [len(w) + 2 for w in words])[start]
    first = np.flatnonzero(np.diff(word, prepend=-1))
    last = np.append(first[1:], len(word)) - 1
    signed = text.astype(np.uint32)  # fastText's hash extends the sign
    state = np.full(len(start), 2166136261, dtype=np.uint32)
    wanted = np.arange(len(start))
    owners, hashes = [], []
    for size in range(1, longest + 1):
        wanted = wanted[wanted + size - 1 <= last[word[wanted]]]
        taken = wanted + size - 1
        for byte in range(4):
            longer = np.flatnonzero(length[taken] > byte) if byte else slice(None)
            at = wanted[longer]
            state[at] = (state[at] ^ signed[start[taken[longer]] + byte]) * np.uint32(16777619)
        if size >= shortest:
            found = wanted
            if size == 1:  # a bracket alone is not an n-gram
                found = wanted[(wanted > first[word[wanted]]) & (wanted < last[word[wanted]])]
            owners.append(word[found])
            hashes.append(state[found] % np.uint32(buckets))
    return np.concatenate(owners), np.concatenate(hashes).astype(np.int64)
