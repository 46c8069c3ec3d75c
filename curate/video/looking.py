"""What a limited child does for `video.look`: decodes a video once, and shows each frame to all that look at it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from curate.codec.video import decode
from curate.codec.video.child import ready as ready  # called when the process starts
from curate.codec.video.motion import Reencoder, Vectors, export_vectors
from curate.codec.video.planes import STRETCHED, Planes
from curate.codec.video.source import Input, opened
from curate.video.blank import Blank
from curate.video.cuts import SIZE, Cuts
from curate.video.facts import Facts
from curate.video.hashes import FrameHashes
from curate.video.motion import Motion

LONGER_SIDE, LEAST_SIDE = 320, 16
"""Side of the luma that motion is measured on. Small videos are not enlarged, and very narrow ones not measured."""
TICK_MS = 100
"""Between two measures of motion."""
MOST_LIGHT = 6.0
"""Levels that the mean luma may change in between: flashes and fades look like motion to the encoder."""
CUT_MS = 2000
"""After so long, cuts are known."""
LONG_MS, REPEAT_MS = 500, 100
"""A frame that is shown for longer is shown again, so long before the next one: it may be stored once or often."""
PART_BYTES = 4 << 20


def look(source: Input, max_corrupt: float) -> Iterator[bytes]:
    """JSON of Facts, in parts. Raises Undecodable."""
    cuts, blank, hashes, encoded = Cuts(), Blank(), FrameHashes(), Motion(camera=False)
    speed, tally, size = _Speed(cuts.cuts_ms), decode.Tally(), (0, 0)
    with opened(source) as video:
        export_vectors(video.stream.codec_context)
        for picture in _repeated(decode.pictures(video, tally)):
            small, size = small_planes(picture.planes), picture.planes.size
            cuts.add(picture.ms, small)
            blank.add(picture.ms, small)
            hashes.add(picture.ms, small)
            if len(picture.vectors):  # not turned; their speed is of the upright width
                height, width = picture.planes.planes[0].shape
                encoded.add(picture.vectors, width, height, size[0] / width)
            if speed.due(picture.ms):
                luma = small_luma(picture.planes)
                blank.add_lines(luma)
                speed.add(picture.ms, luma)
    reason = tally.reason(max_corrupt)
    if reason:
        raise reason
    cuts.finish()
    speed.settle(tally.end_ms)
    for one in (blank, hashes):
        one.finish(tally.end_ms)
    moved, source_moved = speed.motion.result(), encoded.result()
    facts = Facts(
        width=size[0],
        height=size[1],
        size_changes=tally.sizes,
        duration_ms=tally.end_ms,
        frames=tally.frames,
        i_frames=tally.i_frames,
        corrupt_frames=tally.corrupt,
        missing_frames=tally.missing,
        cuts_ms=cuts.cuts_ms,
        flashes=len(cuts.flashes_ms),
        black_ms=[ms for stretch in blank.black_ms for ms in stretch],
        still_share=blank.still_ms / tally.end_ms if tally.end_ms else None,
        bars=list(blank.bars()),
        motion_mean=moved.mean,
        motion_variance=moved.variance,
        motion_peak=moved.peak,
        camera_share=moved.camera_share,
        source_motion_mean=source_moved.mean,
        source_motion_variance=source_moved.variance,
        frame_hashes=[found.hex() if found else None for found in hashes.hashes],
    )
    data = json.dumps(asdict(facts)).encode()
    for start in range(0, len(data), PART_BYTES):
        yield data[start : start + PART_BYTES]


def _repeated(pictures: Iterator[decode.Picture]) -> Iterator[decode.Picture]:
    before: decode.Picture | None = None
    for picture in pictures:
        if before and picture.ms - before.ms > LONG_MS:
            yield replace(before, ms=picture.ms - REPEAT_MS, vectors=before.vectors[:0])
        yield picture
        before = picture


class _Speed:
    """Motion between luma planes every TICK_MS, except across cuts, which are known some time later."""

    def __init__(self, cuts_ms: list[int]) -> None:
        self.motion = Motion()
        self._cuts_ms = cuts_ms
        self._waiting: deque[tuple[int, int, Vectors, tuple[int, ...]]] = deque()
        self._encoder = Reencoder()
        self._last: tuple[int, tuple[int, ...], float] | None = None
        self._next = 0

    def due(self, time_ms: int) -> bool:
        return time_ms >= self._next

    def add(self, time_ms: int, luma: NDArray[np.uint8]) -> None:
        self._next = (time_ms // TICK_MS + 1) * TICK_MS
        luma = luma[: luma.shape[0] // 2 * 2, : luma.shape[1] // 2 * 2]
        if min(luma.shape) < LEAST_SIDE:
            return
        if self._last and self._last[1] != luma.shape:
            self._encoder, self._last = Reencoder(), None
        vectors, light = self._encoder.vectors(luma), float(luma.mean())
        if self._last and abs(light - self._last[2]) <= MOST_LIGHT:
            self._waiting.append((self._last[0], time_ms, vectors, luma.shape))
        self._last = time_ms, luma.shape, light
        self.settle(time_ms - CUT_MS)

    def settle(self, before_ms: int) -> None:
        """Count the motion until then."""
        while self._waiting and self._waiting[0][1] <= before_ms:
            start, stop, vectors, (height, width) = self._waiting.popleft()
            if not any(start < cut <= stop for cut in self._cuts_ms[-20:]):
                self.motion.add(vectors, width, height, (stop - start) / 1000)


def small_planes(planes: Planes) -> NDArray[np.uint8]:
    """(3, 27, 48): luma and chromas of 0 to 255 of the upright frame, of any shape."""
    size = SIZE if planes.rotation % 180 == 0 else SIZE[::-1]
    small = [_resized(plane, size) for plane in planes.planes]
    if len(small) == 1:
        luma, blue, red = small[0], *(np.full_like(small[0], 128),) * 2
    elif planes.space == 0:
        luma, blue, red = np.moveaxis(np.asarray(Image.fromarray(np.stack(small, -1)).convert("YCbCr")), -1, 0)
    else:
        luma, blue, red = small
    if not planes.full:
        luma, blue, red = STRETCHED[luma], _WIDENED[blue], _WIDENED[red]
    return np.rot90(np.stack([luma, blue, red]), planes.rotation // 90, (1, 2))


def small_luma(planes: Planes) -> NDArray[np.uint8]:
    """Luma of 0 to 255 of the upright frame, with a longer side of at most LONGER_SIDE."""
    plane = planes.planes[1 if planes.space == 0 and len(planes.planes) == 3 else 0]  # green, of RGB
    height, width = plane.shape
    longer = max(height, width)
    if longer > LONGER_SIDE:
        plane = _resized(plane, (max(1, width * LONGER_SIDE // longer), max(1, height * LONGER_SIDE // longer)))
    return np.rot90(plane if planes.full else STRETCHED[plane], planes.rotation // 90)


def _resized(plane: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """By Pillow, whose integers are the same on every processor."""
    return np.asarray(Image.fromarray(plane).resize(size, Image.Resampling.BOX, reducing_gap=1.0))


_WIDENED = np.clip(np.rint((np.arange(256) - 128.0) * 255 / 224 + 128), 0, 255).astype(np.uint8)
"""Chroma of limited range -> full."""
