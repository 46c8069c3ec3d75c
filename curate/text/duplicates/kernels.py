"""Kernels of text duplicates: which texts are equal, and which rows to keep. Functions of strings and arrays."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from curate.core.hashing import ranks_of_words
from curate.kernels.normal import normal_form

LONG = 100_000


class _Folding(dict[int, str]):
    """Code point -> replacement, for `str.translate`; filled on demand."""

    def __init__(self, punctuation: bool, digits: bool) -> None:
        super().__init__()
        self.punctuation, self.digits = punctuation, digits

    def __missing__(self, point: int) -> str:
        sign = chr(point)
        kind = unicodedata.category(sign)
        kept = sign
        if kind[0] in "ZC" and kind != "Cf":
            kept = " "
        elif kind == "Cf":  # joiners and marks of direction
            kept = ""
        elif not self.punctuation and kind[0] in "PS":
            kept = "" if sign in "'’`´" else " "
        elif not self.digits and kind[0] == "N":
            kept = "0"
        self[point] = kept
        return kept


_FOLDINGS = {
    (punctuation, digits): _Folding(punctuation, digits) for punctuation in (False, True) for digits in (False, True)
}


def normalised(text: str, *, punctuation: bool = False, digits: bool = True) -> str:
    """The common form of equal texts: case-folded, NFKC, single spaces, without invisible characters.

    Without `punctuation`, signs and symbols become spaces and apostrophes are removed, unless the text has nothing
    else. Without `digits`, every digit becomes 0. Very long texts use NFC, because NFKC can make them 18 times longer.
    """
    form: Literal["NFC", "NFKC"] = "NFKC" if len(text) <= LONG else "NFC"
    folded = normal_form(form, normal_form(form, text).casefold())
    found = " ".join(folded.translate(_FOLDINGS[punctuation, digits]).split())
    return found or " ".join(folded.translate(_FOLDINGS[True, digits]).split())


def digest_words(texts: Sequence[str]) -> NDArray[np.uint64]:
    """128-bit digests of normalised texts, as words (n, 2)."""
    digests = (hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts)
    return np.frombuffer(b"".join(digests), dtype=">u8").astype(np.uint64).reshape(-1, 2)


def repeated(
    digest: NDArray[np.uint64], key: NDArray[np.uint64], seed: int, keepers: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of digest (n, 2) and key (n, 2) -> for each repeated digest, in ascending order: its count (m,), and the
    indices (m, keepers) of its rows with the smallest hash(seed, key), padded with -1."""
    rank = ranks_of_words(seed, key)
    order = np.lexsort((key[:, 1], key[:, 0], rank, digest[:, 1], digest[:, 0]))
    new = np.ones(len(order), dtype=bool)
    new[1:] = (digest[order[1:]] != digest[order[:-1]]).any(axis=1)
    first = np.flatnonzero(new)
    count = np.diff(first, append=len(order))
    first, count = first[count > 1], count[count > 1]
    place = np.arange(keepers)
    rows = np.full((len(first), keepers), -1, dtype=np.int64)
    exists = place < count[:, None]
    rows[exists] = order[(first[:, None] + place)[exists]]
    return count, rows


def distinct_by_home(
    digest: NDArray[np.uint64], home: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of digest (n, 2), each in a home (n,) -> one row (m,) per digest and home, and the digest's count over all
    homes (m,)."""
    order = np.lexsort((home, digest[:, 1], digest[:, 0]))
    new = np.ones(len(order), dtype=bool)
    new[1:] = (digest[order[1:]] != digest[order[:-1]]).any(axis=1)
    count = np.diff(np.flatnonzero(new), append=len(order))[np.cumsum(new) - 1]
    new[1:] |= home[order[1:]] != home[order[:-1]]
    return order[new], count[new]


def most_frequent(digest: NDArray[np.uint64], count: NDArray[np.int64], wanted: int) -> NDArray[np.int64]:
    """Indices (m,) of the up to `wanted` digests (n, 2) with the highest counts; ties by ascending digest."""
    return np.lexsort((digest[:, 1], digest[:, 0], -count))[:wanted]
