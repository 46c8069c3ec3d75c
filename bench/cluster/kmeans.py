"""k-means and its kernel against faiss, scikit-learn and the machine's peak matrix product.

    python -m bench.cluster.kmeans [kernel] [flat] [hierarchy]          (default: all)

Peers run in the same process run, on the same cores and data. "Raw" is cifar_pca256 unchanged: whitened pixels without
clusters, for which most clusters of any k-means have one row. "Unit" is the directions of these rows, as embeddings are
clustered; centroids are plain means for all methods.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.kit import peers
from bench.kit.features import bench_points
from bench.kit.measure import REPEATS, line, machine
from curate.cluster.kmeans.assigned import closest_members
from curate.cluster.kmeans.lloyd import Settings, kmeans
from curate.cluster.tree.level import level_settings
from curate.cluster.tree.levels import fit_tree
from curate.core.group import MemoryGroup
from curate.kernels.nearest.backends import fast_bfloat16, has_cuda
from curate.kernels.nearest.search import Ambiguity, fastest, nearest
from curate.select.clusters import copies_of
from curate.select.sampling import leaf_quotas

Floats = NDArray[np.float32]
THREADS = os.cpu_count() or 1
GPU_BACKENDS = ("torch:cuda", "faiss:gpu")
CLUSTERS, ITERATIONS = 2000, 50
LEVELS, NEAREST, ROUNDS = [2000, 200, 20], [12, 5, 5], 10


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    value = work()
    return time.perf_counter() - began, value


def inertia(points: Floats, centroids: Floats) -> float:
    return float(nearest(points, centroids, THREADS)[1].sum(dtype=np.float64))


# --- kernel -----------------------------------------------------------------------------------------------------------


def products(rows: int, dim: int, clusters: int, name: str) -> list[tuple[float, Callable[[], Any]]]:
    """(FLOP, work) of a plain matrix product of the same shape, and of a large square one, as the backend computes."""
    import torch

    torch.set_num_threads(THREADS)
    precision = torch.float32 if name.startswith("faiss") else torch.bfloat16
    device, large = ("cuda", 8192) if name in GPU_BACKENDS else ("cpu", 4096)
    found: list[tuple[float, Callable[[], Any]]] = []
    for n, d, k in ((rows, dim, clusters), (large, large, large)):
        a, b = (torch.randn(shape, dtype=precision, device=device) for shape in ((n, d), (d, k)))
        out = torch.empty(n, k, dtype=a.dtype, device=device)
        found.append((2.0 * n * d * k, partial(_product, a, b, out)))
    return found


def _product(a: Any, b: Any, out: Any) -> None:
    import torch

    torch.mm(a, b, out=out)
    if out.is_cuda:
        torch.cuda.synchronize()


def usable() -> list[str]:
    import faiss

    with_gpu = ["torch:cuda", *(["faiss:gpu"] if hasattr(faiss, "StandardGpuResources") else [])]
    return ["faiss", *(["torch"] if fast_bfloat16() else []), *(with_gpu if has_cuda() else [])]


def kernel() -> None:
    print("nearest centroid: share of the machine's matrix-product peak, in the precision of the search")
    rng = np.random.default_rng(0)
    for dim, clusters in ((768, 4096), (768, 16384), (256, 2000), (256, 16384)):
        centroids = rng.standard_normal((clusters, dim), dtype=np.float32)
        chosen, answers = fastest(dim, clusters, THREADS), list[NDArray[np.int64]]()
        for name in usable():
            rows = 1 << (18 if name in GPU_BACKENDS else 14)
            some = np.random.default_rng(1)  # the same first rows for each
            points = centroids[some.integers(clusters, size=1 << 14)]
            points = points + some.standard_normal(points.shape, dtype=np.float32)
            points = np.tile(points, (rows >> 14, 1))
            bare = products(rows, dim, clusters, name)
            works = [*bare, (2.0 * rows * dim * clusters, partial(nearest, points, centroids, THREADS, name))]
            # in turn, so that other processes slow down all of them
            speeds = np.max([[flop / timed(work)[0] for flop, work in works] for _ in range(REPEATS)], axis=0)
            most, reached = speeds[:-1].max(), speeds[-1]
            ambiguity = Ambiguity()
            answers.append(nearest(points, centroids, THREADS, name, ambiguity)[0][: 1 << 14])
            assert np.array_equal(answers[-1], answers[0]), f"{name} and {usable()[0]} differ"
            note = f"{reached / 1e9:.0f} of {most / 1e9:.0f} GFLOP/s; compared in float64 "
            note += f"{ambiguity.compared / rows:.4f} pairs a row, {ambiguity.full} rows whole"
            line(
                f"{name}, d = {dim}, k = {clusters}",
                f"{reached / most:.0%} of peak",
                note + (", chosen" * (name == chosen)),
            )


# --- flat -------------------------------------------------------------------------------------------------------------


def ours(points: Floats, exchange: bool | None = None) -> Floats:
    group = MemoryGroup([{"vectors": points}], THREADS)
    return kmeans(group, Settings(CLUSTERS, 0, exchange=exchange)).centroids


def by_faiss(points: Floats, clusters: int, iterations: int = ITERATIONS, seed: int = 1234) -> Floats:
    import faiss

    faiss.omp_set_num_threads(THREADS)
    # without the minimum of rows per cluster, which only warns
    model = faiss.Kmeans(points.shape[1], clusters, niter=iterations, seed=seed, min_points_per_centroid=1)
    model.train(points)
    return model.centroids


def flat() -> None:
    raw = bench_points("cifar_pca256")
    if raw is None:
        return
    for name, points in (("raw", raw), ("unit", unit(raw))):
        print(f"flat k-means, cifar_pca256 {name}, k = {CLUSTERS}: seconds and inertia, ratios to faiss.Kmeans")
        nearest(points[:2048], points[:64])  # loads libraries
        took, centroids = timed(partial(by_faiss, points, CLUSTERS))
        least = inertia(points, centroids)
        line(f"faiss.Kmeans, {ITERATIONS} iterations", f"{took:.1f} s", f"inertia {least:,.0f}")
        for what, exchange in (("curate", None), ("curate, Lloyd's iterations alone", False)):
            mine, found = timed(partial(ours, points, exchange))
            report(what, mine, took, inertia(points, found), least)
        for what, work in sklearn_models(points):
            try:
                mine, found = timed(work)
            except RuntimeError as error:
                line(what, "not run", str(error))
                continue
            report(what, mine, took, inertia(points, found), least)


def report(what: str, seconds: float, of: float, found: float, least: float) -> None:
    line(what, f"{seconds:.1f} s", f"{of / seconds:.2f}x as fast; inertia {found:,.0f}, {found / least:.4f} of faiss's")


def sklearn_models(points: Floats) -> list[tuple[str, Callable[[], Floats]]]:
    def full() -> Floats:
        return (
            peers.sklearn().KMeans(CLUSTERS, n_init=1, max_iter=ITERATIONS, random_state=0).fit(points).cluster_centers_
        )

    def mini() -> Floats:
        model = peers.sklearn().MiniBatchKMeans(CLUSTERS, n_init=1, batch_size=4096, random_state=0)
        return model.fit(points).cluster_centers_

    return [(f"sklearn KMeans, {ITERATIONS} iterations at most", full), ("sklearn MiniBatchKMeans", mini)]


# --- hierarchy --------------------------------------------------------------------------------------------------------

Levels = tuple[list[Floats], list[NDArray[np.int64]]]


def published(points: Floats) -> Levels:
    """Fit the published schedule with faiss.Kmeans: every k-means from scratch, with 50 iterations."""
    inputs, centroids, parents = points, [], []
    for level, (clusters, r) in enumerate(zip(LEVELS, NEAREST, strict=True)):
        found = by_faiss(inputs, clusters)
        for number in range(ROUNDS):
            distances, ids = searched(inputs, found)
            kept = closest_members(ids, distances, r)
            if len(kept) < clusters:
                break
            found = by_faiss(inputs[kept], clusters, seed=number)
        if level:
            parents.append(searched(inputs, found)[1])
        centroids.append(found)
        inputs = found
    return centroids, parents


def searched(points: Floats, centroids: Floats) -> tuple[Floats, NDArray[np.int64]]:
    import faiss

    distances, ids = faiss.knn(points, np.ascontiguousarray(centroids), 1)
    return distances[:, 0], ids[:, 0]


def hierarchical(points: Floats) -> Levels:
    settings = level_settings(LEVELS, 0, ROUNDS, NEAREST)
    tree = fit_tree(MemoryGroup([{"vectors": points}], THREADS), settings)
    return [centroids for centroids in tree.centroids if centroids is not None], list(tree.parents)


def sampled(points: Floats, levels: Levels, seed: int = 0) -> Floats:
    """Balanced sample of a tenth of the points."""
    ids = nearest(points, levels[0][0], THREADS)[0]
    quotas = leaf_quotas(np.bincount(ids, minlength=LEVELS[0]), levels[1], len(points) // 10, 1, seed)
    rank = np.random.default_rng(seed).integers(0, 2**63, len(points)).astype(np.uint64)
    return points[copies_of(ids, quotas, rank) > 0]


def spacing(sample: Floats) -> float:
    """Mean distance of a row to its nearest neighbour; larger means a more diverse sample."""
    import faiss

    return float(np.sqrt(np.maximum(faiss.knn(sample, sample, 2)[0][:, 1], 0)).mean())


def hierarchy() -> None:
    raw = bench_points("cifar_pca256")
    if raw is None:
        return
    for name, points in (("raw", raw), ("unit", unit(raw))):
        print(f"k = {LEVELS}, r = {NEAREST}, {ROUNDS} rounds, cifar_pca256 {name}; spacing of a balanced tenth")
        at_random = spacing(points[np.random.default_rng(0).permutation(len(points))[: len(points) // 10]])
        took, theirs = timed(partial(published, points))
        spread = spacing(sampled(points, theirs)) / at_random
        line("faiss.Kmeans, the published schedule", f"{took:.1f} s", f"spacing {spread:.3f} of a random tenth's")
        mine, found = timed(partial(hierarchical, points))
        note = f"{took / mine:.2f}x as fast; spacing {spacing(sampled(points, found)) / at_random:.3f}"
        line("curate", f"{mine:.1f} s", note + ("; the published reference took 217 s" if name == "raw" else ""))


def unit(points: Floats) -> Floats:
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def main(names: Sequence[str] = ()) -> None:
    warnings.filterwarnings("ignore", module="sklearn")
    parts: dict[str, Callable[[], None]] = {"kernel": kernel, "flat": flat, "hierarchy": hierarchy}
    for name in names or parts:
        parts[name]()


if __name__ == "__main__":
    print(machine())
    main(sys.argv[1:])
