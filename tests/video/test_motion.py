"""Motion of shots whose speed is known, through FFmpeg's encoder."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from scipy.stats import spearmanr

from curate.codec.video.motion import Reencoder
from curate.video.look import facts
from curate.video.motion import Motion, Moved
from tests.video.make_shots import Frame, encoded, luma, shot

FIELDS = ("w", "h", "dst_x", "dst_y", "motion_x", "motion_y", "motion_scale")


def moved(frames: Sequence[Frame], fps: float = 10) -> Moved:
    coder, motion = Reencoder(), Motion()
    for frame in frames:
        motion.add(coder.vectors(luma(frame)), frame.shape[1], frame.shape[0], 1 / fps)
    return motion.result()


def blocks(velocity: object, width: int = 320, height: int = 160) -> np.ndarray:
    """Vectors of all 16 x 16 blocks; velocity(x, y) in pixels."""
    made = [(16, 16, x + 8, y + 8, *velocity(x, y), 1) for y, x in product(range(0, height, 16), range(0, width, 16))]  # type: ignore[operator]
    return np.array(made, [(name, "i4") for name in FIELDS])


def test_the_mean_is_the_speed_of_a_pan() -> None:
    speeds = (0.02, 0.05, 0.1, 0.2, 0.4)
    found = [moved(shot(seed, "pan", 2, speed, fps=10)).mean for speed in speeds for seed in (1, 2, 3)]
    assert found == pytest.approx([100 * speed for speed in speeds for _ in range(3)], rel=0.1)
    assert spearmanr(found, np.repeat(speeds, 3)).statistic >= 0.98
    zooms = [moved(shot(4, "zoom", 2, speed, fps=10)).mean for speed in (0.05, 0.1, 0.2, 0.4)]
    assert zooms == sorted(zooms)


def test_nothing_moves_in_a_still() -> None:
    still = moved(shot(5, "static", 2, fps=10))
    assert still.mean == pytest.approx(0, abs=0.3) and still.camera_share is None
    assert moved([]) == moved(shot(5, "static", 2, fps=10)[:1]) == Moved()


def test_a_cut_is_not_motion() -> None:
    apart = [moved(shot(seed, "pan", 2, 0.05, fps=10)) for seed in (6, 7)]
    joined = moved([*shot(6, "pan", 2, 0.05, fps=10), *shot(7, "pan", 2, 0.05, fps=10)])
    assert joined.mean == pytest.approx(np.mean([one.mean for one in apart]), rel=0.05)


def test_motion_does_not_depend_on_the_encoding() -> None:
    frames = shot(8, "pan", 1.5, 0.05, (480, 270))
    ways = {
        "libx264": {"preset": "veryfast", "g": "15"},
        "libx265": {"preset": "ultrafast", "x265-params": "log-level=none:pools=none:keyint=15:min-keyint=15"},
        "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8", "b": "1M", "g": "15"},
        "libsvtav1": {"preset": "11", "svtav1-params": "lp=1", "g": "15"},
        "mpeg4": {"qscale": "3", "flags": "+qscale", "g": "15"},
        "mpeg2video": {"qscale": "3", "flags": "+qscale", "g": "15"},
    }
    found = {codec: facts(encoded(frames, codec, "matroska", **options)) for codec, options in ways.items()}
    means = np.array([one.motion_mean for one in found.values()])
    assert means.std() / means.mean() <= 0.06
    assert means == pytest.approx(np.full(6, 5.0), rel=0.1)
    assert {one.i_frames for one in found.values()} == {3}
    by_source = {codec: one.source_motion_mean for codec, one in found.items()}
    assert by_source["libvpx-vp9"] is by_source["libsvtav1"] is by_source["libx265"] is None
    assert all(by_source[codec] for codec in ("libx264", "mpeg4", "mpeg2video"))


def test_the_camera_explains_a_pan_and_a_zoom_but_no_object() -> None:
    shares = []
    for velocity in (
        lambda x, y: (7, -3),
        lambda x, y: ((x - 152) // 8, (y - 72) // 8),
        lambda x, y: (20, 0) if 128 <= x < 160 and 64 <= y < 96 else (0, 0),
    ):
        motion = Motion()
        motion.add(blocks(velocity), 320, 160, 0.1)
        shares.append(motion.result().camera_share)
    assert shares[:2] == pytest.approx([1, 1], abs=0.01) and shares[2] < 0.3


def test_speeds_are_of_width_and_time_and_blocks_count_by_what_is_inside() -> None:
    motion = Motion()
    motion.add(blocks(lambda x, y: (16, 12) if x < 160 else (0, 0)), 320, 160, 0.5)
    half = motion.result()  # 20 of 320 pixels in half a second: 12.5 % a second
    assert (half.mean, half.variance, half.peak) == pytest.approx((6.25, 6.25**2, 6.25))
    cut_off = Motion()
    cut_off.add(blocks(lambda x, y: (16, 0) if x >= 304 else (0, 0)), 312, 160, 1.0)
    assert cut_off.result().mean == pytest.approx(100 * 16 / 312 * 8 / 312)
    few = Motion()
    few.add(blocks(lambda x, y: (9, 9))[:50], 320, 160, 0.1)
    assert few.frames == 0


def test_the_peak_is_of_a_second() -> None:
    motion = Motion()
    for pixels in [64] + [0] * 30 + [32] * 10 + [0] * 30 + [64]:
        motion.add(blocks(lambda x, y, by=pixels: (by, 0)), 320, 160, 0.1)
    assert motion.result().peak == pytest.approx(100)
    early = Motion()
    for pixels in [64] + [0] * 50:
        early.add(blocks(lambda x, y, by=pixels: (by, 0)), 320, 160, 0.1)
    assert early.result().peak == pytest.approx(20)


def test_measures_count_by_their_time() -> None:
    motion = Motion()
    for pixels, seconds in ((0, 4.9), (64, 0.1), (0, 5.0)):
        motion.add(blocks(lambda x, y, by=pixels: (by, 0)), 320, 160, seconds)
    assert (motion.result().mean, motion.result().peak) == pytest.approx((2, 20))
