from __future__ import annotations

import numpy as np
import pytest

from curate.video.blank import Blank
from tests.video.make_shots import Frame, boxed, luma, shot, small


def seen(frames: list[Frame], fps: float = 25) -> Blank:
    blank = Blank()
    for number, frame in enumerate(frames):
        blank.add(round(number * 1000 / fps), small(frame))
        blank.add_lines(luma(frame))
    blank.finish(round(len(frames) * 1000 / fps))
    return blank


def test_black_is_found_to_the_frame() -> None:
    frames = shot(1, "pan", 4, fps=25)
    black = np.random.default_rng(0).integers(0, 12, frames[0].shape, dtype=np.uint8)
    for first, stop in ((0, 10), (40, 41), (60, 70), (90, 100)):
        frames[first:stop] = [black] * (stop - first)
    assert seen(frames).black_ms == [(0, 400), (2400, 2800), (3600, 4000)]  # one frame is not a stretch


def test_a_dark_scene_with_a_lamp_is_not_black() -> None:
    frame = np.full((180, 320, 3), 6, np.uint8)
    frame[40:80, 100:150] = 180
    assert seen([frame] * 20).black_ms == []


def test_stillness_is_a_share_of_time() -> None:
    moving, still = shot(2, "pan", 2, 0.2, fps=25), shot(2, "static", 4, fps=25)
    noise = np.random.default_rng(1)
    noisy = [np.clip(frame + noise.normal(0, 1.5, frame.shape), 0, 255).astype(np.uint8) for frame in still]
    assert seen([*moving, *noisy]).still_ms == pytest.approx(4000, abs=500)
    assert seen(shot(2, "zoom", 4, 0.1, fps=25)).still_ms == 0
    assert [seen(still[:count]).still_ms for count in (1, 12, 22, 100)] == [40, 480, 880, 4000]


@pytest.mark.parametrize("bars", [(0, 0, 0, 0), (0, 20, 0, 20), (32, 0, 48, 0), (16, 9, 16, 9)])
def test_bars_are_shares_of_the_sides(bars: tuple[int, int, int, int]) -> None:
    left, top, right, bottom = bars
    frames = [boxed(frame, *bars) for frame in shot(3, "pan", 1, 0.2, fps=25)]
    frames[5] = np.zeros_like(frames[5])
    assert seen(frames).bars() == pytest.approx((left / 320, top / 180, right / 320, bottom / 180), abs=0.006)


def test_black_has_no_bars() -> None:
    assert seen([np.zeros((180, 320, 3), np.uint8)] * 9).bars() == (0, 0, 0, 0)
    assert Blank().bars() == (0, 0, 0, 0)
