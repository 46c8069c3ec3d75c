"""Reads the image of an index row, or the frames of a clip, as patches for the student and inputs for its teachers.

Errors of a single sample end here: the sample is skipped with a reason. An image is decoded once and cached (as 8-bit
patches) while there is room. The cache never evicts: an epoch visits every sample once, so replacing entries would only
lose hits. If images are augmented, the cache holds the original image.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from curate.codec.images import MAX_PIXELS, decode
from curate.core.errors import Reject
from curate.encoders.student.patches import grid, patchify
from curate.encoders.student.pixels import decode_to, resize, resize_to_grid
from distill.samples.batches.draws import AUGMENT, SECOND_AUGMENT, VIEW, Draws
from distill.samples.images.counts import PatchCounts, enlarged
from distill.samples.images.square import Square, squared
from distill.samples.sources.clips import spread
from distill.samples.sources.dataset import Dataset
from distill.samples.sources.members import OPEN_TARS, MemberReader
from distill.samples.sources.mixture import Mixture, as_mixture
from distill.samples.text_vectors import TextVectors
from distill.samples.texts import Found, Texts

_PIXEL_BYTES = 4
"""Pillow's RGB takes four bytes per pixel."""
_SPARE = 2.0
"""Pixels kept of an image that is going to be cropped, as a multiple of the student's maximum."""


class Augment(Protocol):
    """Random augmentation of an image."""

    def __call__(self, image: Image.Image, *, random: np.random.Generator) -> Image.Image: ...


@dataclass
class PatchedImage:
    """An image, or the frames of a clip, which have equal sizes."""

    row: int
    grid: tuple[int, int]
    """(rows, columns) of patches, of each frame."""
    patches: NDArray[np.uint8]
    """(frames * rows * columns, patch * patch * 3), frame by frame."""
    prepared: dict[str, Any] = field(default_factory=dict)
    """Inputs of the teachers that have no features of this image yet, by teacher; for a clip, a list with one for
    each frame."""
    text: str | None = None
    """The text drawn for it; None if its source names no texts, or if the sample has none of them."""
    second_text: str | None = None
    """The other text of its source's `text_pair`."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """What objectives read of its columns, by name."""
    augmented: bool = False
    """Augmented at random, so that the teachers' features for it must not be reused."""
    frames: int = 1
    epoch: int = 0
    """The source's epoch in which it was drawn."""
    second: PatchedImage | None = None
    """Another random crop of an image."""
    vector: NDArray[np.float32] | None = None
    """The vector of its text, see `TextVectors`."""

    def pictures(self) -> list[PatchedImage]:
        """Each frame as an image; an image itself."""
        if self.frames == 1:
            return [self]
        return [
            PatchedImage(
                self.row, self.grid, patches, {name: inputs[number] for name, inputs in self.prepared.items()},
                augmented=self.augmented,
            )
            for number, patches in enumerate(np.split(self.patches, self.frames))
        ]  # fmt: skip


@dataclass(frozen=True)
class Skipped:
    row: int
    reason: str
    detail: str


class Preparer(Protocol):
    """Prepares inputs of teachers from decoded images."""

    @property
    def prepares(self) -> bool: ...

    def missing(self, row: int) -> bool: ...

    def prepare(self, row: int, image: Image.Image, *, augmented: bool = False) -> dict[str, Any]: ...


class CacheBudget:
    """Shared byte limit of several caches."""

    def __init__(self, limit_bytes: int) -> None:
        self._left = limit_bytes
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True


class ImageReader:
    """`get(row, epoch)` reads an image of a mixture. Thread-safe."""

    def __init__(
        self,
        dataset: Dataset | Mixture,
        *,
        patch: int,
        max_tokens: int | None = None,
        teachers: Preparer | None = None,
        allowance: CacheBudget | None = None,
        share: float = 1.0,
        open_tars: int = OPEN_TARS,
        max_pixels: int = MAX_PIXELS,
        read: Callable[[int], bytes] | None = None,
        seed: int = 0,
        augment: Augment | None = None,
        two_crops: bool = False,
        reads_text: bool = True,
        needs_text: bool = False,
        vectors: TextVectors | None = None,
        columns: Collection[str] = (),
        whole: bool = False,
        enlarge: bool = False,
        square: Square | None = None,
    ) -> None:
        """max_tokens: overrides the sources' limits; share, open_tars: see MemberReader; read: returns the bytes of a
        row, instead of the dataset's tars; two_crops: augment each image a second time; reads_text: read texts if a
        source names them; needs_text: skip an image without text as `no_text`; vectors: of texts; an image without one
        is skipped as `no_text` too; columns: to read; whole: never decode JPEGs at a reduced size, which is the default
        with teachers; enlarge: scale smaller images up to the limit; square: bring images to squares, of as many pixels
        as the limit, for the teachers as for the student."""
        mixture = as_mixture(dataset)
        self.patch, self._max_pixels = patch, max_pixels
        self._reads_text, self._needs_text, self._columns = reads_text, needs_text, columns
        self._mixture, draws = mixture, Draws(mixture, seed)
        self.members = MemberReader(mixture, share=share, open_tars=open_tars)
        self._read, self._draws = read or self.members.read, draws
        self.texts = Texts(mixture, self.members, draws)
        limits = [recipe.sizes if max_tokens is None else {max_tokens: 1.0} for recipe in mixture.recipes]
        self.patch_counts = PatchCounts(mixture, draws, patch=patch, limits=limits)
        self._teachers = teachers if teachers is not None and teachers.prepares else None
        self._vectors = vectors
        self._whole = whole or self._teachers is not None
        self._enlarge, self._square = enlarge, square
        self._allowance, self._augment, self._two_crops = allowance or CacheBudget(0), augment, two_crops
        self._kept: dict[tuple[int, int], PatchedImage] = {}
        self._kept_images: dict[int, list[Image.Image]] = {}
        self._kept_texts: dict[int, Found] = {}

    def tokens(self, rows: NDArray[np.int64], epochs: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Patches (n,) planned for rows (n,) in epochs (n,) of their source, over all frames of a clip; without epochs,
        at the largest limits."""
        return self.patch_counts.tokens(rows, epochs)

    def get(self, row: int, epoch: int | None = None) -> PatchedImage | Skipped:
        """An image as drawn in an epoch of its source; without an epoch, at the largest limit and not augmented."""
        try:
            texts = self._texts(row, epoch)
            vector = None if self._vectors is None else self._vectors.of_row(row)
            columns = self.texts.columns(row, self._columns) if self._columns else {}
            if self._augment is None or epoch is None:
                image = self._plain(row, self.patch_counts.limit_of(row, epoch))
            else:
                image = self._augmented(row, epoch, self._augment)
        except Reject as error:
            return Skipped(row, error.reason, str(error))
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - one sample never ends a run; the limit of skipped samples does
            return Skipped(row, "preparation_failed", f"{type(error).__name__}: {error}")
        image.text, image.second_text = (*texts, None, None)[:2]
        image.epoch, image.vector, image.columns = epoch or 0, vector, columns
        return image

    def draws(self, images: Sequence[PatchedImage]) -> NDArray[np.uint64]:
        """Uniform 64-bit numbers (n,), one of each image in its epoch."""
        rows, epochs = ([image.row for image in images], [image.epoch for image in images])
        return self._draws.ranks(VIEW, np.array(rows, dtype=np.int64), np.array(epochs, dtype=np.int64))

    def _files(self, row: int) -> list[bytes]:
        """The encoded image, or the frames to read of a clip."""
        stored, frames = self._mixture.frames_of(row)
        if stored == 1:
            return [self._read(row)]
        found = self.members.frames(row)
        return [found[place] for place in spread(stored, frames)]

    def _plain(self, row: int, limit: int) -> PatchedImage:
        kept = self._kept.get((row, limit))
        if kept is not None and (self._teachers is None or not self._teachers.missing(row)):
            return replace(kept)
        files = self._files(row)
        # the student's pixels depend on the recipe, never on the cache
        if not self._whole and self._square is None:
            fit = partial(self._pixels, row, limit)
            return self._keep(self._patches(row, [decode_to(data, fit, self._max_pixels) for data in files]), limit)
        images = [decode(data, max_pixels=self._max_pixels) for data in files]
        if self._square is not None:
            images = [squared(image, self._square) for image in images]
        if kept is None:
            kept = self._patches(row, [resize(image, self._pixels(row, limit, *image.size)) for image in images])
            self._keep(kept, limit)
        return replace(kept, prepared=self._prepared(row, images))

    def _patches(self, row: int, frames_HWC: Sequence[NDArray[np.uint8]]) -> PatchedImage:
        """Raises Reject if the frames differ in size."""
        height, width, _ = frames_HWC[0].shape
        if any(other.shape[:2] != (height, width) for other in frames_HWC):
            raise Reject("frames_differ", f"the frames of {self._mixture.key(row)} differ in size")
        patches = [patchify(pixels_HWC, self.patch) for pixels_HWC in frames_HWC]
        joined = patches[0] if len(patches) == 1 else np.concatenate(patches)
        return PatchedImage(row, (height // self.patch, width // self.patch), joined, frames=len(patches))

    def _prepared(self, row: int, images: Sequence[Image.Image], *, augmented: bool = False) -> dict[str, Any]:
        """Inputs of the teachers, see `PatchedImage.prepared`."""
        if self._teachers is None:
            return {}
        each = [self._teachers.prepare(row, image, augmented=augmented) for image in images]
        return each[0] if len(each) == 1 else {name: [own[name] for own in each] for name in each[0]}

    def _keep(self, image: PatchedImage, limit: int) -> PatchedImage:
        """Cache an image if there is room; returns a copy, which the caller may change."""
        if self._allowance.take(image.patches.nbytes):
            self._kept[image.row, limit] = image
        return replace(image)

    def _pixels(self, row: int, limit: int, width: int, height: int) -> tuple[int, int]:
        """(width, height) of the grid for the actual size of the image, at most the planned number of patches even if
        the size in the index is wrong."""
        if self._enlarge:
            columns, rows = enlarged(width, height, patch=self.patch, tokens=limit)
            return columns * self.patch, rows * self.patch
        planned = self.patch_counts.planned(row, limit)
        columns, rows = grid(width, height, patch=self.patch, max_tokens=limit)
        if columns * rows > planned:
            columns, rows = grid(width, height, patch=self.patch, max_tokens=planned)
        return columns * self.patch, rows * self.patch

    def _augmented(self, row: int, epoch: int, augment: Augment) -> PatchedImage:
        """The augmented image, enlarged to the number of patches planned for the whole image; all frames of a clip
        alike."""
        originals = self._originals(row)
        result, images = self._changed(row, epoch, augment, originals, AUGMENT)
        result.prepared = self._prepared(row, images, augmented=True)
        if self._two_crops and len(originals) == 1:
            result.second, _ = self._changed(row, epoch, augment, originals, SECOND_AUGMENT)
        return result

    def _changed(
        self, row: int, epoch: int, augment: Augment, originals: Sequence[Image.Image], salt: int
    ) -> tuple[PatchedImage, list[Image.Image]]:
        rank = int(self._draws.ranks(salt, row, epoch)[0])
        images = [augment(image, random=np.random.default_rng(rank)) for image in originals]
        planned = self.patch_counts.planned(row, self.patch_counts.limit_of(row, epoch))
        width, height = images[0].size
        columns, rows = enlarged(width, height, patch=self.patch, tokens=planned)
        result = self._patches(row, [resize_to_grid(image, columns, rows, self.patch) for image in images])
        result.augmented = True
        return result, images

    def _originals(self, row: int) -> list[Image.Image]:
        """The images to augment: at full size if teachers need it, otherwise no larger than the student can use."""
        kept = self._kept_images.get(row)
        if kept is not None:
            return kept
        images = [decode(data, max_pixels=self._max_pixels) for data in self._files(row)]
        if any(image.size != images[0].size for image in images):
            raise Reject("frames_differ", f"the frames of {self._mixture.key(row)} differ in size")
        if self._teachers is not None:
            return images
        width, height = images[0].size
        scale = (_SPARE * self.patch_counts.limit_of(row, None) * self.patch**2 / (width * height)) ** 0.5
        if scale < 1:
            size = max(1, round(width * scale)), max(1, round(height * scale))
            images = [image.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0) for image in images]
        if self._allowance.take(sum(_PIXEL_BYTES * image.width * image.height for image in images)):
            self._kept_images[row] = images
        return images

    def _texts(self, row: int, epoch: int | None) -> tuple[str, ...]:
        """The text drawn in an epoch, or the two of a pair."""
        if not self._reads_text or not self.texts.has_choices(row):
            return ()
        found = self._kept_texts.get(row)
        if found is None:
            found = self.texts.read(row)
            if self._allowance.take(sum(len(text) + 64 for texts in found.values() for text in texts)):
                self._kept_texts[row] = found
        drawn = self.texts.draw(row, epoch, found)
        if not drawn and self._needs_text:
            raise Reject("no_text", f"row {row}: the sample has none of the texts that its source names")
        return drawn
