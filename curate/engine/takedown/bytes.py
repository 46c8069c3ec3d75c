"""What identifies an image's bytes in any file, without being a part of them that shows anything.

A mark is 16 bytes, by which a scan finds a place quickly, and the digest of up to 4 kB around them, from the image's
middle: any copy of the file has them, in a tar, a table or a cache, as long as it is not compressed or encoded again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from curate.core.hashing import digest_bytes
from curate.core.reader import Reader, as_reader
from curate.core.store.storage import Storage

CHUNK, WORD = 4096, 16
_BLOCK = 8 << 20


@dataclass(frozen=True)
class Mark:
    sha256: str
    """Digest of the whole file."""
    size: int
    word: str
    """16 bytes, as hex: of those in the chunk, the ones that differ most."""
    before: int
    """Bytes of the chunk before them."""
    length: int
    """Bytes of the chunk."""
    chunk: str
    """SHA-256 of the chunk."""

    def __post_init__(self) -> None:
        bytes.fromhex(self.word)

    def found_in(self, block: bytes) -> bool:
        word, at = bytes.fromhex(self.word), -1
        while (at := block.find(word, at + 1)) >= 0:
            start = at - self.before
            if start >= 0 and hashlib.sha256(block[start : start + self.length]).hexdigest() == self.chunk:
                return True
        return False


def mark_of(data: bytes | Reader) -> Mark:
    reader = as_reader(data)
    chunk = reader.read_at(max(0, reader.size // 2 - CHUNK // 2), min(CHUNK, reader.size))
    places = range(max(1, len(chunk) - WORD + 1))
    at = max(places, key=lambda place: len(set(chunk[place : place + WORD])))
    sha256 = hashlib.sha256(chunk).hexdigest()
    return Mark(reader.sha256(), reader.size, chunk[at : at + WORD].hex(), at, len(chunk), sha256)


def scan(storage: Storage, prefix: str, marks: Sequence[Mark]) -> Iterator[tuple[str, bool]]:
    """URLs of the files below a prefix, with temporary ones of killed processes, and whether they have the bytes of a
    mark."""
    for path in sorted({*storage.list(prefix), *storage.temporary(prefix)}):
        name = f"{prefix}/{path}".lstrip("/")
        yield storage.url_of(name), has(storage, name, marks)


def has(storage: Storage, path: str, marks: Sequence[Mark]) -> bool:
    """Whether a file has the bytes of a mark; reads it in blocks."""
    with storage.open(path) as file:
        held = b""
        while marks and (block := file.read(_BLOCK)):
            held = held[-2 * CHUNK :] + block
            if any(mark.found_in(held) for mark in marks):
                return True
    return False


def digest_of(storage: Storage, path: str) -> str:
    """Digest of a file's content."""
    with storage.open(path) as file:
        return digest_bytes(iter(lambda: file.read(_BLOCK), b""))
