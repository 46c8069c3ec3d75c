"""Pools of real images with known labels and a long tail, as vectors of two encoders: balance can be counted on them.

The labels of a pool are used for counting alone. Encoders that need no weights hardly know the classes, so that what
is balanced over them is balanced in form and colour. CIFAR-10 has a third one, trained on labelled images outside of
the pool: it stands for a learned encoder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate import encoders
from curate.codec.images import decode
from curate.core.contracts import Sample
from curate.core.errors import Reject

THREADS = 2
CIFAR_CLASS, CIFAR_RATIO = 5000, 100
TAUGHT = "descriptor, taught"
PIXELS_SIDE, PIXELS_AXES = 16, 64


@dataclass(frozen=True)
class LabelledPool:
    name: str
    labels: NDArray[np.int64]
    """(n,), 0 .. classes - 1, largest class first."""
    vectors: dict[str, NDArray[np.float32]]
    """Encoder -> unit vectors (n, d)."""
    levels: tuple[int, ...] = ()
    """Clusters of a tree for it, finest first."""


def cifar_tail(parquet: Path, seed: int = 0) -> LabelledPool:
    """CIFAR-10 train with class sizes falling geometrically from 5,000 to 50; `seed` says which class is rare."""
    rng = np.random.default_rng(seed)
    table = pq.read_table(parquet, columns=["image", "label"])
    names, label = np.unique(np.array(table.column("label").to_pylist()), return_inverse=True)
    sizes = (CIFAR_CLASS * CIFAR_RATIO ** (-np.arange(len(names)) / (len(names) - 1))).round().astype(int)
    chosen = [
        rng.choice(np.flatnonzero(label == number), size, replace=False)
        for number, size in zip(rng.permutation(len(names)), sizes, strict=True)
    ]
    rows = rng.permutation(np.concatenate(chosen))
    images = table.column("image").take(rows).to_pylist()
    pool = _pool(f"CIFAR-10, {CIFAR_RATIO} : 1", images, label[rows], (1200, 120, 12))
    others = parquet.with_name(parquet.name.replace("train", "test"))
    if others.exists():
        table = pq.read_table(others, columns=["image", "label"])
        taught = np.unique(np.array(table.column("label").to_pylist()), return_inverse=True)[1]
        there = _pool("CIFAR-10 test", table.column("image").to_pylist(), taught)
        mean, axes = discriminant(there.vectors["descriptor"], there.labels)
        pool.vectors[TAUGHT] = _unit((pool.vectors["descriptor"] - mean) @ axes)
    return pool


def clip_arts(folder: Path) -> LabelledPool:
    """The quickstart's images without byte-identical copies, labelled by their top-level folder."""
    unique: dict[str, tuple[Path, bytes]] = {}
    for path in sorted(folder.rglob("*.png")):
        data = path.read_bytes()
        unique.setdefault(hashlib.sha256(data).hexdigest(), (path, data))
    names = np.array([path.relative_to(folder).parts[0] for path, _ in unique.values()])
    labels = np.unique(names, return_inverse=True)[1]
    return _pool("OpenClipart", [data for _, data in unique.values()], labels, (400, 60, 12))


def _pool(name: str, images: Iterable[bytes], labels: NDArray[Any], levels: tuple[int, ...] = ()) -> LabelledPool:
    """Images that cannot be decoded (over 100 megapixels) are left out."""
    encoder = encoders.load("descriptor")

    def prepared(data: bytes) -> NDArray[np.uint8] | None:
        try:
            return encoder.prepare(Sample(data, decode).image())
        except Reject:
            return None

    with ThreadPoolExecutor(THREADS) as pool:
        squares = list(pool.map(prepared, images))
    there = np.array([square is not None for square in squares])
    squares = [square for square in squares if square is not None]
    by_size = np.argsort(-np.bincount(labels[there]), kind="stable")
    vectors = {
        "descriptor": _unit(encoder.encode(squares, patches=False).summary),
        "pixels": _unit(principal(np.stack([_small(square) for square in squares]), PIXELS_AXES)),
    }
    return LabelledPool(name, np.argsort(by_size)[labels[there]], vectors, levels)


def _small(square: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(64, 64, 3) -> (16 * 16 * 3,): means of boxes, 0 .. 1."""
    box = len(square) // PIXELS_SIDE
    boxes = square.reshape(PIXELS_SIDE, box, PIXELS_SIDE, box, 3).mean((1, 3), dtype=np.float32)
    return boxes.ravel() / np.float32(255)


def principal(rows: NDArray[np.float32], axes: int) -> NDArray[np.float32]:
    """rows (n, d) without their mean, on the largest principal axes (n, axes); not whitened."""
    centred = rows - rows.mean(0)
    _, basis = np.linalg.eigh(centred.T @ centred)
    return centred @ basis[:, -axes:]


def discriminant(
    rows: NDArray[np.float32], labels: NDArray[np.int64], ridge: float = 0.1
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean (d,) and axes (d, classes - 1) of Fisher's linear discriminant of rows (n, d): the spread within classes is
    1 along each, that between classes as large as it can be. `ridge` is a share of the mean variance."""
    counts = np.bincount(labels)
    means = np.stack([rows[labels == number].mean(0) for number in range(len(counts))])
    within = (rows - means[labels]).T @ (rows - means[labels]) / len(rows)
    within += ridge * np.trace(within) / len(within) * np.eye(len(within), dtype=np.float32)
    root = np.linalg.inv(np.linalg.cholesky(within)).T
    mean = counts @ means / len(rows)
    _, _, basis = np.linalg.svd((means - mean) * np.sqrt(counts)[:, None] @ root, full_matrices=False)
    return mean.astype(np.float32), (root @ basis[: len(counts) - 1].T).astype(np.float32)


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(lengths, np.float32(1e-9))
