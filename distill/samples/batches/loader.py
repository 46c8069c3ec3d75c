"""A rank's share of each step, read and decoded ahead by threads.

Decoding, resizing and reading release the interpreter's lock, so threads run in parallel and share one cache. Batch
shares keep the stream's order, regardless of which thread finishes first. Every rank gets the same number of shares,
some of them empty, so no rank waits for one that has run out.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from distill.samples.batches.stream import Position, StepPlan, Stream
from distill.samples.images.reader import ImageReader, PatchedImage, Skipped

_TOGETHER = 8
"""Images per task of a thread: one task per image would add a tenth to the time of reading it."""


@dataclass
class BatchShare:
    """One rank's part of one step."""

    step: StepPlan
    images: list[PatchedImage]
    sequence: list[int]
    """Sequence of the global step that each image belongs to."""
    skipped: list[Skipped] = field(default_factory=list)
    world: int = 1
    """Ranks that share the step."""

    def reasons(self) -> Counter[str]:
        return Counter(item.reason for item in self.skipped)

    def examples(self) -> dict[str, str]:
        """Reason -> detail of the first sample skipped for it; the detail names the tar if the tar is at fault."""
        return {item.reason: item.detail for item in reversed(self.skipped)}

    def micro_batches(self, sequences: int) -> list[BatchShare]:
        """Parts of at most `sequences` sequences each (0: one part). Every rank gets the same number of parts, some of
        them empty, so that ranks can run the model together part by part."""
        most = -(-len(self.step.sequences) // self.world)
        if sequences < 1 or sequences >= most:
            return [self]
        parts = [BatchShare(self.step, [], [], world=self.world) for _ in range(-(-most // sequences))]
        parts[0].skipped = list(self.skipped)
        for image, number in zip(self.images, self.sequence, strict=True):
            part = parts[number // self.world // sequences]
            part.images.append(image)
            part.sequence.append(number)
        return parts


class Loader:
    """Endless iterator over batch shares. `state_dict` after a share gives the position of the next one."""

    def __init__(
        self,
        stream: Stream,
        images: ImageReader,
        *,
        rank: int = 0,
        world: int = 1,
        workers: int = 2,
        prefetch: int = 2,
    ) -> None:
        """workers: threads; prefetch: steps read ahead. Neither changes the batch shares."""
        self.stream, self.images = stream, images
        self.rank, self.world, self.workers, self.prefetch = rank, world, workers, prefetch
        self._next = Position()

    def state_dict(self) -> dict[str, Any]:
        return self.stream.state(self._next)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next = self.stream.position(state)

    def __iter__(self) -> Iterator[BatchShare]:
        steps = self.stream.steps(self._next)
        ahead: deque[tuple[StepPlan, list[int], list[Future[list[PatchedImage | Skipped]]]]] = deque()
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="distill-read")
        try:
            while True:
                while len(ahead) <= self.prefetch:
                    ahead.append(self._submit(pool, next(steps)))
                step, sequence, futures = ahead.popleft()
                items = [item for future in futures for item in future.result()]
                share = _collect(step, sequence, items, self.world)
                self._next = step.after
                yield share
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _submit(
        self, pool: ThreadPoolExecutor, step: StepPlan
    ) -> tuple[StepPlan, list[int], list[Future[list[PatchedImage | Skipped]]]]:
        mine = range(self.rank, len(step.sequences), self.world)  # may be empty: the rank still takes part in the step
        sequence = [number for number in mine for _ in step.sequences[number]]
        drawn = [
            (int(row), int(epoch))
            for number in mine
            for row, epoch in zip(step.sequences[number], step.epochs[number], strict=True)
        ]
        parts = [drawn[start : start + _TOGETHER] for start in range(0, len(drawn), _TOGETHER)]
        return step, sequence, [pool.submit(self._get, part) for part in parts]

    def _get(self, drawn: Sequence[tuple[int, int]]) -> list[PatchedImage | Skipped]:
        return [self.images.get(row, epoch) for row, epoch in drawn]


def _collect(step: StepPlan, sequence: list[int], items: Sequence[PatchedImage | Skipped], world: int) -> BatchShare:
    share = BatchShare(step, [], [], world=world)
    for number, item in zip(sequence, items, strict=True):
        if isinstance(item, Skipped):
            share.skipped.append(item)
        else:
            share.images.append(item)
            share.sequence.append(number)
    return share


def read_in_order(
    images: ImageReader, rows: Iterable[int], *, batch: int, workers: int = 2
) -> Iterator[tuple[list[PatchedImage], list[Skipped]]]:
    """Images of the given rows, once and in this order, `batch` at a time, for fitting and evaluation."""
    todo = [int(row) for row in rows]
    reading = images.members.reading(np.array(todo, dtype=np.int64))
    with reading, ThreadPoolExecutor(workers, thread_name_prefix="distill-read") as pool:
        ahead: deque[list[Future[PatchedImage | Skipped]]] = deque()
        for start in range(0, len(todo) + 2 * batch, batch):
            if todo[start : start + batch]:
                ahead.append([pool.submit(images.get, row) for row in todo[start : start + batch]])
            if len(ahead) > 2 or (ahead and start >= len(todo)):
                items = [future.result() for future in ahead.popleft()]
                good = [item for item in items if isinstance(item, PatchedImage)]
                yield good, [item for item in items if isinstance(item, Skipped)]


@dataclass(frozen=True)
class Batch:
    """Images laid end to end without padding, shortest first, so that images of equal length are neighbours."""

    patches: NDArray[np.uint8]
    """(tokens, patch * patch * 3)."""
    grids: list[tuple[int, int]]
    """(rows, columns) per image, and per frame of a clip."""
    images: list[PatchedImage]
    """Samples: images and clips."""
    texts: list[str | None]
    """Text drawn for each image."""
    second_texts: list[str | None]
    """The second text of each image, see `SourceRecipe.text_pair`."""

    @property
    def frames(self) -> list[int]:
        """Frames of each sample."""
        return [image.frames for image in self.images]

    def tensor(self, device: torch.device) -> torch.Tensor:
        """The patches on a device. Pinned memory makes the copy to a GPU asynchronous."""
        patches = torch.from_numpy(self.patches)
        return patches.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else patches.to(device)


def collate(images: Sequence[PatchedImage], patch: int = 0) -> Batch:
    """Sort the images by length, clips by that of a frame. Order does not matter: every loss is a mean over images.

    patch: the size of a patch, which is needed if there may be no image.
    """
    ordered = sorted(images, key=lambda image: (image.grid[0] * image.grid[1], image.grid))
    return Batch(
        np.concatenate([item.patches for item in ordered]) if ordered else np.zeros((0, 3 * patch**2), np.uint8),
        [item.grid for item in ordered for _ in range(item.frames)],
        ordered,
        [item.text for item in ordered],
        [item.second_text for item in ordered],
    )
