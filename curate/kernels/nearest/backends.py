"""Searches for the nearest centroid, each with a bound on its own rounding error.

faiss        float32 products (BLAS) by blocks, fused with the search of the best few
torch        products of bfloat16, for processors that multiply it faster than float32 (AMX, AVX512-BF16)
torch:cuda   the same on a GPU
faiss:gpu    float32 on a GPU, if faiss is built for it

A backend is prepared with the centroids once per call and then searches blocks of points. It returns the best id of
each row and all candidates of the rows where rounding leaves several: see `Candidates`.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

FEW = 4
"""Neighbours listed by faiss; a row with more candidates is searched again in float64."""
LISTED = 64
"""Most candidates of a row that a torch search lists."""
COLUMNS = 1 << 16
"""Centroids whose scores a torch search holds at once for a block; bounds its memory."""
GPU_DEVICE = "/dev/nvidiactl"
NAMES = ("faiss", "torch", "torch:cuda", "faiss:gpu")


@dataclass
class Candidates:
    """Result of a search in a block of n rows: the `best` id (n,) of each; all pairs (row, id) of the rows that have
    several candidates; the rows `unlisted`, which have too many to list."""

    best: NDArray[np.int64]
    row: NDArray[np.int64]
    id: NDArray[np.int64]
    unlisted: NDArray[np.int64]


Backend: TypeAlias = Callable[[NDArray[np.float32]], Candidates]


def prepare(name: str, centroids: NDArray[np.float32]) -> Backend:
    """The named backend, ready to search centroids (K, d)."""
    library, _, device = name.partition(":")
    return torch_search(centroids, device or "cpu") if library == "torch" else faiss_search(centroids, bool(device))


def parallel_blocks(name: str, threads: int) -> int:
    """Blocks searched at a time: one if the backend itself spreads a block over the threads."""
    return threads if name == "faiss" else 1


@contextlib.contextmanager
def torch_threads(name: str, threads: int) -> Iterator[None]:
    """Sets torch's number of threads, which is global to the process, and restores it afterwards."""
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

    def search(block: NDArray[np.float32]) -> Candidates:
        distances, ids = map(np.asarray, knn(block, centroids, few))
        length = np.sqrt(np.einsum("nd,nd->n", block, block, dtype=np.float64))
        return _within(ids, distances, (unit * (length + largest) ** 2)[:, None], few < len(centroids))

    return search


def _within(
    ids: NDArray[np.int64], distances: NDArray[np.floating], width: NDArray[np.floating], more: bool
) -> Candidates:
    """Candidates out of the few nearest (n, few): those within `width` (n, 1) of the first."""
    near = distances <= distances[:, :1] + width
    count = near.sum(axis=1)
    unlisted = np.flatnonzero((count == ids.shape[1]) & more)
    near[count == 1] = False
    near[unlisted] = False
    row, place = np.nonzero(near)
    return Candidates(np.ascontiguousarray(ids[:, 0]).astype(np.int64), row, ids[row, place].astype(np.int64), unlisted)


def torch_search(centroids: NDArray[np.float32], device: str) -> Backend:
    """Products of bfloat16 rows. The rounding of both sides is known exactly, so the error is bounded by
    |dx| |c| + |x~| |dc| (Cauchy-Schwarz), by half a unit in the last place of the product and of the score, and by
    denormal numbers, which some processors flush to zero. Scores are held for COLUMNS centroids at a time."""
    import torch

    # centroids are often mapped from a file, and nothing here writes to them
    warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
    c = torch.from_numpy(centroids).to(device)
    low = c.bfloat16()
    measured = [(_half_square(some), some.double().norm(dim=1), _lost(some, of)) for some, of in _slices(c, low)]
    half, size, lost = (torch.cat(part) for part in zip(*measured, strict=True))
    half32, transposed = half.float(), low.T.contiguous()
    largest, most_lost, most_half = float(size.max()), float(lost.max()), float(half.max())
    del c, low
    clusters, dim = centroids.shape

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if device == "cuda":  # without out_dtype, a GPU rounds partial sums to bfloat16
            return torch.mm(a, b, out_dtype=torch.float32)
        return torch.mm(a, b).float()

    accumulated, vanished = (dim + 4) * 2.0**-24 + 2.0**-8, (dim + 1) * 2.0**-125

    def search(block: NDArray[np.float32]) -> Candidates:
        x = torch.from_numpy(block).to(device)
        rounded = x.bfloat16()
        length, gone = x.double().norm(dim=1), _lost(x, rounded)
        # the largest width over all centroids, so that one comparison per score is enough
        width = gone * largest + (length + gone) * most_lost + accumulated * (length * largest) + 2.0**-22 * most_half
        slack = 2 * (width + vanished).float() * (1 + 2**-20)
        top, best = torch.full_like(slack, -torch.inf), torch.zeros(len(x), dtype=torch.int64, device=device)
        unlisted, pairs = torch.zeros(len(x), dtype=torch.bool, device=device), []
        for start in range(0, clusters, COLUMNS):
            score = product(rounded, transposed[:, start : start + COLUMNS]).sub_(half32[start : start + COLUMNS])
            high = score.amax(dim=1)
            best = torch.where(high > top, score.argmax(dim=1) + start, best)
            top = torch.maximum(high, top)
            near = score >= (top - slack)[:, None]
            count = near.sum(dim=1)
            unlisted |= count > LISTED
            near &= ((count > (clusters <= COLUMNS)) & (count <= LISTED))[:, None]
            row, id = near.nonzero(as_tuple=True)
            pairs.append((row, id + start, score[row, id]))
        row, id, value = (torch.cat(part) for part in zip(*pairs, strict=True))
        near = (value >= (top - slack)[row]) & ~unlisted[row]
        several = torch.bincount(row[near], minlength=len(x)) > 1
        near &= several[row]
        return Candidates(*(part.cpu().numpy() for part in (best, row[near], id[near], unlisted.nonzero()[:, 0])))

    return search


def _slices(c: Tensor, low: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of slices of COLUMNS rows, so that only a slice is widened to float64 at a time."""
    for start in range(0, len(c), COLUMNS):
        yield c[start : start + COLUMNS], low[start : start + COLUMNS]


def _half_square(x: Tensor) -> Tensor:
    return x.double().square().sum(1) / 2


def _lost(x: Tensor, rounded: Tensor) -> Tensor:
    """Length (n,) in float64 of the rounding error of each row."""
    return (x.double() - rounded.double()).norm(dim=1)


def cpu_flags() -> frozenset[str]:
    """Instruction sets of the processor; empty if the system has no /proc/cpuinfo."""
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
