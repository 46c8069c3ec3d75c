"""Finds many phrases in many texts on word boundaries, with an Aho-Corasick automaton over a batch joined to one blob.

Texts and phrases are normalised to the same form: case-folded words with single spaces between them.

- A word is a run of letters, digits and marks of any script, after NFKC and case folding. Accents stay: `résumé` is not
  `resume`. Invisible characters (soft hyphens, marks of direction, joiners, variation selectors) are removed.
- Spaces, hyphens, underscores, full stops, apostrophes and trade marks separate words within a phrase: `ice-cream`,
  `ice_cream` and `ice cream` are equal, and `St. Bernard's` is `st bernard s`.
- Each of & + # % $ @ is a separate word: `AT&T` is `at & t`, and `black & white` is not `black white`.
- Any run of other characters (commas, brackets, quotes, slashes, line breaks, emojis, a hyphen between spaces) becomes
  one `|`. A phrase matches across it only if the phrase has it too (`Paris, Texas`).

Every word of the blob and of a phrase has a space on each side (" ice  cream "). Neighbouring words do not share
spaces, so that leftmost-longest matches without overlap are greedy longest matches of whole words.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind
from numpy.typing import NDArray

from curate.kernels.normal import normal_form

SOFT = " \t-_.'`\u00a0\u00b4\u02bc\u2010\u2011\u2018\u2019\u201b\u2122\u00ae\u2120"
WORDS = "&+#%$@"
_CHUNK_CHARACTERS = 1 << 20
_END = "\0"
_ASCII = bytes(
    ord(" ") if chr(code) in SOFT
    else code if chr(code).isalnum() or chr(code) in WORDS + _END
    else ord("|")
    for code in range(128)
).lower() + bytes(range(128, 256))  # fmt: skip
_SPACE, _BAR = 1, 2
_KIND = np.array([_SPACE if byte == ord(" ") else _BAR if byte == ord("|") else 0 for byte in range(256)], np.uint8)
_AS_BYTE = np.array([0, ord(" "), ord("|")], dtype=np.uint8)


class Phrases:
    """Finds phrases in texts.

    longest: greedy longest matches from left to right, without overlap. Otherwise: every match, including phrases
    within others. Among phrases with the same normalised form, the first is found; a phrase without words never is.
    """

    def __init__(self, phrases: Sequence[str], *, longest: bool) -> None:
        self._overlapping = not longest
        ids: dict[bytes, int] = {}
        for number, phrase in enumerate(_pieces(phrases)):
            if phrase:
                ids.setdefault(phrase, number)
        self._ids = np.fromiter(ids.values(), dtype=np.int32, count=len(ids))
        kind = MatchKind.LeftmostLongest if longest else MatchKind.Standard
        self._automaton = BytesAhoCorasick(list(ids), kind, Implementation.ContiguousNFA)

    def find(self, texts: pa.Array | pa.ChunkedArray | Sequence[str | None]) -> tuple[NDArray[np.int32], NDArray[Any]]:
        """Indices of text and phrase (m,), both int32, of each match, in order of texts, then positions. Nulls match
        nothing."""
        listed = texts.to_pylist() if isinstance(texts, (pa.Array, pa.ChunkedArray)) else texts
        rows, found = [np.zeros(0, dtype=np.int32)], [np.zeros(0, dtype=np.int32)]
        for start, stop in _chunks(listed):
            blob = _blob(listed[start:stop])
            matches = self._automaton.find_matches_as_indexes(blob, overlapping=self._overlapping)
            flat = np.fromiter(chain.from_iterable(matches), dtype=np.int64, count=3 * len(matches)).reshape(-1, 3)
            if self._overlapping:  # matches come in order of their ends
                flat = flat[np.argsort(flat[:, 1], kind="stable")]
            ends = np.flatnonzero(np.frombuffer(blob, dtype=np.uint8) == 0)
            rows.append((start + np.searchsorted(ends, flat[:, 1])).astype(np.int32))
            found.append(self._ids[flat[:, 0]])
        return np.concatenate(rows), np.concatenate(found)


def normalised(text: str) -> str:
    """A text's words in normal form, between single spaces: `"Ice-Cream, please!" -> "ice cream | please"`."""
    return _plain(_blob([text]))


def normalised_all(texts: Sequence[str]) -> list[str]:
    """`normalised` for many texts, several times faster."""
    return [_plain(piece) for piece in _pieces(texts)]


def blobs_of(texts: Sequence[str | None]) -> Iterator[tuple[int, bytes]]:
    """Blobs of about a million characters: (index of the first text, words of the texts in UTF-8 between spaces, with a
    word `\\0` after each text)."""
    for start, stop in _chunks(texts):
        yield start, _blob(texts[start:stop])


def _plain(piece: bytes) -> str:
    return piece.strip(b" \0|").replace(b"  ", b" ").decode()


def _pieces(texts: Sequence[str]) -> Iterator[bytes]:
    """The part of the blob for each text, without `|` at its ends."""
    for start, stop in _chunks(texts):
        for piece in _blob(texts[start:stop]).split(b"\0")[:-1]:
            words = piece.strip(b" |")
            yield b" " + words + b" " if words else b""


def _chunks(texts: Sequence[str | None]) -> Iterator[tuple[int, int]]:
    """Ranges of texts with about a million characters, to bound the memory for blobs and matches."""
    start, size = 0, 0
    for index, text in enumerate(texts):
        size += len(text or "")
        if size >= _CHUNK_CHARACTERS:
            yield start, index + 1
            start, size = index + 1, 0
    if start < len(texts):
        yield start, len(texts)


def _blob(texts: Sequence[str | None]) -> bytes:
    """ " w1  w2 | w3 \\0 ": case-folded words of all texts in UTF-8, between spaces, with \\0 after each text."""
    plain = [text if text.isascii() else _folded(text) for text in (text or "" for text in texts)]
    joined = _END.join(plain)
    if joined.count(_END) >= max(1, len(plain)):
        joined = _END.join([text.replace(_END, "|") for text in plain])
    blob = f" {joined}{_END}".encode().replace(b" - ", b" | ").translate(_ASCII)
    for word in WORDS.encode():
        blob = blob.replace(b"%c" % word, b" %c " % word)
    return _squeezed(blob).replace(b" ", b"  ").replace(b"|", b" | ").replace(b"\0", b" \0 ")


def _squeezed(blob: bytes) -> bytes:
    """Reduces each run of separators to `|` if the run has one, otherwise to a space."""
    array = np.frombuffer(blob, dtype=np.uint8)
    kind = _KIND[array]
    apart = kind > 0
    starts = np.flatnonzero(apart[1:] & ~apart[:-1]) + 1
    starts = np.concatenate([[0], starts])  # a blob begins with a space
    squeezed = array.copy()
    squeezed[starts] = _AS_BYTE[np.maximum.reduceat(kind, starts)]
    apart[starts] = False
    return squeezed[~apart].tobytes()


def _folded(text: str) -> str:
    """Normalises text that is not ASCII: separators by the rules above, the rest to NFKC and case-folded."""
    text = text.translate(_OTHERS)
    if not unicodedata.is_normalized("NFKC", text):
        text = normal_form("NFKC", text).translate(_OTHERS)
    folded = text.casefold()
    return folded if unicodedata.is_normalized("NFKC", folded) else normal_form("NFKC", folded)


class _Others(dict[int, str]):
    """Code point -> replacement, for `str.translate`; filled on demand."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        kind = unicodedata.category(character)
        if code < 128:
            replacement = character
        elif kind == "Cf" or 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF:
            replacement = ""
        elif kind == "Zs" or character in SOFT:
            replacement = " "
        elif kind[0] in "PSZ" or kind in ("Cc", "Cs", "Co") or len(unicodedata.normalize("NFKC", character)) > 4:
            replacement = "|"
        else:
            replacement = character
        self[code] = replacement
        return replacement


_OTHERS = _Others()
