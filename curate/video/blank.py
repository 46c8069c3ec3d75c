"""Finds where a video shows nothing: black stretches, stretches without change, and bars at the edges."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLACK_LEVEL, BLACK_SHARE = 25, 0.98
"""A frame is black if this share of its pixels is not above this level of luma (FFmpeg's blackdetect)."""
BLACK_MS = 100
"""The least duration of a black stretch."""
STILL_MS = 500
STILL = 1.0
"""Frames STILL_MS apart that differ less show no change: mean absolute differences of all planes, added."""
BAR_LEVEL = 10
"""A line belongs to a bar if its mean luma is never above (FFmpeg's cropdetect)."""


class Blank:
    """Feed frames in order with `add`, then call `finish`. Memory does not grow, except for the stretches."""

    def __init__(self) -> None:
        self.black_ms: list[tuple[int, int]] = []
        self.still_ms = 0
        self._black_from: int | None = None
        self._shown: NDArray[np.int16] | None = None
        self._compared: tuple[int, NDArray[np.int16]] | None = None
        """When frames were compared the last time, and what was shown then."""
        self._lines: list[NDArray[np.float64]] = []
        """The largest mean luma of each row and of each column."""

    def add(self, time_ms: int, planes: NDArray[np.uint8]) -> None:
        """planes (3, height, width), small: luma and both chromas, of 0 to 255."""
        if (planes[0] <= BLACK_LEVEL).mean() >= BLACK_SHARE:
            self._black_from = time_ms if self._black_from is None else self._black_from
        else:
            self._end_black(time_ms)
        self._show_until(time_ms)
        self._shown = planes.astype(np.int16)
        self._compared = self._compared or (time_ms, self._shown)

    def add_lines(self, luma_HW: NDArray[np.uint8]) -> None:
        """For the bars, at intervals: luma of 0 to 255. At another size, the bars of the sizes before are forgotten."""
        lines = [luma_HW.mean(axis=1), luma_HW.mean(axis=0)]
        if tuple(map(len, self._lines)) != luma_HW.shape:
            self._lines = []
        self._lines = [np.maximum(*pair) for pair in zip(self._lines, lines, strict=True)] if self._lines else lines

    def finish(self, end_ms: int) -> None:
        self._end_black(end_ms)
        self._show_until(end_ms)
        if self._compared and end_ms > self._compared[0]:
            self._compare(end_ms)

    def _show_until(self, time_ms: int) -> None:
        """Compare what is shown every STILL_MS before this time: once, and the rest repeats it."""
        steps = (time_ms - 1 - self._compared[0]) // STILL_MS if self._compared else 0
        if self._compared and self._shown is not None and steps > 0:
            self._compare(self._compared[0] + STILL_MS)
            self._compare(self._compared[0] + (steps - 1) * STILL_MS)

    def _compare(self, time_ms: int) -> None:
        assert self._compared and self._shown is not None
        if np.abs(self._shown - self._compared[1]).mean() * len(self._shown) < STILL:
            self.still_ms += time_ms - self._compared[0]
        self._compared = time_ms, self._shown

    def bars(self) -> tuple[float, float, float, float]:
        """(left, top, right, bottom) as shares of the width or height; 0 if all is black."""
        if not self._lines or any((lines <= BAR_LEVEL).all() for lines in self._lines):
            return 0.0, 0.0, 0.0, 0.0
        (top, bottom), (left, right) = (
            (float((lines > BAR_LEVEL).argmax() / len(lines)), float((lines[::-1] > BAR_LEVEL).argmax() / len(lines)))
            for lines in self._lines
        )
        return left, top, right, bottom

    def _end_black(self, time_ms: int) -> None:
        if self._black_from is not None and time_ms - self._black_from >= BLACK_MS:
            self.black_ms.append((self._black_from, time_ms))
        self._black_from = None
