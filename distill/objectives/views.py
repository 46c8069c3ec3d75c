"""Views: what passes the student. All views of a micro-batch pass together, and one that several objectives need passes
once.

Random choices are hash(seed, key, item, copy, epoch), so they do not depend on ranks, micro-batches or restarts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from curate.core.hashing import mixed, rank_below

if TYPE_CHECKING:
    from distill.samples.batches.loader import Batch
    from distill.samples.images.reader import PatchedImage

_SHARE, _PLACES = np.uint64(0x5A4E), np.uint64(0x91CE)


@dataclass(frozen=True)
class View:
    """A version of the images that passes the student. By default, the images as they are."""

    share: float = 1.0
    """Probability with which a sample has this view."""
    hidden: float = 0.0
    """Share of the patches of each image that the student does not see, drawn at random."""
    hidden_of_clips: float | None = None
    """The same for each frame of a clip; None: `hidden`."""
    masked: str | None = None
    """None: hidden patches do not pass the student. The label of an objective: they pass it, with the parameter `mask`
    (width,) of that objective's module in place of their embeddings."""
    second: bool = False
    """Another crop of each image (`data.augment`); clips have no such view."""

    def visible(self, patches: int, frames: int = 1) -> int:
        """How many patches of an image or a frame are not hidden."""
        hidden = self.hidden if frames == 1 or self.hidden_of_clips is None else self.hidden_of_clips
        return max(1, round((1.0 - hidden) * patches))

    def lengths(self, images: Sequence[PatchedImage], tubelet: int = 1) -> list[int]:
        """Patches that pass the student, of each image and of each frame or (with `tubelet` above 1) each clip, if all
        samples have this view."""
        passing = list[int]()
        for image in images:
            count, frames = image.grid[0] * image.grid[1], image.frames
            if tubelet > 1:
                passing.append(count * -(-frames // tubelet))
            elif not (self.second and frames > 1):
                passing += [count if self.masked is not None else self.visible(count, frames)] * frames
        return passing


WHOLE, SECOND = View(), View(second=True)


@dataclass(frozen=True)
class Drawn:
    """A view of a batch, before it passes the student. Its frames are images, and those of clips."""

    samples: NDArray[np.int64]
    """(V,): samples of the batch that have this view, in order."""
    patches: NDArray[np.uint8]
    """(N, patch * patch * 3): those that pass the student."""
    grids: list[tuple[int, int]]
    """(rows, columns) of each frame."""
    places: list[NDArray[np.int64]]
    """Places in its grid of the patches that pass, for each frame."""
    hidden: NDArray[np.bool_]
    """(N',): which patches of the samples are hidden."""
    lengths: list[int]
    """Patches of each of these samples, N' in total."""


def draw(view: View, batch: Batch, ranks: NDArray[np.uint64]) -> Drawn:
    """ranks (B,): a uniform 64-bit number of each sample."""
    own = np.flatnonzero(rank_below(mixed(ranks ^ _SHARE), view.share)).tolist()
    seen = [(number, batch.images[number].second if view.second else batch.images[number]) for number in own]
    chosen = [(number, image) for number, image in seen if image is not None]
    visible = [_visible(view, image, ranks[number]) for number, image in chosen]
    passing, hidden, patches = list[NDArray[np.int64]](), [np.zeros(0, bool)], [batch.patches[:0]]
    for (_, image), places_FN in zip(chosen, visible, strict=True):
        frames_FNP = image.patches.reshape(image.frames, -1, batch.patches.shape[1])
        mask = np.ones(frames_FNP.shape[:2], dtype=bool)
        np.put_along_axis(mask, places_FN, False, axis=1)
        if view.masked is not None:
            places_FN = np.broadcast_to(np.arange(mask.shape[1]), mask.shape)
        hidden.append(mask.ravel())
        passing += [*places_FN]
        patches.append(np.take_along_axis(frames_FNP, places_FN[:, :, None], axis=1).reshape(-1, frames_FNP.shape[2]))
    return Drawn(
        np.array([number for number, _ in chosen], dtype=np.int64),
        np.concatenate(patches),
        [image.grid for _, image in chosen for _ in range(image.frames)],
        passing,
        np.concatenate(hidden),
        [len(image.patches) for _, image in chosen],
    )


def _visible(view: View, image: PatchedImage, rank: np.uint64) -> NDArray[np.int64]:
    """(frames, n): places of the patches that are not hidden, in order."""
    count = len(image.patches) // image.frames
    number = view.visible(count, image.frames)
    if number == count:
        return np.broadcast_to(np.arange(count), (image.frames, count))
    frames = mixed(np.arange(image.frames, dtype=np.uint64) ^ mixed(np.array([rank ^ _PLACES])))
    drawn = mixed(np.arange(count, dtype=np.uint64) ^ frames[:, None])
    return np.sort(np.argsort(drawn, axis=1, kind="stable")[:, :number], axis=1)


def frame_pair(rank: int, frames: int) -> tuple[int, int]:
    """Two different frames of a clip, in order, for a uniform 64-bit number; twice the image for an image."""
    if frames == 1:
        return 0, 0
    first, second = rank % frames, rank // frames % (frames - 1)
    return (first, second + 1) if second >= first else (second, first)
