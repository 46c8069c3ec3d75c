"""Duplicate sets at two sizes of the pool: memory of a worker of `duplicates.members`, what a fit tells its driver.

python -m bench.duplicates.sets [MEMBERS [MEMBERS]]

A tenth of the pool's rows are members of sets. A worker looks up shards of 10,000 rows in the artifact: by the stretch
of their shard; in all stretches, as it does for shards that the fit has not seen; and, for comparison, in one table of
all sets in memory. Then `duplicates.find` and `text.duplicates` fit a fortieth of the rows in parts, and what steps
return to the driver is counted (`text.duplicates` keeps 10,000 texts of it).
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
from curate.core.group import MOST_PART_ROWS, MemoryGroup, Step
from curate.core.hashing import keys_of_words
from curate.core.nouns.artifacts import StoredArtifact, save_artifact
from curate.core.row_lookup import SHARDS, as_bytes, found_in, packed_keys, shard_word
from curate.core.store.arrays import write_arrays
from curate.core.store.storage import open_storage
from curate.duplicates.near.find import FindDuplicates
from curate.duplicates.near.members import DuplicateMembers
from curate.text.duplicates.find import FindTextDuplicates

SIZES = (1_000_000, 4_000_000)
SHARD_ROWS, SHARE, LOOKED = 10_000, 10, 40
MODES = ("by stretch", "all stretches", "one table")


def main(*sizes: int) -> None:
    print(f"{'members':>12}{'lookup':>16}{'MB of worker':>14}{'of it anonymous':>17}{'ms per shard':>14}")
    for members in sizes or SIZES:
        with tempfile.TemporaryDirectory() as folder:
            write_sets(folder, members)
            for mode in MODES:
                command = [sys.executable, "-m", "bench.duplicates.sets", "--worker", folder, str(members), mode]
                told = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
                print(f"{members:>12,}{mode:>16}{told['mb']:>14.1f}{told['anonymous']:>17.1f}{told['ms']:>14.1f}")
    print(f"\n{'rows':>12}{'fit':>20}{'members':>12}{'MB to the driver':>18}{'seconds':>10}")
    for members in sizes or SIZES:
        for name, fit in (("duplicates.find", images), ("text.duplicates", texts)):
            rows = members * SHARE // 40
            group, summary, seconds = fit(rows)
            found = summary.get("repeated") or summary["exact_duplicates"] + summary["near_duplicates"]
            print(f"{rows:>12,}{name:>20}{found:>12,}{group.told / 1e6:>18.2f}{seconds:>10.1f}")


# --- a worker's memory ------------------------------------------------------------------------------------------------


def keys_of(members: int, part: int) -> np.ndarray:
    """Key words (n, 2) of the members in one part, the same wherever they are asked for."""
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
        found = stage.process(Batch(keys.append_column("shard", named) if mode == "by stretch" else keys))
        wanted = min(SHARD_ROWS // SHARE, len(keys_of(members, int(shard.split("-")[0]))))
        assert found["duplicate_of"].null_count == len(keys) - wanted, "every member is found"
    seconds, after = time.perf_counter() - began, memory()
    told = {name: (after[name] - before[name]) / 2**20 for name in after}
    print(json.dumps({"mb": told["VmHWM"], "anonymous": told["RssAnon"], "ms": seconds * 1e3 / len(tables)}))


def shards(members: int) -> Iterator[tuple[str, pa.Table]]:
    """Shards of different parts, a tenth of whose rows are members."""
    for number in range(LOOKED):
        part = number % parts_of(members)
        mine = keys_of(members, part)[: SHARD_ROWS // SHARE]
        others = np.random.default_rng(1 << 20 | number).integers(0, 1 << 63, (SHARD_ROWS - len(mine), 2), np.uint64)
        yield f"{part}-0", pa.table({"key": pa.array(keys_of_words(np.concatenate([mine, others])), pa.string())})


def memory() -> dict[str, int]:
    """Bytes: peak resident memory (`VmHWM`, with mapped files), and memory without files (`RssAnon`)."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(lines[name].split()[0]) << 10 for name in ("VmHWM", "RssAnon")}


# --- results sent to the driver ---------------------------------------------------------------------------------------


class Counting(MemoryGroup):
    """Counts the bytes that steps return."""

    told = 0

    def each(self, step: Step, **shared: Any) -> Iterator[Any]:
        for value in super().each(step, **shared):
            Counting.told += len(pickle.dumps(value))
            yield value

    def partition(self, name: str, step: Step, cells: int, **shared: Any) -> Counting:
        told = Counting.told  # rows that are regrouped go from worker to worker
        made = super().partition(name, step, cells, **shared)
        Counting.told = told
        return Counting(made.parts, made.threads, _stored=made._stored)


def fitted(stage: Any, parts: list[dict[str, Any]]) -> tuple[Counting, dict[str, int], float]:
    Counting.told = 0
    group, began = Counting(parts), time.perf_counter()
    summary = stage.fit(group)["summary"]
    return group, summary, time.perf_counter() - began


def images(rows: int) -> tuple[Counting, dict[str, int], float]:
    """One row in ten is a copy of another; half of the copies differ in two bits."""
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
        "pixels": rng.integers(1, 100, rows),
        "digests": digests,
        "known": np.ones((rows, 2), bool),
        "hash": hashes,
        "comparable": np.ones(rows, bool),
    }
    return fitted(FindDuplicates(), cut(arrays))


def texts(rows: int) -> tuple[Counting, dict[str, int], float]:
    """One row in ten repeats another's text."""
    rng = np.random.default_rng(0)
    original = np.where(rng.random(rows) < 1 / SHARE, rng.integers(0, rows, rows), np.arange(rows))
    arrays = {
        "shard": np.arange(rows, dtype=np.uint64) // SHARD_ROWS + 1,
        "key": rng.integers(0, 1 << 63, (rows, 2), dtype=np.uint64),
        "digest": np.random.default_rng(1).integers(0, 1 << 63, (rows, 2), dtype=np.uint64)[original],
        "example": np.full(rows, b"a text", dtype="S96"),
    }
    return fitted(FindTextDuplicates(), cut(arrays))


def cut(arrays: dict[str, np.ndarray], parts: int = 16) -> list[dict[str, Any]]:
    edges = np.linspace(0, len(arrays["shard"]), parts + 1).astype(int)
    return [{name: array[a:b] for name, array in arrays.items()} for a, b in pairwise(edges)]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main(*map(int, sys.argv[1:]))
