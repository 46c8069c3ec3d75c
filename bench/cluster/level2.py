"""A level above the first, fitted by cells: seconds, inertia, and memory of driver and worker, at two sizes.

    python -m bench.cluster.level2 [--sizes 500000 2000000] [--ratio 40] [--dim 64] [--rounds 2]

Inputs have the form of a level 1 fitted by cells: centroids of unit length in float16, one file per cell. The engine's
groups fit them and assign their parents, with one worker process and the driver. Memory is private memory (RssAnon)
beyond that of a process after its imports; rows are in mapped files, which do not count. The peer fits 200,000 inputs
in one piece, and the same inputs by cells.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.cluster.divide.level import assign_leaves, default_cells, divide
from curate.cluster.divide.probe import PROBE
from curate.cluster.kmeans.lloyd import Settings
from curate.cluster.tree.level import LevelSettings, fit_level
from curate.core.contracts import Resources
from curate.core.group import MemoryGroup, cut
from curate.core.store.arrays import members, write_arrays
from curate.core.store.storage import Storage, open_storage
from curate.engine.tasks.job import Outcome
from curate.engine.units.fit.group import Build, EngineGroup
from curate.engine.units.fit.parts import FromFile, cell_file
from curate.kernels.nearest.search import nearest

PEER = 200_000
THREADS = 2
BELOW, CELL_ROWS = "work/below", 450
PER_SECOND = 50
"""Memory samples per second."""


class Memory:
    """Peak private memory of this process in MB, beyond its memory at the start."""

    def __init__(self) -> None:
        self._base = self._most = self._now()
        threading.Thread(target=self._watch, daemon=True).start()

    def most(self) -> float:
        return (max(self._most, self._now()) - self._base) / 1e6

    def _now(self) -> int:
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
        return 1024 * int(line.split()[1])

    def _watch(self) -> None:
        while True:
            self._most = max(self._most, self._now())
            time.sleep(1 / PER_SECOND)


def warm() -> None:
    """Import the libraries of the search, and let it choose its backend."""
    import faiss  # noqa: F401
    import scipy.sparse  # noqa: F401
    import torch  # noqa: F401

    rows = np.random.default_rng(0).standard_normal((1 << 14, 64), dtype=np.float32)
    nearest(rows, rows[: 1 << 11], THREADS)


def serve(pipe: Connection) -> None:
    """Serve the worker process: (function, payload, shared) -> value; "memory" -> its peak."""
    warm()
    memory = Memory()
    while True:
        order = pipe.recv()
        if order is None:
            return
        if order == "memory":
            pipe.send(memory.most())
            continue
        function, payload, shared = order
        pipe.send(function(payload) if shared is None else function(payload, shared))


@dataclass
class Worker:
    """Context of a build that runs all tasks in one worker process."""

    storage: Storage
    pipe: Connection
    backend: Any = field(default_factory=lambda: SimpleNamespace(draining=threading.Event()))
    events: Any = field(default_factory=lambda: SimpleNamespace(emit=lambda *a, **k: None, flush=lambda: None))

    def run(self, function: Callable[..., Any], tasks: Sequence[Any], stage: Any, how: Any) -> Iterator[Outcome]:
        for index, task in enumerate(tasks):
            self.pipe.send((function, task, how.shared))
            yield Outcome(index, self.pipe.recv())


def directions(rows: int, dim: int, seed: int) -> NDArray[np.float16]:
    """Directions (rows, dim) on a curved 12-dimensional surface, without groups, as centroids are after resampling."""
    rng = np.random.default_rng(seed)
    first, second = rng.standard_normal((12, 48)) / 12**0.5, rng.standard_normal((48, dim)) / 48**0.5
    found = np.empty((rows, dim), np.float16)
    for start in range(0, rows, 1 << 16):
        place = rng.standard_normal((min(1 << 16, rows - start), 12))
        piece = np.tanh(2 * place @ first) @ second
        found[start : start + len(piece)] = piece / np.linalg.norm(piece, axis=1, keepdims=True)
    return found


def write(folder: str, rows: int, dim: int) -> None:
    """Write the inputs to files of about 450 neighbours each, like the cells of a level 1."""
    storage, points = open_storage(folder), directions(rows, dim, 0)
    coarse = points[::CELL_ROWS].astype(np.float32)
    cell = np.concatenate([nearest(piece.astype(np.float32), coarse, THREADS)[0] for piece in pieces(points)])
    order = np.argsort(cell, kind="stable")
    edges = np.searchsorted(cell[order], np.arange(len(coarse) + 1))
    for number, (start, stop) in enumerate(pairwise(edges)):
        write_arrays(storage, cell_file(BELOW, number), {"vectors": points[order[start:stop]]})


def pieces(points: NDArray[Any]) -> list[NDArray[Any]]:
    return [points[start : start + (1 << 16)] for start in range(0, len(points), 1 << 16)]


def settings_of(clusters: int, rounds: int) -> LevelSettings:
    return LevelSettings(Settings(clusters, 0, 30, unit_norm=True), rounds, polish=True)


def by_cells(rows: int, dim: int, ratio: int, rounds: int) -> str:
    clusters = rows // ratio
    cells = default_cells(clusters)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there,), daemon=True)
    process.start()
    with tempfile.TemporaryDirectory() as folder:
        storage = open_storage(folder)
        made_by = context.Process(target=write, args=(folder, rows, dim))
        made_by.start()
        made_by.join()
        files = len(storage.list(BELOW))
        counts = [members(storage, cell_file(BELOW, number))["vectors"].shape[0] for number in range(files)]
        stage: Any = SimpleNamespace(op="bench", resources=lambda: Resources(cpus=THREADS))
        progress = SimpleNamespace(tell=lambda *a: None)
        worker_of: Any = Worker(storage, here)
        build = Build(worker_of, SimpleNamespace(name="bench"), stage, SimpleNamespace(base=""), progress)  # type: ignore[arg-type]
        origins = [(number, FromFile(storage, cell_file(BELOW, number))) for number in range(files)]
        inputs = EngineGroup(build, "below", [*origins], counts)
        warm()
        memory = Memory()
        began = time.perf_counter()
        found = divide(
            inputs, settings_of(clusters, rounds), cells, None, lambda state: inputs.save(state.packed()), "up"
        )
        fitted = time.perf_counter() - began
        parents, inertia = assign_leaves(inputs, found.centroids, found.offsets, "up", PROBE)
        whole, driver = time.perf_counter() - began, memory.most()
        here.send("memory")
        worker = here.recv()
        here.send(None)
        process.join()
        assert len(parents) == rows
    size = f"{rows:>9,} inputs, {clusters:>6,} clusters, {cells:>3} cells"
    seconds = f"{fitted:.1f} s to fit, {whole - fitted:.1f} s for the parents; inertia per input {inertia / rows:.4f}"
    held = f"driver {driver:.0f} MB, worker {worker:.0f} MB"
    whole_piece = f"sums {clusters * dim * 8 / 1e6:.0f} MB and inputs {rows * dim * 4 / 1e6:.0f} MB"
    return f"{size}: {seconds}; {held} (in one piece: {whole_piece})"


def peer(dim: int, ratio: int, rounds: int) -> str:
    """Fit the same inputs in one piece and by cells, in this process."""
    points = directions(PEER, dim, 1)
    wanted = settings_of(PEER // ratio, rounds)
    began = time.perf_counter()
    whole = fit_level(MemoryGroup(cut({"vectors": points}), THREADS), wanted)
    in_one = time.perf_counter() - began
    group = MemoryGroup(cut({"vectors": points}), THREADS)
    began = time.perf_counter()
    found = divide(group, wanted)
    parents, inertia = assign_leaves(group, found.centroids, found.offsets, "leaves", PROBE)
    divided = time.perf_counter() - began
    held = [arrays["vectors"] for _, arrays in sorted(group._stored["leaves"].items())]
    units = points.astype(np.float32)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    joined = np.concatenate(held).astype(np.float32)
    joined /= np.linalg.norm(joined, axis=1, keepdims=True)
    right = (nearest(units, joined, THREADS)[0] == parents).mean()
    return (
        f"{PEER:,} inputs, {PEER // ratio:,} clusters: inertia by cells / in one piece {inertia / whole.inertia:.3f}; "
        f"time in one piece / by cells {in_one / divided:.1f} ({in_one:.1f} s, {divided:.1f} s); "
        f"parents that are the nearest of all {right:.2%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[500_000, 2_000_000], help="inputs")
    parser.add_argument("--ratio", type=int, default=40, help="inputs per cluster")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2, help="resampling rounds; a recipe's default is 10")
    arguments = parser.parse_args()
    print(peer(arguments.dim, arguments.ratio, arguments.rounds), flush=True)
    for size in arguments.sizes:  # each in a new driver process, whose memory starts small
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as driver:
            done = driver.submit(by_cells, size, arguments.dim, arguments.ratio, arguments.rounds)
            print(done.result(), flush=True)


if __name__ == "__main__":
    main()
