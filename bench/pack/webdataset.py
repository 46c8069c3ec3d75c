"""Time of packing compared with `cp` of the same bytes, and of a second quickstart compared with the first."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from bench.kit.measure import line, seconds
from curate.core.recipe.pipeline import Pipeline
from curate.core.recipe.registry import resolve
from curate.engine.run import run
from tests.engine.toys import Numbers

ROWS, SIDE = 8_000, 96


def pack(folder: Path) -> None:
    """Pack 8,000 PNGs of about 27 KB. All are selected, so packing reads and writes the same bytes as `cp`."""

    def pipeline(seed: int) -> Pipeline:
        pipeline = Pipeline()
        pipeline.add("pool", Numbers(namespace="bench", rows=ROWS, shard_rows=1000, side=SIDE))
        pipeline.add("all", resolve("select.all")(), "pool")
        pipeline.add("dataset", resolve("pack.webdataset")(name="bench", seed=seed), "all")
        return pipeline

    workspace = folder / "workspace"
    run(pipeline(0), str(workspace))
    seeds = iter(range(1, 100))
    packing = seconds(lambda: run(pipeline(next(seeds)), str(workspace)))
    source = next(path.parent for path in sorted(workspace.glob("datasets/bench/*/*.tar")))
    size = sum(path.stat().st_size for path in source.glob("*.tar"))
    copies = iter(range(100))

    def copy() -> None:
        target = folder / f"copy{next(copies)}"
        target.mkdir()
        subprocess.run(["cp", *map(str, sorted(source.glob("*.tar"))), str(target)], check=True)
        for path in target.iterdir():
            with open(path, "rb") as file:
                os.fsync(file.fileno())

    copying = seconds(copy)
    line("pack.webdataset, one process", f"{size / packing / 1e6:,.0f} MB/s", f"{ROWS:,} samples, {size / 1e6:,.0f} MB")
    line("cp and fsync of the same tars", f"{size / copying / 1e6:,.0f} MB/s")
    line("pack against cp, wall time", f"{packing / copying:.2f}x")


def quickstart(folder: Path) -> None:
    """Run `make quickstart` twice in a new workspace."""
    times = []
    for _ in range(2):
        began = time.perf_counter()
        command = ["make", "quickstart", f"WORKSPACE={folder / 'quickstart'}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    line("make quickstart, first (setup and corpus exist)", f"{times[0]:.1f} s")
    line("make quickstart, second", f"{times[1]:.1f} s", "limit 45 s")
    line("second against first", f"{times[1] / times[0]:.3f}")


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="bench-pack-"))
    try:
        pack(folder)
        quickstart(folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
