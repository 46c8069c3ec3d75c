"""What stored answers cost a unit: an index of 1, 10 and 100 million inputs, searched by units of 10,000 rows that are
all new, and by some of which 3 % have an answer.

    python -m bench.engine.answers [INPUTS ...] [--folder DIR] [--remote]

The index is as units of 10,000 answers leave it, merged as a run merges it. The searches run in a separate process
and count operations of the storage, bytes, seconds and memory, for the first unit of the process and for later ones;
reading the tables that have the answers is not part of a search. With --remote the folder is treated as an object
store: the process reads the index by requests into an empty cache.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.engine import counting
from bench.kit.measure import machine
from curate.core.store.storage import Storage
from curate.engine.passes.answers import index
from curate.engine.passes.answers import merge as merging

UNIT = 10_000
STAGE = f"facts/caption.generate/{'5' * 32}"
INDEX = f"{STAGE}/{index.FOLDER}"
REPEATS = 4


def unit(number: int) -> np.ndarray[Any, Any]:
    """Inputs of a unit (n, 2 words), sorted."""
    drawn = np.frombuffer(np.random.default_rng(number).bytes(16 * UNIT), ">u8").reshape(-1, 2)
    return drawn[np.lexsort((drawn[:, 1], drawn[:, 0]))]


def write_units(storage: Storage, count: int) -> int:
    """Files as units add them; returns their bytes."""
    folder = Path(storage.path(INDEX))
    folder.mkdir(parents=True)
    size = 0
    for number in range(count // UNIT):
        inputs = pa.Array.from_buffers(pa.binary(16), UNIT, [None, pa.py_buffer(unit(number).tobytes())])
        tables = pa.array([f"{'f' * 32}/{number:032x}/000001.parquet"] * UNIT).dictionary_encode()
        path = folder / f"{number:032x}.arrow"
        with pa.ipc.new_file(path, index.SCHEMA) as writer:
            writer.write_table(pa.table([inputs, tables], schema=index.SCHEMA))
        size += path.stat().st_size
    return size


class Measured:
    """Operations, bytes and seconds of a block."""

    def __init__(self) -> None:
        self.operations: Counter[str] = Counter()
        counting.install(lambda what, count, way, path, size: self.operations.update({what: count}))

    def __enter__(self) -> Measured:
        self.operations.clear()
        self._read, self._began, self._cpu = _read_bytes(), time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.bytes = _read_bytes() - self._read
        self.seconds, self.cpu = time.perf_counter() - self._began, time.process_time() - self._cpu

    def __str__(self) -> str:
        listed = ", ".join(f"{name} {count:,}" for name, count in sorted(self.operations.items())) or "none"
        return f"{self.seconds:.2f} s, {self.cpu:.2f} s of CPU, {self.bytes / 1e6:.1f} MB read; operations: {listed}"


def _read_bytes() -> int:
    """Bytes that this process has read by calls; pages of mapped files are not among them."""
    return int(Path("/proc/self/io").read_text().split()[1])


def _memory() -> str:
    """Own memory of this process, and mapped files of which it has pages."""
    text = Path("/proc/self/status").read_text()
    own, mapped = (int(text.partition(f"{name}:")[2].split()[0]) >> 10 for name in ("RssAnon", "RssFile"))
    return f"{own} MiB own, {mapped} MiB of mapped files"


def prepare(folder: str, count: int) -> None:
    storage = Storage(folder)
    merging.merge(storage, STAGE, lambda function, tasks: True)  # a new index, which is complete
    size = write_units(storage, count)
    seconds = Counter[str]()

    def run(function: Callable[[Any], Any], tasks: Sequence[Any]) -> bool:
        began = time.perf_counter()
        found = [function(task) for task in tasks]
        seconds[f"{len(tasks):,} x {function.__name__}"] += time.perf_counter() - began  # type: ignore[assignment]
        return all(found)

    with Measured() as measured:
        merging.merge(storage, STAGE, run)
    left = storage.list(INDEX)
    per_unit = sum(measured.operations.values()) / (count // UNIT)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    tasks = ", ".join(f"{name} in {value:.0f} s" for name, value in seconds.items())
    print(f"  {size / 1e6:,.0f} MB in {count // UNIT:,} files -> {sum(left.values()) / 1e6:,.0f} MB in {len(left)}")
    print(f"  merge: {measured}; {per_unit:.2f} a unit; {tasks}; peak {peak} MiB", flush=True)


def look(folder: str, count: int, remote: bool) -> None:
    storage = Storage(folder)
    storage.local = not remote
    files = index.files_of(storage.list(INDEX))
    drawn = np.random.default_rng(7)
    print(f"  {len(files)} files; before: {_memory()}")
    for what, share in (("all new", 0.0), ("3 % known", 0.03)):
        for repeat in range(REPEATS):
            wanted = [bytes(pair) for pair in unit(int(drawn.integers(1 << 40, 1 << 41)))]
            for place in range(int(UNIT * share)):
                wanted[place] = unit(int(drawn.integers(count // UNIT)))[drawn.integers(UNIT)].tobytes()
            with Measured() as measured:
                found = index.search(storage, STAGE, files, wanted)
            assert len(found) == int(UNIT * share)
            if repeat in (0, REPEATS - 1):
                print(f"  {what}, {'first' if not repeat else 'later'} unit: {measured}; {_memory()}", flush=True)


def main(*given: str) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="*", type=int, default=[1_000_000, 10_000_000, 100_000_000])
    parser.add_argument("--folder", help="where to write the index (2.2 GB for 100 million); removed at the end")
    parser.add_argument("--remote", action="store_true")
    parser.add_argument("--look", help=argparse.SUPPRESS)
    parser.add_argument("--prepare", help=argparse.SUPPRESS)
    options = parser.parse_args(list(given) or None)
    if options.prepare or options.look:
        [count] = options.inputs
        prepare(options.prepare, count) if options.prepare else look(options.look, count, options.remote)
        return
    print(machine())
    for count in options.inputs:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            print(f"{count:,} inputs")
            environment = os.environ | {"CURATE_CACHE": f"{folder}/cache"}
            for step in (["--prepare", folder], ["--look", folder, *(["--remote"] if options.remote else [])]):
                command = [sys.executable, "-m", "bench.engine.answers", str(count), *step]
                subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    main()
