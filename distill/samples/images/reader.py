"""One row of the index -> a picture as the student and its teachers are given it; the sample boundary of training.

A picture is decoded once and kept (as 8-bit patches) while there is room. The cache never evicts: epochs visit every
sample once, so replacing entries would only lose hits. Of pictures that are changed at random, what is kept is the
picture before the change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from curate.codec.images import MAX_PIXELS, decode
from curate.core.errors import Reject
from distill.samples.batches.draws import AUGMENT, Draws
from distill.samples.batches.packing import grid
from distill.samples.images.patches import patchify, resize_to_grid
from distill.samples.images.pixels import decode_to, resize
from distill.samples.sources.dataset import Dataset
from distill.samples.sources.members import OPEN_TARS, Members
from distill.samples.sources.mixture import Blend, as_blend
from distill.samples.sources.sizes import Sizes
from distill.samples.texts import Candidates, Texts


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
        open_tars: int = OPEN_TARS,
        max_pixels: int = MAX_PIXELS,
        read: Callable[[int], bytes] | None = None,
        seed: int = 0,
        augment: Augment | None = None,
        reads_text: bool = True,
        needs_text: bool = False,
        whole: bool = False,
    ) -> None:
        """max_tokens: instead of what each source says; share, open_tars: see Members; read: where the bytes come from,
        if not from the dataset's own tars; reads_text: where a source names texts; needs_text: a picture without one is
        skipped, as `no_text`; whole: JPEGs are never decoded at a reduced size, as where teachers look at pictures."""
        blend = as_blend(dataset)
        self.patch, self._max_pixels = patch, max_pixels
        self._reads_text, self._needs_text = reads_text, needs_text
        self._blend, draws = blend, Draws(blend, seed)
        self.members = Members(blend, share=share, open_tars=open_tars)
        self._read, self._draws = read or self.members.read, draws
        self.texts = Texts(blend, self.members, draws)
        limits = [recipe.sizes if max_tokens is None else {max_tokens: 1.0} for recipe in blend.recipes]
        self._sizes = Sizes(blend, draws, patch=patch, limits=limits)
        self._teachers = teachers if teachers is not None and teachers.prepares else None
        self._whole = whole or self._teachers is not None
        self._allowance, self._augment = allowance or Allowance(0), augment
        self._kept: dict[tuple[int, int], Picture] = {}
        self._kept_images: dict[int, Image.Image] = {}
        self._kept_texts: dict[int, Candidates] = {}

    def tokens(self, rows: NDArray[np.int64], epochs: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Patches (n,) planned for rows (n,) in epochs (n,) of their source; without them, at their largest."""
        return self._sizes.tokens(rows, epochs)

    def get(self, row: int, epoch: int | None = None) -> Picture | Skipped:
        """A picture as it is drawn in an epoch of its source; without one, at its largest and unchanged."""
        try:
            text = self._text(row, epoch or 0)
            if self._augment is None or epoch is None:
                picture = self._plain(row, self._sizes.limit_of(row, epoch))
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
        data = self._read(row)
        if not self._whole:  # what the student's pixels are depends on the recipe, never on what was kept
            fit = partial(self._pixels, row, limit)
            return self._keep(self._picture(row, decode_to(data, fit, self._max_pixels)), limit)
        image = decode(data, max_pixels=self._max_pixels)
        if kept is None:
            kept = self._picture(row, resize(image, self._pixels(row, limit, *image.size)))
            self._keep(kept, limit)
        prepared = {} if self._teachers is None else self._teachers.prepare(row, image)
        return Picture(row, kept.grid, kept.patches, prepared)

    def _picture(self, row: int, pixels_HWC: NDArray[np.uint8]) -> Picture:
        height, width, _ = pixels_HWC.shape
        return Picture(row, (height // self.patch, width // self.patch), patchify(pixels_HWC, self.patch))

    def _keep(self, picture: Picture, limit: int) -> Picture:
        """Another picture of the same patches, to be given away."""
        if self._allowance.take(picture.patches.nbytes):
            self._kept[picture.row, limit] = picture
        return Picture(picture.row, picture.grid, picture.patches)

    def _pixels(self, row: int, limit: int, width: int, height: int) -> tuple[int, int]:
        """Of the grid, which follows the picture itself, and fits its place in the plan if the index was wrong."""
        place = self._sizes.planned(row, limit)
        columns, rows = grid(width, height, patch=self.patch, max_tokens=limit)
        if columns * rows > place:
            columns, rows = grid(width, height, patch=self.patch, max_tokens=place)
        return columns * self.patch, rows * self.patch

    def _changed(self, row: int, epoch: int, augment: Augment) -> Picture:
        """Whatever part of the picture is left fills the place that was planned for the whole."""
        rank = self._draws.ranks(AUGMENT, row, epoch)[0]
        image = augment(self._unchanged(row), random=np.random.default_rng(int(rank)))
        place = int(self._sizes.tokens(row, epoch)[0])
        columns, rows = grid(image.width * _MUCH, image.height * _MUCH, patch=self.patch, max_tokens=place)
        picture = self._picture(row, resize_to_grid(image, columns, rows, self.patch))
        picture.prepared = {} if self._teachers is None else self._teachers.prepare(row, image, changed=True)
        picture.changed = True
        return picture

    def _unchanged(self, row: int) -> Image.Image:
        """The picture to be changed: as it is where teachers look at it, else no larger than the student can use."""
        kept = self._kept_images.get(row)
        if kept is not None:
            return kept
        image = decode(self._read(row), max_pixels=self._max_pixels)
        if self._teachers is not None:
            return image
        pixels = self._sizes.limit_of(row, None) * self.patch**2
        scale = (_SPARE * pixels / (image.width * image.height)) ** 0.5
        if scale < 1:
            size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
            image = image.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)
        if self._allowance.take(_PIXEL_BYTES * image.width * image.height):
            self._kept_images[row] = image
        return image

    def _text(self, row: int, epoch: int) -> str | None:
        if not self._reads_text or not self.texts.wanted(row):
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
_PIXEL_BYTES = 4
"""Of Pillow's RGB."""
_SPARE = 2.0
"""Pixels kept of a picture that is to be cropped, over those that the student sees of the whole."""
