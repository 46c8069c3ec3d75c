"""How long a run takes that finds its download finished.

    python -m bench.acquire.resume [1000000]

A list of this number of rows goes through acquire.list. The download is simulated: instead of asking a runner, it gives
each row an image of one pixel, or one of eight failures. All else is real: the engine imports portions of 10,000 rows,
publishes shards, records and fetches, and builds the index of keys. Then the same command runs again in a new process,
and once more after the version of the pool and the index were removed, as if the first run had been killed before them.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.engine.simulated import member
from bench.kit.measure import line, machine
from curate.acquire.download.download import AcquireDownload
from curate.acquire.lists.list import AcquireList
from curate.core.contracts import Fetch, Incoming, Portion
from curate.core.recipe.pipeline import Pipeline
from curate.engine.run import run
from tests.conftest import ROOT

CODES = ("dns", "timeout", "http_503", "http_404", "http_404", "http_403", "not_image", "opt_out_x_robots_tag")
PASSING = ("dns", "timeout", "http_503")
HOSTS = 5000
AIM_SECONDS = 10.0
FILE_ROWS = 250_000


class Simulated(AcquireDownload):
    """Every fourth row fails; the others are images of one pixel."""

    def preflight_on_worker(self) -> list[str]:
        return []

    def read(self, portion: Portion) -> Iterator[Incoming]:
        codes = cycle(CODES)
        for number, row in enumerate(self._list.portion(portion.place).to_pylist()):
            sample = Incoming(f"{row['url']}\t{row['caption']}", caption=row["caption"], url=row["url"])
            sample.fetch = Fetch(f"images-{row['group'] % HOSTS}.example.org", 1, 0.2, 50_000)
            if number % 4:
                sample.ext, sample.data = "bmp", member(number)
            else:
                sample.reject = next(codes)
                sample.status = "error" if sample.reject in PASSING else "unusable"
            yield sample


def one_run(folder: Path) -> None:
    pipeline = (
        Pipeline()
        .add("urls", AcquireList(path=str(folder / "list")))
        .add("pool", Simulated(namespace="web", contact="bench@example.org"), list="urls")
        .check()
    )
    began = time.perf_counter()
    run(pipeline, str(folder / "workspace"))
    print(f"{time.perf_counter() - began:.2f} s without imports", file=sys.stderr)


def make_list(folder: Path, rows: int) -> None:
    folder.mkdir()
    for first in range(0, rows, FILE_ROWS):
        numbers = range(first, min(rows, first + FILE_ROWS))
        urls = [f"https://images-{number % HOSTS}.example.org/photos/{number:09d}.jpg" for number in numbers]
        captions = [f"a photograph with the number {number}, of whatever it may show" for number in numbers]
        pq.write_table(pa.table({"url": urls, "caption": captions}), folder / f"{first:09d}.parquet")


def seconds_of(folder: str) -> float:
    """Wall time of a run in a separate process, from start to exit."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "bench.acquire.resume", "--folder", folder], cwd=ROOT, check=True)
    return time.perf_counter() - began


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description="seconds to resume a finished download")
    parser.add_argument("rows", nargs="?", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.folder:
        one_run(asked.folder)
        return
    print(machine())
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        make_list(Path(folder, "list"), asked.rows)
        line(f"{asked.rows:,} rows, first run", f"{seconds_of(folder):.1f} s")
        line("the same command again", f"{seconds_of(folder):.1f} s", f"(aim: under {AIM_SECONDS:.0f} s)")
        for name in ("versions", "keys"):
            shutil.rmtree(Path(folder, "workspace", "pools", "web", name))
        line("again, without version and index", f"{seconds_of(folder):.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
