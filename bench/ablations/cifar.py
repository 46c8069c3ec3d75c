"""CIFAR-10 in disjoint parts: the teacher's 12,000 training pictures, and the rest, of which pools are made.

The test set judges students alone. Pools are parquet files of encoded pictures, as `acquire.parquet` reads them.
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
"""Pictures of each class that the teacher learns from."""
RATIO = 100
"""The largest class of a long tail over the smallest."""
COPIES = 0.25
"""Copies that a pool has besides, as a share of its pictures: bytes as they are, or encoded anew, in equal parts."""
_PARTS, _TAIL, _COPIES = 0xAB1, 0xAB2, 0xAB3


@dataclass(frozen=True)
class Pictures:
    images: list[bytes]
    names: list[str]
    labels: NDArray[np.int64]
    """(n,), places in `classes`."""
    classes: list[str]

    def __len__(self) -> int:
        return len(self.images)

    def take(self, rows: NDArray[np.int64]) -> Pictures:
        return Pictures([self.images[i] for i in rows], [self.names[i] for i in rows], self.labels[rows], self.classes)

    def keys(self) -> list[str]:
        return [make_key("cifar10", name) for name in self.names]

    def pixels(self) -> NDArray[np.uint8]:
        """(n, 32, 32, 3)."""
        return np.stack([np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in self.images])


def cifar(part: str) -> Pictures:
    """part: train (50,000) or test (10,000). Raises InputError where the files are not there."""
    path = shared() / "data" / f"cifar10-{part}.parquet"
    if not path.is_file():
        raise InputError(f"{path} is not there; name the folder above data/ in CURATE_SHARED")
    table = pq.read_table(path, columns=["image", "label", "name"])
    classes, labels = np.unique(np.array(table.column("label").to_pylist()), return_inverse=True)
    images, names = table.column("image").to_pylist(), table.column("name").to_pylist()
    return Pictures(images, names, labels.astype(np.int64), classes.tolist())


def parts() -> tuple[Pictures, Pictures]:
    """What the teacher learns from (1,200 of each class), and the rest: the same two for every run."""
    train = cifar("train")
    place = _place_in_class(train, 0, _PARTS)
    return train.take(np.flatnonzero(place < TAUGHT)), train.take(np.flatnonzero(place >= TAUGHT))


def balanced(pictures: Pictures, of_each: int) -> Pictures:
    return pictures.take(np.flatnonzero(_place_in_class(pictures, 1, _PARTS) < of_each))


def _place_in_class(pictures: Pictures, seed: int, salt: int) -> NDArray[np.int64]:
    """(n,) 0, 1, 2 … within each class, in the order of hash(seed, key)."""
    rank = ranks(seed, pictures.keys(), salt)
    order = np.lexsort((rank, pictures.labels))
    place = np.empty(len(order), dtype=np.int64)
    sizes = np.bincount(pictures.labels, minlength=len(pictures.classes))
    place[order] = np.concatenate([np.arange(size) for size in sizes])
    return place


def tail_order(classes: int, seed: int) -> NDArray[np.int64]:
    """Classes (classes,), the most frequent first: drawn by the seed."""
    keys = [make_key("cifar10", str(number)) for number in range(classes)]
    return np.argsort(ranks(seed, keys, _TAIL), kind="stable")


def long_tail(pictures: Pictures, seed: int) -> Pictures:
    """Class sizes fall geometrically by 100:1 (Cui et al. 2019, 5.1), then copies as a web pool has."""
    most = int(np.bincount(pictures.labels).min())
    steps = np.arange(len(pictures.classes)) / (len(pictures.classes) - 1)
    wanted = np.empty(len(steps), dtype=np.int64)
    wanted[tail_order(len(steps), seed)] = np.rint(most * RATIO**-steps).astype(np.int64)
    tail = pictures.take(np.flatnonzero(_place_in_class(pictures, seed, _TAIL) < wanted[pictures.labels]))
    copied = np.argsort(ranks(seed, tail.keys(), _COPIES), kind="stable")[: int(COPIES * len(tail))]
    again = [tail.images[row] if turn % 2 else _encoded_anew(tail.images[row]) for turn, row in enumerate(copied)]
    return Pictures(
        tail.images + again,
        tail.names + [f"copy/{tail.names[row]}" for row in copied],
        np.concatenate([tail.labels, tail.labels[copied]]),
        tail.classes,
    )


def _encoded_anew(data: bytes) -> bytes:
    stream = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("RGB").save(stream, "JPEG", quality=80)
    return stream.getvalue()


def write_parquet(pictures: Pictures, path: Path) -> None:
    """Columns image, name (the source id) and label."""
    path.parent.mkdir(parents=True, exist_ok=True)
    labels: list[Any] = [pictures.classes[label] for label in pictures.labels]
    table = pa.table({"image": pictures.images, "name": pictures.names, "label": labels})
    aside = path.with_suffix(".tmp")
    pq.write_table(table, aside)
    aside.rename(path)
