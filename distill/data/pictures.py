"""One row of the index -> a picture as the student and its teachers are given it; the sample boundary of training.

A picture is decoded once and kept (as 8-bit patches) while there is room. The cache never evicts: epochs visit every
sample once, so replacing entries would only lose hits. Of pictures that are changed at random, what is kept is the
picture before the change.
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
from distill.data.blend import Blend, as_blend
from distill.data.dataset import Dataset
from distill.data.draws import AUGMENT, Draws
from distill.data.members import Members
from distill.data.packing import grid
from distill.data.patches import patchify, resize_to_grid
from distill.data.sizes import Sizes
from distill.data.texts import Candidates, Texts


class Augment(Protocol):
    """A picture changed at random, as the generator says."""

    def __call__(self, image: Image.Image, *, random: np.random.Generator) -> Image.Image: ...


@dataclass
class Picture:
    row: int
    grid: tuple[int, int]
    """(rows, columns) of patches."""
    patches: NDArray[np.uint8]
    """(rows * columns, patch * patch * 3)."""
    prepared: dict[str, Any] = field(default_factory=dict)
    """Inputs of the teachers that have not yet seen this picture, by teacher."""
    text: str | None = None
    """The text drawn for it; None where its source names no texts, or it has none of them."""
    changed: bool = False
    """At random: what teachers say of it holds for this once."""


@dataclass(frozen=True)
class Skipped:
    row: int
    reason: str
    detail: str


class Preparer(Protocol):
    """What wants to see decoded pictures: the teachers."""

    def missing(self, row: int) -> bool: ...

    def prepare(self, row: int, image: Image.Image, *, changed: bool = False) -> dict[str, Any]: ...


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
    """`get(row, epoch)`; safe to call from many threads."""

    def __init__(
        self,
        dataset: Dataset | Blend,
        *,
        patch: int,
        max_tokens: int | None = None,
        teachers: Preparer | None = None,
        allowance: Allowance | None = None,
        share: float = 1.0,
        max_pixels: int = MAX_PIXELS,
        read: Callable[[int], bytes] | None = None,
        seed: int = 0,
        augment: Augment | None = None,
        needs_text: bool = False,
    ) -> None:
        """max_tokens: instead of what each source says; share: see Members; read: where the bytes come from, if not
        from the dataset's own tars; needs_text: a picture without one is skipped, as `no_text`."""
        blend = as_blend(dataset)
        self.patch, self._max_pixels, self._needs_text = patch, max_pixels, needs_text
        members, draws = Members(blend, share=share), Draws(blend, seed)
        self._read, self._draws = read or members.read, draws
        self.texts = Texts(blend, members, draws)
        limits = [recipe.sizes if max_tokens is None else {max_tokens: 1.0} for recipe in blend.recipes]
        self._sizes = Sizes(blend, draws, patch=patch, limits=limits)
        self.patch_tokens = self._sizes.tokens(np.arange(len(blend)))
        """Patches (n,) planned for each row of the index at its largest."""
        self._teachers = teachers if teachers is not None and teachers.prepares else None
        self._allowance, self._augment = allowance or Allowance(0), augment
        self._kept: dict[tuple[int, int], Picture] = {}
        self._kept_images: dict[int, Image.Image] = {}
        self._kept_texts: dict[int, Candidates] = {}

    def tokens(self, rows: NDArray[np.int64], epochs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Patches (n,) planned for rows (n,) in epochs (n,) of their source."""
        return self._sizes.tokens(rows, epochs)

    def get(self, row: int, epoch: int | None = None) -> Picture | Skipped:
        """A picture as it is drawn in an epoch of its source; without one, at its largest and unchanged."""
        try:
            text = self._text(row, epoch or 0)
            if self._augment is None or epoch is None:
                picture = self._plain(row, int(self._sizes.limit(row, epoch)[0]))
            else:
                picture = self._changed(row, epoch, self._augment)
        except Reject as error:
            return Skipped(row, error.reason, str(error))
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - one sample never ends a run; the budget of skipped ones does
            return Skipped(row, "preparation_failed", f"{type(error).__name__}: {error}")
        picture.text = text
        return picture

    def _plain(self, row: int, limit: int) -> Picture:
        kept = self._kept.get((row, limit))
        if kept is not None and (self._teachers is None or not self._teachers.missing(row)):
            return Picture(row, kept.grid, kept.patches)
        image, size = self._decoded(row, limit)
        if kept is None:
            kept = Picture(row, *self._cut(image, self._fitted(size, limit, self._sizes.planned(row, limit))))
            if self._allowance.take(kept.patches.nbytes):
                self._kept[row, limit] = kept
        prepared = {} if self._teachers is None else self._teachers.prepare(row, image)
        return Picture(row, kept.grid, kept.patches, prepared)

    def _decoded(self, row: int, limit: int) -> tuple[Image.Image, tuple[int, int]]:
        """A picture and its true size. It is whole where teachers look at it, who see more of it than the student does,
        else no larger than need be: the student's pixels depend on the recipe, never on what was kept."""
        size = [0, 0]

        def enough(width: int, height: int) -> tuple[int, int]:
            size[:] = width, height
            columns, rows = grid(width, height, patch=self.patch, max_tokens=limit)
            return columns * self.patch, rows * self.patch

        data = self._read(row)
        image = decode(data, max_pixels=self._max_pixels, enough=enough if self._teachers is None else None)
        return image, (size[0] or image.width, size[1] or image.height)

    def _changed(self, row: int, epoch: int, augment: Augment) -> Picture:
        """Whatever part of the picture is left fills the place that was planned for the whole."""
        rank = self._draws.ranks(AUGMENT, row, epoch)[0]
        image = augment(self._unchanged(row), random=np.random.default_rng(int(rank)))
        place = int(self._sizes.tokens(row, epoch)[0])
        shape = grid(image.width * _MUCH, image.height * _MUCH, patch=self.patch, max_tokens=place)
        prepared = {} if self._teachers is None else self._teachers.prepare(row, image, changed=True)
        return Picture(row, *self._cut(image, shape), prepared, changed=True)

    def _unchanged(self, row: int) -> Image.Image:
        """The picture to be changed: as it is where teachers look at it, else no larger than the student can use."""
        kept = self._kept_images.get(row)
        if kept is not None:
            return kept
        image = decode(self._read(row), max_pixels=self._max_pixels)
        if self._teachers is not None:
            return image
        pixels = int(self._sizes.limit(row, None)[0]) * self.patch**2
        scale = (_SPARE * pixels / (image.width * image.height)) ** 0.5
        if scale < 1:
            size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
            image = image.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)
        if self._allowance.take(3 * image.width * image.height):
            self._kept_images[row] = image
        return image

    def _fitted(self, size: tuple[int, int], limit: int, place: int) -> tuple[int, int]:
        """The grid follows the picture itself; where the index knew another size, it must fit the place planned."""
        columns, rows = grid(*size, patch=self.patch, max_tokens=limit)
        return (columns, rows) if columns * rows <= place else grid(*size, patch=self.patch, max_tokens=place)

    def _cut(self, image: Image.Image, shape: tuple[int, int]) -> tuple[tuple[int, int], NDArray[np.uint8]]:
        columns, rows = shape
        return (rows, columns), patchify(resize_to_grid(image, columns, rows, self.patch), self.patch)

    def _text(self, row: int, epoch: int) -> str | None:
        if not self.texts.wanted(row):
            return None
        candidates = self._kept_texts.get(row)
        if candidates is None:
            candidates = self.texts.candidates(row)
            if self._allowance.take(sum(len(text) + 64 for _, texts in candidates for text in texts)):
                self._kept_texts[row] = candidates
        text = self.texts.draw(row, epoch, candidates)
        if text is None and self._needs_text:
            raise Reject("no_text", f"row {row}: no text of those that its source names")
        return text


_MUCH = 1 << 16
"""Scales any picture above its limit, which `grids` never enlarges to."""
_SPARE = 2.0
"""Pixels kept of a picture that is to be cropped, over those that the student sees of the whole."""
