"""Divide against brute force: inertia, recall and time, and how times grow with leaves and points.

python -m bench.cluster.divide
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np

from bench.kit.features import bench_points, kl_to_uniform, tail, tiled
from bench.kit.measure import line
from curate.cluster.divide.cells import coarse_cells
from curate.cluster.divide.level import Divided, State, _run_pilot, default_cells, divide
from curate.cluster.divide.probe import LeafIndex, nearest_leaf
from curate.cluster.kmeans.lloyd import Settings, kmeans
from curate.cluster.tree.level import LevelSettings, fit_level
from curate.core.group import MemoryGroup, cut
from curate.kernels.nearest.search import nearest

T = TypeVar("T")

THREADS = 2
PROBES = (1, 2, 4, 8, 16, 32)
QUERIES = 20_000
"""Number of rows to assign in comparisons: the first rows of shuffled data."""
ITERATIONS = 5


def group_of(points: np.ndarray) -> MemoryGroup:
    return MemoryGroup(cut({"vectors": points}), THREADS)


def plan(leaves: int, rounds: int = 0) -> LevelSettings:
    """Settings with the same number of Lloyd's passes in all fits, so that times are comparable."""
    return LevelSettings(Settings(leaves, 0, ITERATIONS, tolerance=0, exchange=False), rounds)


def leaves_of(found: Divided) -> list[np.ndarray]:
    return [part["vectors"] for part in found.group.stored("leaves").parts]


def cells_of(found: Divided) -> LeafIndex:
    leaves = leaves_of(found)
    return LeafIndex(found.centroids, found.offsets, lambda cell: leaves[cell])


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Run `work` once; return its result and its wall time in seconds."""
    began = time.perf_counter()
    value = work()
    return value, time.perf_counter() - began


def against_brute_force(name: str, points: np.ndarray, leaves: int, flat: bool) -> None:
    """Compare both fits of the same rows, and both assignments to the same leaves."""
    rows, dim = points.shape
    found, seconds = timed(lambda: divide(group_of(points), plan(leaves)))
    sizes = np.array(found.group.rows)
    print(
        f"\n{name}, {rows:,} x {dim}, k = {leaves:,}: {len(sizes)} cells of {sizes.min():,} to {sizes.max():,} rows, "
        f"{np.diff(found.offsets).min()} to {np.diff(found.offsets).max()} leaves"
    )
    queries = points[:QUERIES]
    joined = np.concatenate(leaves_of(found))
    (best, squared), brute = timed(lambda: nearest(queries, joined, THREADS))
    total = squared.sum(dtype=np.float64)
    if flat:
        whole, flat_seconds = timed(lambda: fit_level(group_of(points), plan(leaves)))
        reference = nearest(queries, whole.centroids, THREADS)[1].sum(dtype=np.float64)
        line("  fit: time of brute force / divide", f"{flat_seconds / seconds:.1f}", f"{seconds:.1f} s")
        line("  inertia of divide / brute force, all leaves searched", f"{total / reference:.4f}")
    else:
        line("  fit by divide", f"{seconds:.1f} s")
    for probe in PROBES:
        if probe > len(sizes) / 2:
            break
        (ids, near), took = timed(partial(nearest_leaf, queries, cells_of(found), probe, THREADS))
        line(
            f"  probe {probe}: same leaf; inertia over these leaves; time",
            f"{(ids == best).mean():.1%}",
            f"{near.sum(dtype=np.float64) / total:.4f}; brute force / probe {brute / took:.1f}",
        )
    ivf(queries, found, joined)


def ivf(queries: np.ndarray, found: Divided, joined: np.ndarray, probe: int = 8) -> None:
    """Compare with faiss's inverted lists over the same cells, all leaves in memory; results agree up to float32."""
    import faiss

    faiss.omp_set_num_threads(THREADS)
    quantizer = faiss.IndexFlatL2(queries.shape[1])
    quantizer.add(found.centroids)
    index = faiss.IndexIVFFlat(quantizer, queries.shape[1], len(found.centroids))
    cell = np.repeat(np.arange(len(found.centroids)), np.diff(found.offsets))
    index.is_trained = True
    index.add_core(len(joined), faiss.swig_ptr(joined), faiss.swig_ptr(np.arange(len(joined))), faiss.swig_ptr(cell))
    index.nprobe = probe
    _, took = timed(lambda: index.search(queries, 1))
    _, ours = timed(lambda: nearest_leaf(queries, cells_of(found), probe, THREADS))
    line(f"  probe {probe}: time of faiss IVFFlat / ours", f"{took / ours:.2f}")


def shares(name: str, points: np.ndarray, leaves: int, rounds: int, flat: bool = True) -> None:
    """Compare leaves per cell in proportion to the pilot, to rows and to inertia."""
    settings = plan(leaves, rounds)
    r = max(1, (len(points) + leaves) // (2 * leaves))
    state = _run_pilot(group_of(points), replace(settings, r=r), default_cells(leaves), "bench")
    ids, squared = nearest(points, state.centroids, THREADS)
    cells = len(state.centroids)
    ways = {
        "pilot": state.weights,
        "rows": np.bincount(ids, minlength=cells).astype(float),
        "inertia": np.bincount(ids, squared, minlength=cells),
    }
    whole = fit_level(group_of(points), settings)
    print(f"\n{name}, k = {leaves:,}, {rounds} rounds of resampling: leaves of divide, by shares")
    dense = points.shape[1] == 2
    note = f"KL to uniform {kl_to_uniform(whole.centroids):.3f}" if dense else ""
    line("  in one piece: inertia ratio", "1", note)
    for way, weights in ways.items():
        found = divide(group_of(points), settings, begin=State(state.centroids, weights=weights))
        joined = np.concatenate(leaves_of(found))
        inertia = nearest(points, joined, THREADS)[1].sum(dtype=np.float64)
        note = f"KL to uniform {kl_to_uniform(joined):.3f}" if dense else ""
        line(f"  {way}: inertia ratio", f"{inertia / whole.inertia:.3f}", note)


def balance(points: np.ndarray, cells: int = 64) -> None:
    print(f"\ncoarse cells, {len(points):,} x {points.shape[1]}, {cells} cells: smallest and largest share of the rows")
    settings = Settings(cells, 0, 10, exchange=False)
    plain = kmeans(group_of(points), settings).centroids
    for name, centroids in (("k-means++", plain), ("ours", coarse_cells(group_of(points), cells, settings))):
        ids, squared = nearest(points, centroids, THREADS)
        sizes = np.bincount(ids, minlength=cells) / len(points)
        line(f"  {name}", f"{sizes.min():.3%}, {sizes.max():.1%}", f"inertia {squared.sum(dtype=np.float64):.4g}")


def growth(points: np.ndarray) -> None:
    """Measure fit and assignment for growing numbers of leaves and of rows; fit exponents to the times."""
    rows = len(points)
    print(f"\ngrowth, {rows:,} x {points.shape[1]}, {ITERATIONS} iterations, probe 8; in one piece: one pass, scaled")
    counts = [1 << power for power in (10, 12, 14, 16)]
    figures = [times_of(points, leaves) for leaves in counts]
    for leaves, (fit, assign, whole) in zip(counts, figures, strict=True):
        line(
            f"  k = {leaves:,}: fit, assign", f"{fit:.1f} s, {assign:.1f} s", f"one pass over all leaves {whole:.1f} s"
        )
    exponents = ", ".join(f"{slope(counts, list(column)):.2f}" for column in zip(*figures, strict=True))
    line("  time ~ k ** e: fit, assign, one pass in one piece", exponents)
    numbers = [rows // 4, rows // 2, rows]
    times = [timed(partial(divide, group_of(points[:n]), plan(4096)))[1] for n in numbers]
    listed = ", ".join(f"{seconds:.1f} s" for seconds in times)
    line("  time ~ n ** e: fit at k = 4,096", f"{slope(numbers, times):.2f}", f"{listed} for {numbers} rows")


def times_of(points: np.ndarray, leaves: int) -> tuple[float, float, float]:
    """Seconds of the fit, of the assignment of all rows, and of one pass over all leaves (extrapolated)."""
    found, fit = timed(lambda: divide(group_of(points), plan(leaves)))
    _, assign = timed(lambda: nearest_leaf(points, cells_of(found), 8, THREADS))
    some, joined = points[: (1 << 24) // leaves], np.concatenate(leaves_of(found))
    _, whole = timed(lambda: nearest(some, joined, THREADS))
    return fit, assign, whole * len(points) / len(some)


def slope(x: list[int], y: list[float]) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def main() -> None:
    nearest(np.ones((2, 2), np.float32), np.ones((2, 2), np.float32))  # loads faiss
    cifar, disc = bench_points("cifar_pca256"), bench_points("disc")
    groups = tail(100_000)
    if cifar is not None:
        balance(cifar)
        against_brute_force("cifar_pca256", cifar, 1024, flat=True)
        against_brute_force("cifar_pca256", cifar, 4096, flat=True)
        against_brute_force("cifar_pca256 x 2 with noise", tiled(cifar, 2), 16_384, flat=False)
    against_brute_force("groups of a long tail", groups, 1024, flat=True)
    against_brute_force("groups of a long tail", groups, 4096, flat=True)
    against_brute_force("groups of a long tail", groups, 16_384, flat=False)
    if disc is not None:
        shares("disc", disc[:50_000], 1000, 0)
        shares("disc", disc[:50_000], 1000, 10)
    shares("groups of a long tail", groups[:50_000], 1000, 0)
    growth(tail(400_000))


if __name__ == "__main__":
    main()
