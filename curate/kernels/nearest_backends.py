"""Searches for the nearest centroid, each with a bound on its own error, and the choice among them by measurement.

faiss        float32 products (BLAS) by blocks, fused with the search of the best few
kd-tree      for few dimensions, in float64
torch        products of bfloat16, where the processor multiplies it faster than float32 (AMX, AVX512-BF16)
torch:cuda   the same on a GPU
faiss:gpu    float32 on a GPU, where faiss is built for it

A backend is prepared with centroids once per call and then searches blocks of points. It returns the best id of each
row and, for the rows where rounding leaves more than one possible, all candidates: see `Found`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import CurateError

FEW = 4
"""Neighbours that the faiss search lists; a row with more candidates than that is searched again in float64."""
LISTED = 64
"""Candidates per row up to which a torch search lists them."""
COLUMNS = 1 << 16
"""Centroids whose scores a torch search holds at once, for each row of a block: what bounds its memory."""
WORTH_MEASURING = 1 << 27
"""Multiplications of a call below which faiss is taken unmeasured: it has no start."""
KD_DIMENSIONS = 12
"""Dimensions up to which a k-d tree is tried; beyond, it looks at everything."""
MEASURED_ROWS = 2048
"""Rows per thread that a measurement searches."""
GPU_DEVICE = "/dev/nvidiactl"
NAMES = ("faiss", "kd-tree", "torch", "torch:cuda", "faiss:gpu")


@dataclass
class Found:
    """Of a block of n rows: `best` (n,) of the search; pairs (row, id) of all candidates of the rows that have several;
    rows `unsure`, whose candidates were too many to list."""

    best: NDArray[np.int64]
    row: NDArray[np.int64]
    id: NDArray[np.int64]
    unsure: NDArray[np.int64]


Backend: TypeAlias = Callable[[NDArray[np.float32]], Found]


def chosen(name: str | None, rows: int, centroids: NDArray[np.float32], threads: int) -> str:
    """That name, or the fastest backend here for centroids (K, d). Raises CurateError for a name that is none."""
    if name is None:
        small = rows * centroids.size < WORTH_MEASURING
        return "faiss" if small else fastest(centroids.shape[1], _rounded(len(centroids)), threads)
    if name not in NAMES:
        raise CurateError(f"backend: {name!r} is none of {', '.join(NAMES)}")
    return name


def prepared(name: str, centroids: NDArray[np.float32]) -> Backend:
    """The backend of that name, over centroids (K, d)."""
    if name == "kd-tree":
        return kd_search(centroids)
    library, _, device = name.partition(":")
    return torch_search(centroids, device or "cpu") if library == "torch" else faiss_search(centroids, bool(device))


def side_by_side(name: str, threads: int) -> int:
    """Blocks that are searched at a time: one where the backend itself spreads a block over the threads."""
    return threads if name in ("faiss", "kd-tree") else 1


@contextlib.contextmanager
def threads_of(name: str, threads: int) -> Iterator[None]:
    """torch keeps its number of threads for the whole process: it is put back."""
    if name != "torch":
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def faiss_search(centroids: NDArray[np.float32], gpu: bool = False) -> Backend:
    import faiss

    knn = partial(faiss.knn_gpu, faiss.StandardGpuResources()) if gpu else faiss.knn

    few = min(FEW, len(centroids))
    size = np.sqrt(np.einsum("kd,kd->k", centroids, centroids, dtype=np.float64))
    largest = float(size.max())
    # |x|^2 - 2xc + |c|^2 in float32: three sums of d terms and their sum (Higham 2002, 3.5), for each of two distances
    unit = 2 * (centroids.shape[1] + 4) * 2.0**-24

    def search(block: NDArray[np.float32]) -> Found:
        distances, ids = knn(block, centroids, few)
        length = np.sqrt(np.einsum("nd,nd->n", block, block, dtype=np.float64))
        return _listed(ids, distances, (unit * (length + largest) ** 2)[:, None], few < len(centroids))

    return search


def kd_search(centroids: NDArray[np.float32]) -> Backend:
    from scipy.spatial import KDTree

    tree, few = KDTree(centroids), min(FEW, len(centroids))

    def search(block: NDArray[np.float32]) -> Found:
        distances, ids = tree.query(block, k=np.arange(1, few + 1))
        # distances come as roots of float64 sums of d squares
        return _listed(ids, distances, distances[:, :1] * (centroids.shape[1] + 4) * 2.0**-52, few < len(centroids))

    return search


def _listed(ids: NDArray[np.int64], distances: NDArray[np.floating], width: NDArray[np.floating], more: bool) -> Found:
    """Of a search that lists the few nearest (n, few): those within `width` (n, 1) of the first are open."""
    open_ = distances <= distances[:, :1] + width
    count = open_.sum(axis=1)
    unsure = np.flatnonzero((count == ids.shape[1]) & more)
    open_[count == 1] = False
    open_[unsure] = False
    row, place = np.nonzero(open_)
    return Found(np.ascontiguousarray(ids[:, 0]).astype(np.int64), row, ids[row, place].astype(np.int64), unsure)


def torch_search(centroids: NDArray[np.float32], device: str) -> Backend:
    """Products of bfloat16 rows. The rounding of both sides is known exactly, so the error is bounded by
    |dx| |c| + |x~| |dc| (Cauchy-Schwarz), by half a unit in the last place of the product and of the score, and by
    what a processor that has no denormal numbers leaves out. Scores are held for COLUMNS centroids at a time."""
    import torch

    c = torch.from_numpy(centroids).to(device)
    low = c.bfloat16()
    measured = [(_half_square(some), some.double().norm(dim=1), _lost(some, of)) for some, of in _stretches(c, low)]
    half, size, lost = (torch.cat(part) for part in zip(*measured, strict=True))
    half32, transposed = half.float(), low.T.contiguous()
    largest, most_lost, most_half = float(size.max()), float(lost.max()), float(half.max())
    del c, low
    clusters, dim = centroids.shape
    # a GPU rounds sums of parts to bfloat16 on the way, unless it is asked for float32
    wide = {"out_dtype": torch.float32} if device == "cuda" else {}

    def product(a: Any, b: Any) -> Any:
        return torch.mm(a, b, **wide).float()

    accumulated, vanished = (dim + 4) * 2.0**-24 + 2.0**-8, (dim + 1) * 2.0**-125

    def search(block: NDArray[np.float32]) -> Found:
        x = torch.from_numpy(block).to(device)
        rounded = x.bfloat16()
        length, gone = x.double().norm(dim=1), _lost(x, rounded)
        # the width of a row: for all centroids the largest, so that one comparison per score is enough
        width = gone * largest + (length + gone) * most_lost + accumulated * (length * largest) + 2.0**-22 * most_half
        slack = 2 * (width + vanished).float() * (1 + 2**-20)
        top, best = torch.full_like(slack, -torch.inf), torch.zeros(len(x), dtype=torch.int64, device=device)
        unsure, pairs = torch.zeros(len(x), dtype=torch.bool, device=device), []
        for start in range(0, clusters, COLUMNS):
            score = product(rounded, transposed[:, start : start + COLUMNS]).sub_(half32[start : start + COLUMNS])
            high = score.amax(dim=1)
            best = torch.where(high > top, score.argmax(dim=1) + start, best)
            top = torch.maximum(high, top)
            open_ = score >= (top - slack)[:, None]
            count = open_.sum(dim=1)
            unsure |= count > LISTED
            open_ &= ((count > (clusters <= COLUMNS)) & (count <= LISTED))[:, None]
            row, id = open_.nonzero(as_tuple=True)
            pairs.append((row, id + start, score[row, id]))
        row, id, value = (torch.cat(part) for part in zip(*pairs, strict=True))
        open_ = (value >= (top - slack)[row]) & ~unsure[row]
        several = torch.bincount(row[open_], minlength=len(x)) > 1
        open_ &= several[row]
        return Found(*(part.cpu().numpy() for part in (best, row[open_], id[open_], unsure.nonzero()[:, 0])))

    return search


def _stretches(c: Any, low: Any) -> Iterator[tuple[Any, Any]]:
    """Tensors of as many rows, COLUMNS rows at a time: what is measured in float64 is not all widened at once."""
    return zip(c.split(COLUMNS), low.split(COLUMNS), strict=True)


def _half_square(x: Any) -> Any:
    return x.double().square().sum(1) / 2


def _lost(x: Any, rounded: Any) -> Any:
    """Length (n,) in float64 of what rounding has taken from each row."""
    return (x.double() - rounded.double()).norm(dim=1)


@lru_cache(maxsize=64)
def fastest(dim: int, clusters: int, threads: int) -> str:
    """Name of the backend that searches made-up rows in the least time; measured once per shape and process."""
    import faiss

    names = [
        "faiss",
        *(["kd-tree"] if dim <= KD_DIMENSIONS else []),
        *(["torch"] if fast_bfloat16() else []),
        *(["torch:cuda"] if has_cuda() else []),
        *(["faiss:gpu"] if has_cuda() and hasattr(faiss, "StandardGpuResources") else []),
    ]
    if len(names) == 1:
        return names[0]
    rng = np.random.default_rng(0)
    centroids = rng.standard_normal((clusters, dim), dtype=np.float32)
    rows = centroids[rng.integers(clusters, size=MEASURED_ROWS * threads)]
    rows += 0.1 * rng.standard_normal(rows.shape, dtype=np.float32)
    return min(names, key=lambda name: _seconds(name, centroids, rows, threads))


def _seconds(name: str, centroids: NDArray[np.float32], rows: NDArray[np.float32], threads: int) -> float:
    """Shorter of two searches, as `nearest` does them."""
    from curate.kernels.nearest import nearest

    took = []
    for _ in range(3):
        began = time.perf_counter()
        nearest(rows, centroids, threads, name)
        took.append(time.perf_counter() - began)
    return min(took[1:])


def _rounded(clusters: int) -> int:
    """A few sizes instead of many, so that few are measured."""
    return min(1 << (clusters - 1).bit_length(), 1 << 14)


def cpu_flags() -> frozenset[str]:
    """What the processor says it can do; empty where the system does not tell."""
    try:
        rows = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((row for row in rows if row.startswith(("flags", "Features"))), "").split())


def fast_bfloat16() -> bool:
    return bool(cpu_flags() & {"amx_bf16", "avx512_bf16", "bf16"})


def has_cuda() -> bool:
    if not Path(GPU_DEVICE).exists():  # importing torch takes seconds
        return False
    import torch

    return bool(torch.cuda.is_available())
