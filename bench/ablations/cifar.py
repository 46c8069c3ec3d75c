"""CIFAR-10 in disjoint parts: the teacher's 12,000 training images, and the others, which form the pools.

The test set is for students only. Pools are parquet files of encoded images, as `acquire.parquet` reads them.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from bench.kit.features import shared
from curate.core.errors import InputError
from curate.core.hashing import make_key, ranks

TAUGHT = 1200
"""Training images of the teacher, per class."""
RATIO = 100
"""Size of the largest class of a long tail over that of the smallest."""
COPIES = 0.25
"""Copies added to a pool, as a fraction of its images: one half the same bytes, one half re-encoded."""
_PARTS, _TAIL, _COPIES = 0xAB1, 0xAB2, 0xAB3


@dataclass(frozen=True)
class Images:
    images: list[bytes]
    names: list[str]
    labels: NDArray[np.int64]
    """(n,), indices into `classes`."""
    classes: list[str]

    def __len__(self) -> int:
        return len(self.images)

    def take(self, rows: NDArray[np.int64]) -> Images:
        return Images([self.images[i] for i in rows], [self.names[i] for i in rows], self.labels[rows], self.classes)

    def keys(self) -> list[str]:
        return [make_key("cifar10", name) for name in self.names]

    def pixels(self) -> NDArray[np.uint8]:
        """(n, 32, 32, 3)."""
        return np.stack([np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in self.images])


def cifar(part: str) -> Images:
    """part: train (50,000) or test (10,000). Raises InputError if the files are missing."""
    path = shared() / "data" / f"cifar10-{part}.parquet"
    if not path.is_file():
        raise InputError(f"{path} is missing; set CURATE_SHARED to the folder that contains data/")
    table = pq.read_table(path, columns=["image", "label", "name"])
    classes, labels = np.unique(np.array(table.column("label").to_pylist()), return_inverse=True)
    images, names = table.column("image").to_pylist(), table.column("name").to_pylist()
    return Images(images, names, labels.astype(np.int64), classes.tolist())


def parts() -> tuple[Images, Images]:
    """The teacher's training images (1,200 per class) and the others; the same two parts for every run."""
    train = cifar("train")
    place = _place_in_class(train, 0, _PARTS)
    return train.take(np.flatnonzero(place < TAUGHT)), train.take(np.flatnonzero(place >= TAUGHT))


def balanced(images: Images, of_each: int) -> Images:
    return images.take(np.flatnonzero(_place_in_class(images, 1, _PARTS) < of_each))


def _place_in_class(images: Images, seed: int, salt: int) -> NDArray[np.int64]:
    """Ranks (n,) 0, 1, 2 … within each class, by hash(seed, key)."""
    rank = ranks(seed, images.keys(), salt)
    order = np.lexsort((rank, images.labels))
    place = np.empty(len(order), dtype=np.int64)
    sizes = np.bincount(images.labels, minlength=len(images.classes))
    place[order] = np.concatenate([np.arange(size) for size in sizes])
    return place


def tail_order(classes: int, seed: int) -> NDArray[np.int64]:
    """Classes (classes,), the most frequent first, drawn by the seed."""
    keys = [make_key("cifar10", str(number)) for number in range(classes)]
    return np.argsort(ranks(seed, keys, _TAIL), kind="stable")


def long_tail(images: Images, seed: int) -> Images:
    """Class sizes fall geometrically by 100:1 (Cui et al. 2019, 5.1), then copies, as in a web pool."""
    most = int(np.bincount(images.labels).min())
    steps = np.arange(len(images.classes)) / (len(images.classes) - 1)
    target = np.empty(len(steps), dtype=np.int64)
    target[tail_order(len(steps), seed)] = np.rint(most * RATIO**-steps).astype(np.int64)
    tail = images.take(np.flatnonzero(_place_in_class(images, seed, _TAIL) < target[images.labels]))
    copied = np.argsort(ranks(seed, tail.keys(), _COPIES), kind="stable")[: int(COPIES * len(tail))]
    again = [tail.images[row] if turn % 2 else _reencoded(tail.images[row]) for turn, row in enumerate(copied)]
    return Images(
        tail.images + again,
        tail.names + [f"copy/{tail.names[row]}" for row in copied],
        np.concatenate([tail.labels, tail.labels[copied]]),
        tail.classes,
    )


def _reencoded(data: bytes) -> bytes:
    stream = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("RGB").save(stream, "JPEG", quality=80)
    return stream.getvalue()


def write_parquet(images: Images, path: Path) -> None:
    """Columns image, name (the source id) and label."""
    path.parent.mkdir(parents=True, exist_ok=True)
    labels: list[Any] = [images.classes[label] for label in images.labels]
    table = pa.table({"image": images.images, "name": images.names, "label": labels})
    partial = path.with_suffix(".tmp")
    pq.write_table(table, partial)
    partial.rename(path)
