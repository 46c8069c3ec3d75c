"""Duplicate sets at two pool sizes: memory of a `duplicates.members` worker, and bytes that a fit sends to the driver.

python -m bench.duplicates.sets [MEMBERS [MEMBERS]]

A tenth of the pool's rows are members of sets. A worker looks up shards of 10,000 rows in the artifact in three ways:
in the file of the shard's part; in the files of all parts, as for shards unknown to the fit; and, for comparison, in a
single table of all sets in memory. Then `duplicates.find` and `text.duplicates` fit a fortieth of the rows in parts,
counting the bytes that steps return to the driver (of which `text.duplicates` keeps 10,000 texts).
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from curate.core.contracts import Batch
from curate.core.group import MOST_PART_ROWS, MemoryGroup, PartFunction
from curate.core.hashing import keys_of_words
from curate.core.nouns.artifacts import StoredArtifact, save_artifact
from curate.core.row_lookup import SHARDS, as_bytes, found_in, packed_keys, shard_word
from curate.core.store.arrays import write_arrays
from curate.core.store.storage import open_storage
from curate.duplicates.near.find import FindDuplicates
from curate.duplicates.near.members import DuplicateMembers
from curate.text.duplicates.find import FindTextDuplicates

SIZES = (1_000_000, 4_000_000)
SHARD_ROWS, SHARE, LOOKUPS = 10_000, 10, 40
MODES = ("by part", "all parts", "one table")


def main(*sizes: int) -> None:
    print(f"{'members':>12}{'lookup':>16}{'MB of worker':>14}{'anonymous MB':>17}{'ms per shard':>14}")
    for members in sizes or SIZES:
        with tempfile.TemporaryDirectory() as folder:
            write_sets(folder, members)
            for mode in MODES:
                command = [sys.executable, "-m", "bench.duplicates.sets", "--worker", folder, str(members), mode]
                result = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
                print(f"{members:>12,}{mode:>16}{result['mb']:>14.1f}{result['anonymous']:>17.1f}{result['ms']:>14.1f}")
    print(f"\n{'rows':>12}{'fit':>20}{'members':>12}{'MB to the driver':>18}{'seconds':>10}")
    for members in sizes or SIZES:
        for name, fit in (("duplicates.find", images), ("text.duplicates", texts)):
            rows = members * SHARE // 40
            group, summary, seconds = fit(rows)
            found = summary.get("repeated") or summary["exact_duplicates"] + summary["near_duplicates"]
            print(f"{rows:>12,}{name:>20}{found:>12,}{group.sent_bytes / 1e6:>18.2f}{seconds:>10.1f}")


# --- a worker's memory ------------------------------------------------------------------------------------------------


def keys_of(members: int, part: int) -> np.ndarray:
    """Key words (n, 2) of the members of one part; the same for every call."""
    count = min(MOST_PART_ROWS // SHARE, members - part * (MOST_PART_ROWS // SHARE))
    return np.random.default_rng(part).integers(0, 1 << 63, (count, 2), dtype=np.uint64)


def parts_of(members: int) -> int:
    return -(-members // (MOST_PART_ROWS // SHARE))


def write_sets(folder: str, members: int) -> None:
    storage, index = open_storage(folder), []
    for part in range(parts_of(members)):
        key = np.sort(as_bytes(keys_of(members, part)))
        arrays = {"key": key, "keeper": np.roll(key, 1), "kind": np.full(len(key), 2, np.int8)}
        write_arrays(storage, f"sets/members/{part:06d}.npz", arrays)
        shards = -(-len(key) * SHARE // SHARD_ROWS)
        index += [(shard_word(f"{part}-{shard}"), part) for shard in range(shards)]
    words = np.array(index, dtype=np.uint64)
    save_artifact(storage, "sets", {SHARDS: words[np.argsort(words[:, 0])], "summary": {"rows": members * SHARE}})


def worker(folder: str, members: int, mode: str) -> None:
    artifact = StoredArtifact(open_storage(folder), "sets")
    tables = list(shards(members))
    DuplicateMembers().schema()
    before = memory()
    stage = DuplicateMembers()
    stage.setup({"sets": artifact})
    held = [np.concatenate([artifact.part("members", part)[name] for part in range(parts_of(members))])
            for name in ("key", "keeper", "kind")] if mode == "one table" else []  # fmt: skip
    if held:
        order = np.argsort(held[0], kind="stable")
        held = [array[order] for array in held]
    began = time.perf_counter()
    for shard, keys in tables:
        if held:
            found_in(held[0], packed_keys(keys.column("key")))
            continue
        named = pa.array([shard] * len(keys), pa.string()).dictionary_encode()
        found = stage.process(Batch(keys.append_column("shard", named) if mode == "by part" else keys))
        expected = min(SHARD_ROWS // SHARE, len(keys_of(members, int(shard.split("-")[0]))))
        assert found["duplicate_of"].null_count == len(keys) - expected, "expected every member to be found"
    seconds, after = time.perf_counter() - began, memory()
    growth = {name: (after[name] - before[name]) / 2**20 for name in after}
    print(json.dumps({"mb": growth["VmHWM"], "anonymous": growth["RssAnon"], "ms": seconds * 1e3 / len(tables)}))


def shards(members: int) -> Iterator[tuple[str, pa.Table]]:
    """(shard id, keys) of shards of different parts; a tenth of the rows are members of sets."""
    for number in range(LOOKUPS):
        part = number % parts_of(members)
        known = keys_of(members, part)[: SHARD_ROWS // SHARE]
        others = np.random.default_rng(1 << 20 | number).integers(0, 1 << 63, (SHARD_ROWS - len(known), 2), np.uint64)
        yield f"{part}-0", pa.table({"key": pa.array(keys_of_words(np.concatenate([known, others])), pa.string())})


def memory() -> dict[str, int]:
    """Bytes of peak resident memory including mapped files (`VmHWM`), and of anonymous memory (`RssAnon`)."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(lines[name].split()[0]) << 10 for name in ("VmHWM", "RssAnon")}


# --- results sent to the driver ---------------------------------------------------------------------------------------


class Counting(MemoryGroup):
    """A group that counts the bytes that its steps return to the driver."""

    sent_bytes = 0

    def each(self, step: PartFunction, **shared: Any) -> Iterator[Any]:
        for value in super().each(step, **shared):
            Counting.sent_bytes += len(pickle.dumps(value))
            yield value

    def partition(self, name: str, step: PartFunction, cells: int, **shared: Any) -> Counting:
        sent_bytes = Counting.sent_bytes  # regrouped rows go from worker to worker: do not count them
        cells_group = super().partition(name, step, cells, **shared)
        Counting.sent_bytes = sent_bytes
        return Counting(cells_group.parts, cells_group.threads, _stored=cells_group._stored)


def fit_parts(stage: Any, parts: list[dict[str, Any]]) -> tuple[Counting, dict[str, int], float]:
    Counting.sent_bytes = 0
    group, began = Counting(parts), time.perf_counter()
    summary = stage.fit(group)["summary"]
    return group, summary, time.perf_counter() - began


def images(rows: int) -> tuple[Counting, dict[str, int], float]:
    """Fit images: one row in ten is a copy of another; half of the copies differ in two bits."""
    rng = np.random.default_rng(0)
    original = np.where(rng.random(rows) < 1 / SHARE, rng.integers(0, rows, rows), np.arange(rows))
    hashes = np.random.default_rng(1).integers(0, 256, (rows, 32), dtype=np.uint8)[original]
    digests = np.random.default_rng(2).integers(0, 1 << 63, (rows, 2, 4), dtype=np.uint64)
    near = (original != np.arange(rows)) & (rng.random(rows) < 0.5)
    hashes[near, 0] ^= 3
    digests[~near] = digests[original[~near]]
    arrays = {
        "shard": np.arange(rows, dtype=np.uint64) // SHARD_ROWS + 1,
        "key": rng.integers(0, 1 << 63, (rows, 2), dtype=np.uint64),
        "merit": rng.integers(1, 100, rows),
        "digests": digests,
        "known": np.ones((rows, 2), bool),
        "hash": hashes,
        "comparable": np.ones(rows, bool),
    }
    return fit_parts(FindDuplicates(), parts_from(arrays))


def texts(rows: int) -> tuple[Counting, dict[str, int], float]:
    """Fit texts: one row in ten repeats the text of another."""
    rng = np.random.default_rng(0)
    original = np.where(rng.random(rows) < 1 / SHARE, rng.integers(0, rows, rows), np.arange(rows))
    arrays = {
        "shard": np.arange(rows, dtype=np.uint64) // SHARD_ROWS + 1,
        "key": rng.integers(0, 1 << 63, (rows, 2), dtype=np.uint64),
        "digest": np.random.default_rng(1).integers(0, 1 << 63, (rows, 2), dtype=np.uint64)[original],
        "example": np.full(rows, b"a text", dtype="S96"),
    }
    return fit_parts(FindTextDuplicates(), parts_from(arrays))


def parts_from(arrays: dict[str, np.ndarray], parts: int = 16) -> list[dict[str, Any]]:
    edges = np.linspace(0, len(arrays["shard"]), parts + 1).astype(int)
    return [{name: array[a:b] for name, array in arrays.items()} for a, b in pairwise(edges)]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main(*map(int, sys.argv[1:]))
