"""Cost of an open dataset: memory per sample, and the speed of planning an epoch.

python -m bench.distill.index [SAMPLES]

An index of synthetic samples (2,000,000 in tars of 10,000) is opened twice, each time by a new process; the first one
writes the arrays that all others map. `private` is memory that no other process shares (dirty pages, without those of
the interpreter and of torch), `mapped` is memory in the page cache that all processes share.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.kit.measure import line
from distill.samples.batches.stream import Stream
from distill.samples.batches.track import Packing
from distill.samples.images.reader import ImageReader
from distill.samples.sources.dataset import open_dataset
from distill.samples.sources.mixture import as_mixture
from distill.samples.sources.split import held_out_rows

SAMPLES, PER_TAR, PLANNED = 2_000_000, 10_000, 200_000


def write(folder: Path, samples: int) -> None:
    rng, place = np.random.default_rng(0), np.arange(samples)
    keys = [rng.bytes(16).hex() for _ in range(samples)]
    small = {"shard": place // PER_TAR, "row": place % PER_TAR, "copy": 0 * place}
    small |= {name: rng.integers(300, 2000, samples) for name in ("width", "height")}
    large = {"offset": place % PER_TAR * 50_000, "size": rng.integers(20_000, 40_000, samples)}
    large |= {"text_offset": large["offset"] + 40_960, "text_size": rng.integers(10, 200, samples)}
    columns = {name: pa.array(values, pa.int32()) for name, values in small.items()} | large
    columns |= {"key": keys, "name": [f"{key}-0-0" for key in keys], "item": ["0"] * samples, "ext": ["jpg"] * samples}
    pq.write_table(pa.table(columns | {"duplicate_set": keys}), folder / "index.parquet", compression="zstd")
    tars = {f"made-{number:06d}.tar": PER_TAR for number in range(-(-samples // PER_TAR))}
    (folder / "sizes.json").write_text(json.dumps(tars))
    (folder / "manifest.json").write_text("{}")


def opened(folder: str) -> None:
    """Print the time and memory of opening and planning; runs in a separate process."""
    before, began = memory(), time.perf_counter()
    mixture = as_mixture(open_dataset(folder))
    opening = time.perf_counter() - began
    test = held_out_rows(mixture, seed=0, fraction=0.1)
    reader = ImageReader(mixture, patch=16, max_tokens=256)
    packing = Packing(capacity=4096, images=16)
    tokens = lambda rows, epochs: reader.tokens(rows, epochs) + 5  # noqa: E731
    steps = Stream(mixture, ~test, seed=0, sequences=8, tokens=tokens, packing=packing).steps()
    first = time.perf_counter() - began
    planned, began = 0, time.perf_counter()
    while planned < PLANNED:
        planned += sum(map(len, next(steps).sequences))
    rate, after = planned / (time.perf_counter() - began), memory()
    own = (after["Private_Dirty"] - before["Private_Dirty"]) / len(mixture)
    whole = (after["Rss"] - before["Rss"]) / len(mixture)
    print(json.dumps({"opening": opening, "first": first, "rate": rate, "own": own, "mapped": whole - own}))


def memory() -> Counter[str]:
    """Bytes by kind (proc(5), smaps_rollup)."""
    found: Counter[str] = Counter()
    for row in Path("/proc/self/smaps_rollup").read_text().splitlines():
        name, _, value = row.partition(":")
        if value.endswith("kB"):
            found[name] = int(value.split()[0]) << 10
    return found


def main() -> None:
    samples = int(sys.argv[1]) if sys.argv[1:] and __name__ == "__main__" else SAMPLES
    with tempfile.TemporaryDirectory(prefix="bench-index-") as name:
        write(Path(name), samples)
        for title in ("opened for the first time", "opened again, by another process"):
            call = [sys.executable, "-c", f"from bench.distill.index import opened; opened({name!r})"]
            done = subprocess.run(
                call, check=True, capture_output=True, env={**os.environ, "CURATE_CACHE": f"{name}/cache"}
            )
            found = json.loads(done.stdout)
            print(f"{samples:,} samples, {title}")
            line(
                "  until it is open", f"{found['opening']:.1f} s", f"{found['first']:.1f} s until steps can be planned"
            )
            line("  planned", f"{found['rate']:,.0f} images/s")
            line("  private memory", f"{found['own']:.0f} bytes", "a sample")
            line("  mapped, shared", f"{found['mapped']:.0f} bytes", "a sample")


if __name__ == "__main__":
    main()
