"""Motion vectors of frames, as FFmpeg's own MPEG-4 encoder finds them: in the same way for videos of any codec.

The vectors that a video was encoded with depend on its encoder: those of the same pan differ by a factor of two, and
some codecs have none.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal

import av
import numpy as np
from av.sidedata.sidedata import SideDataContainer
from av.video.codeccontext import VideoCodecContext
from numpy.typing import NDArray

Vectors = NDArray[Any]
"""AVMotionVector of FFmpeg, one per block: `w`, `h`, `dst_x`, `dst_y` (its centre), `motion_x`, `motion_y` …"""
_ENCODER = {"qmin": "4", "qmax": "4", "g": "600", "bf": "0", "sc_threshold": "1000000000", "flags": "+bitexact"}


class Reencoder:
    """Finds the vectors from each of a sequence of planes to the one before."""

    def __init__(self) -> None:
        self._coders: tuple[VideoCodecContext, VideoCodecContext] | None = None
        self._count = 0

    def vectors(self, luma_HW: NDArray[np.uint8]) -> Vectors:
        """luma: all of one size, with even sides. The first has no vectors."""
        height, width = luma_HW.shape
        if self._coders is None:
            self._coders = _coder("w", width, height, _ENCODER), _coder("r", width, height, {})
            export_vectors(self._coders[1])
        encoder, decoder = self._coders
        yuv = np.concatenate([luma_HW, np.full((height // 2, width), 128, np.uint8)])
        frame = av.VideoFrame.from_ndarray(yuv, format="yuv420p")
        frame.pts, self._count = self._count, self._count + 1
        (decoded,) = (shown for packet in encoder.encode(frame) for shown in decoder.decode(packet))
        return vectors(decoded)


def export_vectors(decoder: VideoCodecContext) -> None:
    """Have a decoder, before its first frame, give frames their vectors."""
    decoder.options = {**decoder.options, "flags2": "+export_mvs"}


def vectors(frame: av.VideoFrame) -> Vectors:
    """Vectors of a frame after `export_vectors`; none of a key frame, and if the codec gives none."""
    # frame.side_data would keep its frame, with FFmpeg's buffers, until garbage is collected: what decoders show of
    # damaged frames would depend on that.
    try:
        data: Any = SideDataContainer(frame).get("MOTION_VECTORS")  # type: ignore[call-arg]  # the stub lacks it
    except ValueError:  # beside other data of a kind that PyAV does not know, such as that of spatial videos
        return _NONE
    return _NONE if data is None else data.to_ndarray().copy()


def _coder(mode: Literal["r", "w"], width: int, height: int, options: dict[str, str]) -> VideoCodecContext:
    coder = VideoCodecContext.create("mpeg4", mode)
    coder.width, coder.height, coder.thread_count, coder.options = width, height, 1, options
    if mode == "w":
        coder.pix_fmt, coder.time_base, coder.framerate = "yuv420p", Fraction(1, 10), Fraction(10)
    return coder


_FIELDS = "w", "h", "dst_x", "dst_y", "motion_x", "motion_y", "motion_scale"
_NONE: Vectors = np.empty(0, [(name, "i4") for name in _FIELDS])
