"""`text.duplicates`: counts repeated texts of a pool, such as templates, quotes and product names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from curate.core.contracts import Artifact, Fit, Table
from curate.core.group import Arrays, Group, Part
from curate.core.hashing import key_words, keys_of_words
from curate.core.row_lookup import (
    SHARD,
    SHARDS,
    as_bytes,
    part_of,
    shard_index,
    shard_words,
    starts_of,
    store,
)
from curate.text.columns import plain_texts
from curate.text.duplicates.kernels import digest_words, distinct_by_home, most_frequent, normalised, repeated

KIND = "text_sets"
COUNTS, NAMED, REPEATED = "counts", "named", "repeated"
"""Stored arrays. Per range of shards: how often each of its texts occurs, and its rows to keep. Per bucket of digests:
all repeated texts."""
MOST_BUCKETS, BUCKET_ROWS = 4096, 1 << 16
LISTED = 10_000
"""Texts in the artifact's table."""
EXAMPLE_BYTES = 96
Shared = Mapping[str, Any]


class FindTextDuplicates(Fit):
    """Count texts that occur more than once, ignoring case, NFKC differences, white space and punctuation.

    The artifact: `texts`, the 10,000 most frequent first: `digest` (128 bits, of the normalised text), `count`,
    `example` (a row's text, up to 96 bytes), `keys` (the `keepers` rows with the smallest hash(seed, key)); and
    `summary`: `rows` with a text, distinct `texts`, `repeated` texts, `surplus` rows beyond the first of each text,
    `largest` count. `text.copies` reads the arrays that the parts store.
    """

    op: ClassVar[str] = "text.duplicates"
    version: ClassVar[int] = 3
    kind: ClassVar[str] = KIND

    column: str = Field("text", description="Column of texts, one per row.")
    punctuation: bool = Field(False, description="Whether punctuation and symbols distinguish texts.")
    digits: bool = Field(True, description="Whether digits distinguish texts (`photo 12`, `photo 13`).")
    keepers: int = Field(1, ge=1, le=100, description="Rows listed per text: the most that can be kept.")
    seed: int = Field(0, ge=0, description="Seed of the choice of these rows.")

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def load(self, table: Table) -> dict[str, NDArray[Any]]:
        texts = plain_texts(self.op, self.column, table.column(self.column)).to_pylist()
        forms = [normalised(text or "", punctuation=self.punctuation, digits=self.digits) for text in texts]
        with_text = np.array([place for place, form in enumerate(forms) if form], dtype=np.int64)
        keys = table.column("key").take(pa.array(with_text)).to_pylist()
        return {
            SHARD: shard_words(table)[with_text],
            "key": key_words(keys),
            "digest": digest_words([forms[place] for place in with_text]),
            "example": np.array([_clipped(texts[place]) for place in with_text], dtype=f"S{EXAMPLE_BYTES}"),
        }

    def fit(self, group: Group) -> Artifact:
        starts = starts_of(group)
        count = min(MOST_BUCKETS, max(1, int(starts[-1]) // BUCKET_ROWS))
        group.progress(0.0, "partitioning texts by their digests")
        buckets = group.partition("digests", _to_buckets, count, starts=starts, buckets=count)
        totals = {"repeated": 0, "surplus": 0, "largest": 0}
        listed: list[NDArray[Any]] = []
        group.progress(0.4, "counting texts")
        for top, counts in buckets.each(_repeated, seed=self.seed, keepers=self.keepers, listed=LISTED):
            listed = _most_frequent([listed, top])
            totals["repeated"] += counts["repeated"]
            totals["surplus"] += counts["surplus"]
            totals["largest"] = max(totals["largest"], counts["largest"])
        group.progress(0.6, "returning counts to the rows")
        back = {"starts": starts, "seed": self.seed, "keepers": self.keepers}
        store(buckets.partition("counts-by-part", _counts, len(group.rows), **back), COUNTS)
        store(buckets.partition("named-by-part", _named, len(group.rows), **back), NAMED)
        group.progress(0.9, "fetching examples")
        summary = {
            "rows": int(starts[-1]),
            "texts": int(starts[-1]) - totals["surplus"],
            **totals,
            "made": {name: getattr(self, name) for name in ("column", "punctuation", "digits", "keepers")},
            "buckets": count,
        }
        return {"texts": _texts(group, listed, starts), SHARDS: shard_index(group), "summary": summary}


def _most_frequent(found: list[list[NDArray[Any]]]) -> list[NDArray[Any]]:
    """The most frequent of several lists of texts (digest, count, keys, row)."""
    joined = [np.concatenate(arrays) for arrays in zip(*(texts for texts in found if texts), strict=True)]
    order = most_frequent(joined[0], joined[1], LISTED)
    return [array[order] for array in joined]


def _texts(group: Group, listed: list[NDArray[Any]], starts: NDArray[np.int64]) -> pa.Table:
    digest, times, keys, row = listed
    by_row = np.argsort(row)
    examples = np.empty(len(row), dtype=f"S{EXAMPLE_BYTES}")
    examples[by_row] = np.concatenate(list(group.each(_examples, rows=row[by_row], starts=starts)))
    return pa.table(
        {
            "digest": pa.array(keys_of_words(digest), pa.string()),
            "count": times,
            "example": pa.array([e.decode("utf-8", "ignore") for e in examples.tolist()], pa.string()),
            "keys": _key_lists(keys, times),
        }
    )


def _clipped(text: str) -> bytes:
    return text[:EXAMPLE_BYTES].replace("\0", " ").encode("utf-8", "replace")[:EXAMPLE_BYTES]


def _key_lists(keys: NDArray[np.uint64], times: NDArray[np.int64]) -> pa.Array:
    """Key words (m, k, 2) and counts (m,) -> the first min(k, count) keys of each."""
    lengths = np.minimum(times, keys.shape[1])
    flat = keys[np.arange(keys.shape[1]) < lengths[:, None]]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(keys_of_words(flat), pa.string()))


# --- steps on the rows of a part --------------------------------------------------------------------------------------


def _to_buckets(part: Part, shared: Shared) -> tuple[NDArray[np.int64], Arrays]:
    digest = np.asarray(part.arrays["digest"])
    arrays = {
        "digest": digest,
        "key": np.asarray(part.arrays["key"]),
        "row": np.arange(part.rows) + shared["starts"][part.index],
    }
    return bucket_of(digest, shared["buckets"]), arrays


def bucket_of(digest: NDArray[np.uint64], buckets: int) -> NDArray[np.int64]:
    return (digest[:, 0] % np.uint64(buckets)).astype(np.int64)


def _repeated(part: Part, shared: Shared) -> tuple[list[NDArray[Any]], dict[str, int]]:
    """The most frequent texts of the bucket (digest (m, 2), count (m,), keys (m, keepers, 2), row of the first keeper
    (m,)), and totals. Stores all repeated texts."""
    digest, key, row = (np.asarray(part.arrays[name]) for name in ("digest", "key", "row"))
    count, rows = repeated(digest, key, shared["seed"], shared["keepers"])
    totals = {"repeated": len(count), "surplus": int((count - 1).sum()), "largest": int(count.max(initial=0))}
    texts = digest[rows[:, 0]]
    part.store(REPEATED, {"key": as_bytes(texts), "count": count})
    order = most_frequent(texts, count, shared["listed"])
    return [texts[order], count[order], key[rows[order]], row[rows[order, 0]]], totals


def _counts(part: Part, shared: Shared) -> tuple[NDArray[np.int64], Arrays]:
    """Sends each text of the bucket to each part that has it: `key` (its digest) and `count`."""
    digest, row = np.asarray(part.arrays["digest"]), np.asarray(part.arrays["row"])
    home = part_of(shared["starts"], row)
    first, count = distinct_by_home(digest, home)
    return home[first], {"key": as_bytes(digest[first]), "count": count}


def _named(part: Part, shared: Shared) -> tuple[NDArray[np.int64], Arrays]:
    """Sends each row to keep of a repeated text to its part: `key` and `place`, counted from 1."""
    digest, key, row = (np.asarray(part.arrays[name]) for name in ("digest", "key", "row"))
    _, rows = repeated(digest, key, shared["seed"], shared["keepers"])
    exists = rows >= 0
    place = np.broadcast_to(np.arange(1, rows.shape[1] + 1, dtype=np.int8), rows.shape)[exists]
    chosen = rows[exists]
    return part_of(shared["starts"], row[chosen]), {"key": as_bytes(key[chosen]), "place": place}


def _examples(part: Part, shared: Shared) -> NDArray[np.bytes_]:
    edges = shared["starts"][part.index : part.index + 2]
    low, high = np.searchsorted(shared["rows"], edges)
    return np.asarray(part.arrays["example"])[shared["rows"][low:high] - edges[0]]
