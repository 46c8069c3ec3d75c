"""Finds cuts, dissolves and flashes in a stream of small frames.

A cut is a frame that differs from the one before by much more than its neighbours do (as in PySceneDetect's
AdaptiveDetector). If the image soon returns to what it was, that was a flash. In a dissolve no single frame differs
much; there the frame halfway is the mean of the frames at both ends, which motion does not produce.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SIZE = 48, 27
"""Width and height of the frames, for videos of any shape."""
LEAST_CHANGE = 12.0
"""The least change of a cut: mean absolute differences of luma and both chromas, added, in levels of 8 bits."""
RATIO = 3.0
"""How much a cut exceeds the mean change of the frames around it."""
NEIGHBOURS = 2
STILL = 0.2
"""A frame that changes less repeats the one before, as where 24 frames a second are shown at 60."""
FLASH_MS = 300
SHOT_MS = 300
"""The least time between two cuts."""
SAMPLE_MS = 80
SPANS = 4, 8, 16
"""Lengths of dissolves that are looked for, in samples."""
MOST_RESIDUAL = 0.17
"""How far the middle of a dissolve is from the mean of its ends: squared, relative to the difference of the ends."""
DIP = 0.85
"""Variance of luma in the middle of a dissolve, relative to the mean of its ends."""
MOST_CORRELATION = 0.75
"""Correlation of luma at both ends of a dissolve; more is the same scene in other light."""
SAME = 0.95
"""Correlation of luma before and after a cut, relative to that of the two frames before it; more is a change of light,
or a shake."""
BAR_LEVEL = 16
"""Luma that no pixel of a bar exceeds."""
LEAST_LINES = 8

Small = NDArray[np.int16]
"""(3, height, width): luma and chromas."""


class _Sample(NamedTuple):
    time_ms: int
    pixels: Small


class _Jump(NamedTuple):
    """From one frame to the next: perhaps a cut, or the start of a flash."""

    number: int
    """Number of the second frame; 0 is the video's first."""
    time_ms: int
    gap_ms: int
    before: Small
    after: Small
    change: float
    steady: float = 1.0
    """Correlation of luma of the two frames before."""

    @property
    def reach_ms(self) -> int:
        """How far its neighbours may be: others repeat the frame before them."""
        return max(FLASH_MS, 3 * self.gap_ms)


class _Dissolve(NamedTuple):
    time_ms: int
    start_ms: int
    stop_ms: int
    strength: float


class Cuts:
    """Feed frames in order with `add`, then call `finish`. Memory does not grow, except for the times found."""

    def __init__(self) -> None:
        self.cuts_ms: list[int] = []
        """Ascending: the first frame after each cut, and the middle of each dissolve."""
        self.flashes_ms: list[int] = []
        self._last: Small | None = None
        self._last_ms = self._number = 0
        self._recent: deque[_Jump] = deque(maxlen=2 * NEIGHBOURS + 1)
        self._unjudged: deque[_Jump] = deque()
        self._samples: deque[_Sample] = deque(maxlen=max(SPANS) + 1)
        self._jumps: list[_Jump] = []
        self._dissolve: _Dissolve | None = None
        self._calm_from_ms = -1
        """The end of the last flash: no jump until then is a cut."""

    def add(self, time_ms: int, pixels: NDArray[np.uint8]) -> None:
        """pixels (3, 27, 48): luma and both chromas."""
        small = pixels.astype(np.int16)
        if not self._samples or time_ms - self._samples[-1].time_ms >= SAMPLE_MS:
            self._samples.append(_Sample(time_ms, small))
            self._look_for_dissolve()
        if self._last is None:
            self._last = small
        else:
            self._number += 1
            change = difference(self._last, small)
            if change >= STILL:
                self._returns(time_ms, small)
                jump = _Jump(self._number, time_ms, time_ms - self._last_ms, self._last, small, change)
                self._recent.append(jump)
                if change >= LEAST_CHANGE:
                    self._unjudged.append(jump)
                self._last = small
        self._last_ms = time_ms
        self._settle(time_ms)

    def finish(self) -> None:
        self._settle(1 << 62)

    def _judge(self, jump: _Jump) -> None:
        """Whether a change exceeds those around it."""
        if jump.time_ms <= self._calm_from_ms:
            return
        near = [j.change for j in self._recent if j is not jump and abs(j.time_ms - jump.time_ms) <= jump.reach_ms]
        frames = min(NEIGHBOURS, jump.number - 1) + NEIGHBOURS
        near = sorted([*near, *[0.0] * (frames - len(near))])[: 2 * NEIGHBOURS - 1]  # without the other end of a flash
        if jump.change * len(near) >= RATIO * sum(near):
            ahead = [other for other in self._recent if other.number == jump.number - 1]
            steady = min((_likeness(other) for other in ahead), default=1.0)
            self._jumps.append(jump._replace(steady=steady))
            for later in [other for other in self._recent if other.number > jump.number]:
                self._returns(later.time_ms, later.after)

    def _returns(self, time_ms: int, small: Small) -> None:
        """A jump was a flash if a frame soon after it is as the one before it."""
        for number, jump in enumerate(self._jumps):
            if 0 < time_ms - jump.time_ms <= FLASH_MS and difference(jump.before, small) < jump.change / 2:
                self.flashes_ms.append(jump.time_ms)
                self._jumps = self._jumps[:number]
                self._calm_from_ms = time_ms
                return

    def _settle(self, time_ms: int) -> None:
        """Judge changes once what follows is known, and accept what nothing later can alter."""
        while self._unjudged:
            jump = self._unjudged[0]
            follow = sum(other.number > jump.number for other in self._recent)
            if follow < NEIGHBOURS and time_ms - jump.time_ms <= jump.reach_ms:
                break
            self._judge(self._unjudged.popleft())
        while self._jumps and time_ms - self._jumps[0].time_ms > FLASH_MS:
            jump = self._jumps.pop(0)
            if _likeness(jump) < SAME * jump.steady:
                self._accept(jump.time_ms)
        found = self._dissolve
        if found and time_ms - found.stop_ms > SAMPLE_MS * max(SPANS):
            self._dissolve = None
            self._accept(found.time_ms)

    def _accept(self, time_ms: int) -> None:
        if all(abs(time_ms - cut) >= SHOT_MS for cut in self.cuts_ms[-3:]):
            self.cuts_ms.append(time_ms)
            self.cuts_ms.sort()

    def _look_for_dissolve(self) -> None:
        last = self._samples[-1]
        for span in SPANS:
            if len(self._samples) <= span:
                return
            first, middle = (self._samples[-1 - back] for back in (span, span // 2))
            events = *self.cuts_ms[-2:], *self.flashes_ms[-2:], *(jump.time_ms for jump in self._jumps)
            if last.time_ms - first.time_ms > 2 * SAMPLE_MS * span or any(ms > first.time_ms for ms in events):
                continue
            change = difference(first.pixels, last.pixels)
            if change < LEAST_CHANGE or (self._dissolve and change <= self._dissolve.strength):
                continue
            inside = _inside(first.pixels[0], last.pixels[0])
            a, m, b = (f.pixels[:, *inside].astype(np.float32) for f in (first, middle, last))
            residual = np.square(m - (a + b) / 2).sum() / max(1.0, np.square(b - a).sum())
            dips = m[0].var() < DIP * (a[0].var() + b[0].var()) / 2
            if dips and residual < MOST_RESIDUAL and correlation(a[0], b[0]) < MOST_CORRELATION:
                self._dissolve = _Dissolve(middle.time_ms, first.time_ms, last.time_ms, change)


def difference(a: Small, b: Small) -> float:
    """Mean absolute difference of each plane, added."""
    return float(np.abs(a - b).sum(dtype=np.int64)) / (a.shape[1] * a.shape[2])


def _likeness(jump: _Jump) -> float:
    inside = _inside(jump.before[0], jump.after[0])
    return correlation(jump.before[0][inside], jump.after[0][inside])


def _inside(a: NDArray[np.int16], b: NDArray[np.int16]) -> tuple[slice, slice]:
    """Rows and columns within the bars that two frames share. Bars would make any two look alike."""
    light = np.maximum(a, b) > BAR_LEVEL
    return _between(light.any(1)), _between(light.any(0))


def _between(light: Any) -> slice:
    """Without the line beside a bar, too, which may be partly bar."""
    lines = np.flatnonzero(light)
    if len(lines) < LEAST_LINES:
        return slice(None)
    return slice(lines[0] + (lines[0] > 0), lines[-1] + 1 - (lines[-1] + 1 < len(light)))


def correlation(a: NDArray[Any], b: NDArray[Any]) -> float:
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).sum() / max(1e-6, float(np.sqrt(np.square(a).sum() * np.square(b).sum()))))
