"""Keys, ranks and fingerprints: the hashes that random choices and caches are based on.

Ranks are hash(seed, key, salts) and never depend on arrival order, so that a choice is the same for any engine, number
of workers and order of shards.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEY_HEX = 32
_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def make_key(namespace: str, source_id: str) -> str:
    """128-bit key of a sample, as 32 hex characters."""
    digest = hashlib.blake2b(source_id.encode("utf-8", "surrogatepass"), digest_size=16, person=_person(namespace))
    return digest.hexdigest()


def make_child_key(parent: str, kind: str, span: Mapping[str, Any]) -> str:
    """128-bit key of a sample derived from a parent: a hash of the parent's key, the kind of child, and its span."""
    text = "\0".join((parent, kind, canonical(span)))
    return hashlib.blake2b(text.encode(), digest_size=16, person=_person("\0child")).hexdigest()


def canonical(value: Any) -> str:
    """The canonical JSON of a value: keys sorted, no spaces. ValueError for NaN and infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _person(namespace: str) -> bytes:
    return hashlib.blake2b(namespace.encode(), digest_size=16).digest()


def digest(value: Any) -> str:
    """Digest (32 hex characters) of a JSON-able value, with keys sorted: the fingerprint of a noun."""
    return hashlib.blake2b(canonical(value).encode(), digest_size=16).hexdigest()


def digest_bytes(chunks: Iterable[bytes | memoryview]) -> str:
    hasher = hashlib.blake2b(digest_size=16)
    for chunk in chunks:
        hasher.update(chunk)
    return hasher.hexdigest()


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: a bijection of 64-bit words with full avalanche."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A step of splitmix64: a bijection of 64-bit words that changes about half of the bits for any change."""
    return _mix(words + _GAMMA)


def key_words(keys: Sequence[str] | NDArray[Any]) -> NDArray[np.uint64]:
    """Keys (n strings of 32 hex characters) as words (n, 2) of 64 bits."""
    joined = "".join(keys)
    if len(joined) != KEY_HEX * len(keys):
        raise ValueError(f"keys: {len(joined)} characters for {len(keys)} keys; each must be {KEY_HEX} hex characters")
    return np.frombuffer(bytes.fromhex(joined), dtype=">u8").astype(np.uint64).reshape(-1, 2)


def hashed_words(namespace: str, source_ids: Iterable[str]) -> NDArray[np.uint64]:
    """`key_words` of the `make_key` of each id (n, 2), in a quarter of the time."""
    empty = hashlib.blake2b(digest_size=16, person=_person(namespace))
    found = bytearray()
    for source_id in source_ids:
        hasher = empty.copy()
        hasher.update(source_id.encode("utf-8", "surrogatepass"))
        found += hasher.digest()
    return np.frombuffer(found, dtype=">u8").astype(np.uint64).reshape(-1, 2)


def ranks(seed: int, keys: Sequence[str] | NDArray[Any], *salts: int | NDArray[Any]) -> NDArray[np.uint64]:
    """Uniform 64-bit rank of each key under a seed; salts (scalars or (n,)) distinguish items or copies of a key."""
    return ranks_of_words(seed, key_words(keys), *salts)


def ranks_of_words(seed: int, words: NDArray[np.uint64], *salts: int | NDArray[Any]) -> NDArray[np.uint64]:
    """`ranks` of keys given as words (n, 2)."""
    with np.errstate(over="ignore"):
        state = mixed(np.full(len(words), seed & 0xFFFFFFFFFFFFFFFF, dtype=np.uint64))
        for part in (words[:, 0], words[:, 1], *(np.asarray(salt).astype(np.uint64) for salt in salts)):
            state = mixed(state ^ part)
    return state


def keys_of_words(words: NDArray[np.uint64]) -> list[str]:
    """Words (n, 2) -> keys, the inverse of `key_words`."""
    text = np.ascontiguousarray(words).astype(">u8").tobytes().hex()
    return [text[start : start + KEY_HEX] for start in range(0, len(text), KEY_HEX)]


def rank_below(rank: NDArray[np.uint64], fraction: float) -> NDArray[np.bool_]:
    """True for the ranks in the lowest `fraction` (0..1) of the 64-bit range."""
    if fraction >= 1.0:
        return np.ones(len(rank), dtype=bool)
    return rank < np.uint64(max(0.0, fraction) * 2.0**64)
