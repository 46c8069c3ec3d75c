"""Perceptual hashes of a video, two a second while it changes, which re-encoded, resized and trimmed copies share.

Each hash is of the mean of two seconds. A copy that was trimmed has its hashes at other times, up to a quarter of a
second away; a mean over two seconds changes little in that time, while single frames may show something else.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from curate.kernels.perceptual import hash_planes

TICK_MS, STEP_MS = 100, 500
STEPS = 4
"""Steps that a hash is the mean of."""
TICKS = STEP_MS // TICK_MS
THRESHOLD = 24.0
"""Four times that of images: the encoders of videos are coarser."""


class FrameHashes:
    """Feed frames in order with `add`, then call `finish`. Memory does not grow, except for the hashes."""

    def __init__(self) -> None:
        self.hashes: list[bytes | None] = []
        """One of 32 bytes every STEP_MS, unless it repeats the one before; None if there is too little detail to
        compare."""
        self._sums: deque[NDArray[np.float32]] = deque(maxlen=STEPS)
        self._sum: NDArray[np.float32] | None = None
        self._ticks = 0
        self._shown: NDArray[np.float32] | None = None

    def add(self, time_ms: int, planes: NDArray[np.uint8]) -> None:
        """planes (3, 27, 48): luma and both chromas, of 0 to 255, at any size from 20 x 20."""
        self._show_until(time_ms)
        self._shown = planes.astype(np.float32)

    def finish(self, end_ms: int) -> None:
        self._show_until(end_ms)
        if not self.hashes and self._ticks:
            self._hash([*self._sums, *([] if self._sum is None else [self._sum])], self._ticks)

    def _show_until(self, time_ms: int) -> None:
        """Add up what is shown at each tick before this time. Once all steps show one frame, others repeat them."""
        if self._shown is None:
            return
        ticks = max(0, -(-time_ms // TICK_MS) - self._ticks)
        more = max(0, ticks // TICKS - STEPS - 1) * TICKS
        for _ in range(ticks - more):
            self._sum = self._shown if self._sum is None else self._sum + self._shown
            self._ticks += 1
            if self._ticks % TICKS == 0:
                self._sums.append(self._sum)
                self._sum = None
                if len(self._sums) == STEPS:
                    self._hash(list(self._sums), STEPS * TICKS)
        self._ticks += more

    def _hash(self, sums: list[NDArray[np.float32]], ticks: int) -> None:
        luma, blue, red = np.sum(sums, axis=0) / ticks
        found, flat = hash_planes(luma, blue - 128, red - 128, aspect=0, threshold=THRESHOLD)
        hashed = None if flat else found
        if self.hashes[-1:] != [hashed]:
            self.hashes.append(hashed)
