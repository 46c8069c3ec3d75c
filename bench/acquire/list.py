"""`acquire.list`, from parquet files to portions, against Polars reading, hashing and writing the same columns.

Both have one core: the local engine runs one task at a time. Polars neither normalises URLs, nor brings rows of one URL
together, nor drops copies, and holds all rows in memory.

python -m bench.acquire.list [ROWS]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.kit.measure import REPEATS, line

ROWS, FILES, GROUP_ROWS = 5_000_000, 8, 100_000
AIM = 0.5
WORDS, HOSTS, ODD = 5000, 40_000, 0.01
"""Words of paths and captions, hosts, and the share of URLs that are not normal."""
WAYS = ("ours", "polars")


def make(folder: Path, rows: int, seed: int = 0) -> None:
    """A list like LAION's: URLs of about 75 characters, captions of 10 words, five columns of facts."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(seed)
    words = np.array(["".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), n)) for n in rng.integers(2, 11, WORDS)])
    folder.mkdir()
    for number in range(FILES):
        count = rows // FILES
        host, odd = rng.integers(0, HOSTS, count), rng.random(count) < ODD
        lengths = rng.integers(4, 17, count)
        chosen = np.split(words[rng.integers(0, WORDS, lengths.sum())], np.cumsum(lengths)[:-1])
        path = words[rng.integers(0, WORDS, (count, 4))]
        urls = [
            f"https://{'Cdn' if strange else 'cdn'}.{words[h % WORDS]}{h}.example/{'/'.join(p)}/{number}-{i:08d}.jpg"
            for i, (h, strange, p) in enumerate(zip(host.tolist(), odd.tolist(), path, strict=True))
        ]
        columns: dict[str, Any] = {"URL": urls, "TEXT": [" ".join(some) for some in chosen]}
        columns |= {"WIDTH": rng.integers(100, 3000, count), "HEIGHT": rng.integers(100, 3000, count)}
        columns |= {"LICENSE": ["?"] * count, "NSFW": ["UNLIKELY"] * count, "similarity": rng.random(count)}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", row_group_size=GROUP_ROWS)


def ours(folder: Path, out: Path) -> None:
    from curate.acquire.lists.list import AcquireList
    from curate.core.recipe.pipeline import Pipeline
    from curate.engine.run import run

    run(Pipeline().add("list", AcquireList(path=str(folder))), str(out))


def polars(folder: Path, out: Path) -> None:
    import polars as pl

    out.mkdir()
    for file in sorted(folder.iterdir()):
        rows = pl.read_parquet(file)
        facts = pl.struct("HEIGHT", "LICENSE", "NSFW", "WIDTH", "similarity").struct.json_encode()
        hashes = {"group": pl.col("URL").hash(), "row": pl.struct("URL", "TEXT").hash()}
        rows.select(url="URL", caption="TEXT", meta=facts, **hashes).write_parquet(out / file.name)


def timed(way: str, folder: Path, out: Path) -> dict[str, float]:
    """One way in this process, on one core, the imports before it."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import curate.engine.run  # noqa: F401

    work = {"ours": ours, "polars": polars}[way]
    work(folder / "small", out / "small")
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    work(folder / "list", out / "list")
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peak = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmHWM"))
    return {"seconds": seconds, "cpu": cpu, "peak": int(peak.split()[1]) * 1024}


def measured(way: str, folder: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=folder) as out:
        command = [sys.executable, "-m", "bench.acquire.list", "--way", way, str(folder), out]
        done = subprocess.run(command, env=os.environ | {"POLARS_MAX_THREADS": "1"}, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{way}: {done.stderr.strip().splitlines()[-1]}")
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=int, nargs="?", default=ROWS)
    parser.add_argument("--way", nargs=3, help=argparse.SUPPRESS)
    arguments, _ = parser.parse_known_args()
    if arguments.way:
        way, folder, out = arguments.way
        print(json.dumps(timed(way, Path(folder), Path(out))))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder / "list", arguments.rows)
        make(folder / "small", 8 * FILES)
        found = {way: [] for way in WAYS}
        for _ in range(REPEATS):
            for way in WAYS:
                found[way].append(measured(way, folder))
    for way in WAYS:
        rate = arguments.rows / statistics.median(one["seconds"] for one in found[way])
        cpu = statistics.median(one["cpu"] for one in found[way]) / arguments.rows * 1e6
        peak = max(one["peak"] for one in found[way]) / 2**20
        line(
            f"{way}: {arguments.rows:,} rows",
            f"{rate:,.0f} rows/s",
            f"{cpu:.2f} s of a core per million, {peak:,.0f} MiB",
        )
    for name, of in (("rate", "seconds"), ("work on a core", "cpu")):
        ratio = statistics.median(
            theirs[of] / mine[of] for mine, theirs in zip(found["ours"], found["polars"], strict=True)
        )
        line(f"{name}, ours to Polars'", f"{ratio:.2f}", f"aim: {AIM}")


if __name__ == "__main__":
    main()
