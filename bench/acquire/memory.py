"""The driver's memory while a list of URLs becomes a pool, as the list grows.

    python -m bench.acquire.memory [1000000 10000000 100000000] [--engine local|ray]

Two runs of acquire.list and acquire.download, each in a separate process; the second reuses everything. What the
driver does is real: it plans the parts, gives pieces of the shuffle to tasks, writes the table of portions, makes a
task for each portion, collects records, ledgers and summaries of fetches, and has the index of keys built. What workers
do is simulated: for files of a million rows, in portions of 10,000, they return what they would return, but they read
and write no rows. So the files of the list may be sparse.

The figures are peaks of resident memory. On the local engine, the simulated workers are threads of the driver and are
counted with it; on Ray, tasks and results are sent to processes, and the driver is counted alone.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bench.kit.measure import line, machine
from curate.acquire.download.download import AcquireDownload
from curate.acquire.lists.list import AcquireList
from curate.core.fetches import HOSTS_OF_PORTION, codes_to_json
from curate.core.hashing import digest
from curate.core.ledger import Entry
from curate.core.nouns.pools import Shard
from curate.core.recipe.pipeline import Pipeline
from curate.engine.run import make_backend, run
from curate.engine.units import keys, shuffle
from curate.engine.units.collect import build as collect
from curate.engine.units.collect.tasks import CutTask, DealTask
from curate.engine.units.source import build as source
from curate.engine.units.source.read import Imported, ImportTask
from curate.engine.units.source.records import PortionRecord
from tests.conftest import ROOT

SIZES = (1_000_000, 10_000_000, 100_000_000)
FILE_ROWS, ROW_BYTES, PORTION_ROWS, IMAGE_BYTES, KEY_BYTES = 1_000_000, 200, 10_000, 50_000, 25
HOSTS = 1_000_000
"""Different hosts; a portion has HOSTS_OF_PORTION of them in its summary."""
FAILED = {"dns": 0.05, "timeout": 0.02, "http_503": 0.01, "connect": 0.01}
UNUSABLE = {"http_404": 0.12, "http_403": 0.08, "not_image": 0.03, "opt_out_x_robots_tag": 0.01, "too_large": 0.001}
"""Share of the rows by reason."""
AIM = 1.2


class Download(AcquireDownload):
    """Needs no environment, since nothing is fetched."""

    def preflight_on_worker(self) -> list[str]:
        return []


def one_run(folder: Path, engine: str) -> None:
    """A run of this process over the list in `folder`. Prints its peak in bytes."""
    pipeline = (
        Pipeline()
        .add("urls", AcquireList(path=str(folder / "list"), portion_rows=PORTION_ROWS))
        .add("pool", Download(namespace="web", contact="bench@example.org"), list="urls")
        .check()
    )
    simulate()
    backend = make_backend(engine)
    try:
        run(pipeline, str(folder / "workspace"), engine=backend)
        print(peak_bytes())
    finally:
        backend.close()


def make_list(folder: Path, rows: int) -> None:
    """Sparse files, as large as a list of `rows` rows."""
    folder.mkdir()
    for number in range(-(-rows // FILE_ROWS)):
        with (folder / f"{number:05d}.csv").open("wb") as file:
            file.write(b"url,caption\nhttp://example.org/1.jpg,one\n")
            file.truncate(min(FILE_ROWS, rows - number * FILE_ROWS) * ROW_BYTES)


def peak_bytes() -> int:
    """The most resident memory that this process has had. (`ru_maxrss` begins with that of the parent.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(one.split()[1]) for one in lines if one.startswith("VmHWM")) << 10


# --- what workers answer ----------------------------------------------------------------------------------------------


def simulate() -> None:
    """Replace what workers do. Ray's workers import this file to find these functions."""
    collect.deal_rows, collect.cut_rows = deal_rows, cut_rows
    source.import_portion = import_portion
    keys.deal_keys, keys.sort_keys = deal_keys, sort_keys


def deal_rows(task: DealTask) -> shuffle.ShuffleFile:
    rows = sum(part.bytes for part in task.parts) // ROW_BYTES
    return spread(task.path, rows, task.buckets, ROW_BYTES, {"rows": rows + 7, "dropped": {"no_url": 7}})


def spread(path: str, rows: int, buckets: int, size: int, note: dict[str, Any]) -> shuffle.ShuffleFile:
    """A file with the same number of rows, of `size` bytes each, in every bucket."""
    edges = np.linspace(0, rows, buckets + 1).astype(np.int64)
    return shuffle.ShuffleFile(path, np.diff(edges), edges * size, note)


def cut_rows(task: CutTask) -> dict[str, Any]:
    rows = sum(stop - start for _, start, stop in task.pieces) // ROW_BYTES
    edges = np.linspace(0, rows, -(-rows // PORTION_ROWS) + 1).astype(int).tolist()
    lines = [
        {"first": task.first, "last": task.last, "file": task.file, "index": index, "rows": stop - start}
        | {"digest": digest([task.first, index])}
        for index, (start, stop) in enumerate(pairwise(edges))
    ]
    return {"lines": lines, "duplicates": 0}


def import_portion(task: ImportTask) -> Imported:
    """The record of a portion, whose shard does not exist, and a summary of its fetches."""
    rows, chance = task.portion.rows or 0, random.Random(task.number)
    failed, unusable = (Counter({r: int(share * rows) for r, share in of.items()}) for of in (FAILED, UNUSABLE))
    entry = Entry(rows, Counter(), rows - failed.total() - unusable.total(), unusable=unusable, error=failed)
    identity = digest([task.record])
    base = f"pools/{task.stage.namespace}/shards/{identity}"
    shard = Shard(identity, rows, f"{base}.tar", entry.after * IMAGE_BYTES, f"{base}.parquet")
    record = PortionRecord(shard, json.dumps(entry.to_json(), sort_keys=True))
    task.storage.create(task.record, record.dump())
    return Imported(record, rows, rows - entry.after, summary(rows, chance, task.number))


def summary(rows: int, chance: random.Random, number: int) -> dict[str, Any]:
    """A portion's fetches, as `Fetches.to_json` sums them up."""
    codes = {("done", "done"): rows} | dict.fromkeys(
        [*(("error", r) for r in FAILED), *(("unusable", r) for r in UNUSABLE)], 9
    )
    hosts = {f"images-{int(HOSTS * chance.random() ** 4)}.example.org" for _ in range(HOSTS_OF_PORTION)}
    return {
        "codes": codes_to_json(codes), "tries": rows, "bytes": rows * IMAGE_BYTES,
        "hosts": {host: [20, 5, 6.25, 20 * IMAGE_BYTES] for host in hosts},
        "period": 10, "periods": {str(180_000_000 + 20 * number): [rows, rows, rows * IMAGE_BYTES]},
    }  # fmt: skip


def deal_keys(task: keys.DealTask) -> shuffle.ShuffleFile:
    rows = sum(shard.rows for shard in task.shards)
    return spread(f"{task.folder}/work/{task.number:06d}-0123456789ab", rows, task.ranges, KEY_BYTES, {})


def sort_keys(task: keys.SortTask) -> None:
    pass


# --- what is printed --------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description="memory of the driver by rows of a list")
    parser.add_argument("rows", nargs="*", type=int, default=SIZES)
    parser.add_argument("--engine", default="local", choices=("local", "ray"))
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.folder:
        one_run(asked.folder, asked.engine)
        return
    print(f"{machine()}; engine {asked.engine}")
    peaks: dict[int, tuple[int, int]] = {}
    for rows in asked.rows:
        peaks[rows] = peaks_of(rows, asked.engine)
        least = min(peaks)
        for name, size, base in zip(("run", "run again"), peaks[rows], peaks[least], strict=True):
            notes = f"{size >> 20} MiB against {base >> 20} MiB at {least:,} rows (aim: at most {AIM})"
            line(f"{rows:,} rows, {name}", f"{size / base:.2f}", notes)


def peaks_of(rows: int, engine: str) -> tuple[int, int]:
    """Peaks in bytes of a run, and of a second run that reuses everything."""
    command = [sys.executable, "-m", "bench.acquire.memory", "--engine", engine, "--folder"]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        make_list(Path(folder, "list"), rows)
        first, again = (
            subprocess.run([*command, folder], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
            for _ in range(2)
        )
    return int(first), int(again)


if __name__ == "__main__":
    main(sys.argv[1:])
