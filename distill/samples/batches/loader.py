"""A rank's share of each step, read and decoded ahead by threads.

Threads, since decoding, resizing and reading release the interpreter's lock, and one cache then serves them all. Shares
come in the stream's order whatever thread finishes first. Every rank gets as many shares as every other, empty ones
included, so ranks never wait for one that has run out.
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

from distill.samples.batches.stream import Position, Step, Stream
from distill.samples.images.images import Picture, Pictures, Skipped

_TOGETHER = 8
"""Pictures that a thread takes at a time: handing over each on its own costs a tenth of reading it."""


@dataclass
class Share:
    """What one rank does in one step."""

    step: Step
    pictures: list[Picture]
    sequence: list[int]
    """Sequence of the global step that holds each picture."""
    skipped: list[Skipped] = field(default_factory=list)
    world: int = 1
    """Ranks that divide the step."""

    def reasons(self) -> Counter[str]:
        return Counter(item.reason for item in self.skipped)

    def examples(self) -> dict[str, str]:
        """By reason, what is said of the first sample skipped for it, which names the tar where one is at fault."""
        return {item.reason: item.detail for item in reversed(self.skipped)}

    def micro(self, sequences: int) -> list[Share]:
        """Parts of at most so many sequences (0: one part). Equally many on every rank, so that ranks which go through
        the model together may do so for each part; some may be empty."""
        most = -(-len(self.step.sequences) // self.world)
        if sequences < 1 or sequences >= most:
            return [self]
        parts = [Share(self.step, [], [], world=self.world) for _ in range(-(-most // sequences))]
        parts[0].skipped = list(self.skipped)
        for picture, number in zip(self.pictures, self.sequence, strict=True):
            part = parts[number // self.world // sequences]
            part.pictures.append(picture)
            part.sequence.append(number)
        return parts


class Loader:
    """Iterate for shares without end; `state_dict` after a share says where the following one begins."""

    def __init__(
        self,
        stream: Stream,
        pictures: Pictures,
        *,
        rank: int = 0,
        world: int = 1,
        workers: int = 2,
        prefetch: int = 2,
    ) -> None:
        """workers: threads; prefetch: steps read ahead. Neither changes what comes out."""
        self.stream, self.pictures = stream, pictures
        self.rank, self.world, self.workers, self.prefetch = rank, world, workers, prefetch
        self._next = Position()

    def state_dict(self) -> dict[str, Any]:
        return self.stream.state(self._next)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next = self.stream.position(state)

    def __iter__(self) -> Iterator[Share]:
        steps = self.stream.steps(self._next)
        ahead: deque[tuple[Step, list[int], list[Future[list[Picture | Skipped]]]]] = deque()
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
        self, pool: ThreadPoolExecutor, step: Step
    ) -> tuple[Step, list[int], list[Future[list[Picture | Skipped]]]]:
        mine = range(self.rank, len(step.sequences), self.world)  # may be empty: every rank still takes the step
        sequence = [number for number in mine for _ in step.sequences[number]]
        drawn = [
            (int(row), int(epoch))
            for number in mine
            for row, epoch in zip(step.sequences[number], step.epochs[number], strict=True)
        ]
        parts = [drawn[start : start + _TOGETHER] for start in range(0, len(drawn), _TOGETHER)]
        return step, sequence, [pool.submit(self._get, part) for part in parts]

    def _get(self, drawn: Sequence[tuple[int, int]]) -> list[Picture | Skipped]:
        return [self.pictures.get(row, epoch) for row, epoch in drawn]


def _collect(step: Step, sequence: list[int], items: Sequence[Picture | Skipped], world: int) -> Share:
    share = Share(step, [], [], world=world)
    for number, item in zip(sequence, items, strict=True):
        if isinstance(item, Skipped):
            share.skipped.append(item)
        else:
            share.pictures.append(item)
            share.sequence.append(number)
    return share


def read_in_order(
    pictures: Pictures, rows: Iterable[int], *, batch: int, workers: int = 2
) -> Iterator[tuple[list[Picture], list[Skipped]]]:
    """Pictures of given rows once, in that order, `batch` at a time: what fitting and evaluation read."""
    todo = [int(row) for row in rows]
    reading = pictures.members.passing(np.array(todo, dtype=np.int64))
    with reading, ThreadPoolExecutor(workers, thread_name_prefix="distill-read") as pool:
        ahead: deque[list[Future[Picture | Skipped]]] = deque()
        for start in range(0, len(todo) + 2 * batch, batch):
            if todo[start : start + batch]:
                ahead.append([pool.submit(pictures.get, row) for row in todo[start : start + batch]])
            if len(ahead) > 2 or (ahead and start >= len(todo)):
                items = [future.result() for future in ahead.popleft()]
                good = [item for item in items if isinstance(item, Picture)]
                yield good, [item for item in items if isinstance(item, Skipped)]


@dataclass(frozen=True)
class Batch:
    """Pictures laid end to end, without padding, shortest first: images of equal length are neighbours."""

    patches: NDArray[np.uint8]
    """(tokens, patch * patch * 3)."""
    grids: list[tuple[int, int]]
    """(rows, columns) per image."""
    pictures: list[Picture]
    texts: list[str | None]
    """Drawn for each image."""

    def tensor(self, device: torch.device) -> torch.Tensor:
        """The patches on a device: to a GPU through pinned memory, while the CPU goes on."""
        patches = torch.from_numpy(self.patches)
        return patches.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else patches.to(device)


def collate(pictures: Sequence[Picture]) -> Batch:
    """Order inside a batch is free, since every loss is a mean over images."""
    ordered = sorted(pictures, key=lambda picture: (picture.grid[0] * picture.grid[1], picture.grid))
    return Batch(
        np.concatenate([item.patches for item in ordered]),
        [item.grid for item in ordered],
        ordered,
        [item.text for item in ordered],
    )
