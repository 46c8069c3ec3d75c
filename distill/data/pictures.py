"""One row of the index -> a picture as the student and its teachers are given it; the sample boundary of training.

A picture is decoded once and kept (as 8-bit patches) while there is room. The cache never evicts: epochs visit every
sample once, so replacing entries would only lose hits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from curate.codec.images import MAX_PIXELS, decode
from curate.core.errors import Reject
from distill.data.dataset import Dataset
from distill.data.members import Members
from distill.data.packing import grids
from distill.data.patches import patchify, resize_to_grid


@dataclass
class Picture:
    row: int
    grid: tuple[int, int]
    """(rows, columns) of patches."""
    patches: NDArray[np.uint8]
    """(rows * columns, patch * patch * 3)."""
    prepared: dict[str, Any] = field(default_factory=dict)
    """Inputs of the teachers that have not yet seen this picture, by teacher."""


@dataclass(frozen=True)
class Skipped:
    row: int
    reason: str
    detail: str


class Preparer(Protocol):
    """What wants to see decoded pictures: the teachers."""

    def missing(self, row: int) -> bool: ...

    def prepare(self, row: int, image: Image.Image) -> dict[str, Any]: ...


class Allowance:
    """Bytes that caches may hold together."""

    def __init__(self, limit_bytes: int) -> None:
        self._left = limit_bytes
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True


class Pictures:
    """`get(row)`; safe to call from many threads."""

    def __init__(
        self,
        dataset: Dataset,
        *,
        patch: int,
        max_tokens: int,
        teachers: Preparer | None = None,
        allowance: Allowance | None = None,
        share: float = 1.0,
        max_pixels: int = MAX_PIXELS,
        read: Callable[[int], bytes] | None = None,
    ) -> None:
        """share: see Members; read: where the bytes come from, if not from the dataset's own tars."""
        self.patch, self.max_tokens, self._max_pixels = patch, max_tokens, max_pixels
        self._read = read or Members(dataset, share=share).read
        self._teachers, self._allowance = teachers, allowance or Allowance(0)
        columns, rows = grids(dataset.integers("width"), dataset.integers("height"), patch=patch, max_tokens=max_tokens)
        self.patch_tokens = columns * rows
        """Patches (n,) planned for each row of the index."""
        self._kept: dict[int, Picture] = {}

    def get(self, row: int) -> Picture | Skipped:
        kept = self._kept.get(row)
        if kept is not None and (self._teachers is None or not self._teachers.missing(row)):
            return kept
        try:
            image = decode(self._read(row), max_pixels=self._max_pixels)
            picture = kept or self._keep(self._cut(row, image))
            prepared = {} if self._teachers is None else self._teachers.prepare(row, image)
        except Reject as error:
            return Skipped(row, error.reason, str(error))
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - one sample never ends a run; the budget of skipped ones does
            return Skipped(row, "preparation_failed", f"{type(error).__name__}: {error}")
        return Picture(row, picture.grid, picture.patches, prepared)

    def _cut(self, row: int, image: Image.Image) -> Picture:
        """The grid follows the picture itself; where the index knew another size, it must fit the place planned."""
        columns, rows = self._grid(image, self.max_tokens)
        if columns * rows > self.patch_tokens[row]:
            columns, rows = self._grid(image, int(self.patch_tokens[row]))
        pixels = resize_to_grid(image, columns, rows, self.patch)
        return Picture(row, (rows, columns), patchify(pixels, self.patch))

    def _grid(self, image: Image.Image, max_tokens: int) -> tuple[int, int]:
        size = np.array([image.width]), np.array([image.height])
        columns, rows = grids(*size, patch=self.patch, max_tokens=max_tokens)
        return int(columns[0]), int(rows[0])

    def _keep(self, picture: Picture) -> Picture:
        if picture.row not in self._kept and self._allowance.take(picture.patches.nbytes):
            self._kept[picture.row] = picture
        return picture
