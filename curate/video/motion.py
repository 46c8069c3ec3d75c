"""Sums up motion vectors of a stream of frames: how much moves, how evenly, and how much of it is the camera's."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LEAST_COVERED = 1 / 3
"""Share of a frame's area that must have vectors. In the first frame after a cut, few blocks have any."""
PEAK_SECONDS = 1.0
STILL = 0.7
"""Root mean square, in percent of the width a second, below which half pixels are all that moves."""


class Moved(NamedTuple):
    """Speeds are in percent of the frame's width a second; null without vectors."""

    mean: float | None = None
    """Over area and time."""
    variance: float | None = None
    """Over area and time."""
    peak: float | None = None
    """The largest mean of PEAK_SECONDS that were measured, or the mean of fewer."""
    camera_share: float | None = None
    """Share of the squared speed that one affine motion a frame explains (pan, zoom, turn); None if nothing moves."""


class Motion:
    """Feed the vectors of frames in order with `add`. Memory does not grow."""

    def __init__(self, camera: bool = True) -> None:
        """camera: whether to find its share."""
        self._camera = camera
        self.frames = 0
        """Frames that had enough vectors."""
        self._seconds = self._mean = self._square = self._unexplained = 0.0
        self._peak: float | None = None
        self._recent: deque[tuple[float, float]] = deque()
        """Seconds and means of the last PEAK_SECONDS."""

    def add(self, vectors: NDArray[Any], width: int, height: int, seconds: float) -> None:
        """vectors: as of `curate.codec.video.motion`. seconds: since the frame that they point to."""
        centre = np.stack([vectors["dst_x"], vectors["dst_y"]], 1).astype(np.float64)
        half = np.stack([vectors["w"], vectors["h"]], 1) / 2.0
        inside = np.minimum(centre + half, (width, height)) - np.maximum(centre - half, 0)
        area = np.maximum(inside, 0).prod(axis=1)
        if area.sum() < LEAST_COVERED * width * height:
            return
        share = area / area.sum()
        scale = 100 / width / seconds / np.maximum(vectors["motion_scale"], 1)[:, None]
        speed = np.stack([vectors["motion_x"], vectors["motion_y"]], 1) * scale
        squares = np.square(speed).sum(axis=1)
        mean = float(share @ np.sqrt(squares))
        self.frames += 1
        self._seconds += seconds
        self._mean += mean * seconds
        self._square += float(share @ squares) * seconds
        if self._camera:
            self._unexplained += _unexplained(centre / width, speed, share) * seconds
        self._recent.append((seconds, mean))
        more = sum(long for long, _ in self._recent) - PEAK_SECONDS
        while more >= self._recent[0][0]:
            more -= self._recent.popleft()[0]
        if more > -1e-6:
            peak = (sum(long * mean for long, mean in self._recent) - more * self._recent[0][1]) / PEAK_SECONDS
            self._peak = max(self._peak or 0.0, peak)

    def result(self) -> Moved:
        if not self.frames:
            return Moved()
        mean, square = self._mean / self._seconds, self._square / self._seconds
        share = 1 - self._unexplained / self._square if self._camera and square > STILL**2 else None
        return Moved(mean, max(0.0, square - mean**2), mean if self._peak is None else self._peak, share)


def _unexplained(place_N2: NDArray[np.float64], speed_N2: NDArray[np.float64], share_N: NDArray[np.float64]) -> float:
    """Mean square of what is left of the speed after the best affine motion, by weighted least squares."""
    weight = np.sqrt(share_N)[:, None]
    basis = np.column_stack([np.ones(len(place_N2)), place_N2 - place_N2.mean(axis=0)])
    solution = np.linalg.lstsq(basis * weight, speed_N2 * weight, rcond=None)[0]
    return float(np.square((speed_N2 - basis @ solution) * weight).sum())
