from __future__ import annotations

import pickle
import random
from collections.abc import Sequence

import numpy as np
import pytest

from curate.video.cuts import Cuts
from tests.video.make_shots import Film, Frame, boxed, film, lighter, shot, small

MOVES = ("static", "pan", "zoom", "shake")


def seen(frames: Sequence[Frame], fps: float = 30, times_ms: Sequence[int] | None = None) -> Cuts:
    cuts = Cuts()
    for number, frame in enumerate(frames):
        cuts.add(times_ms[number] if times_ms else round(number * 1000 / fps), small(frame))
    cuts.finish()
    return cuts


def numbers(cuts: Cuts, fps: float = 30) -> list[int]:
    return [round(ms * fps / 1000) for ms in cuts.cuts_ms]


def random_film(seed: int, joints: Sequence[str], bars: bool) -> Film:
    choose = random.Random(seed)
    shots = [
        shot(
            seed * 10 + place, choose.choice(MOVES), choose.uniform(1.3, 2.5), choose.choice([0.02, 0.1, 0.2]), (96, 54)
        )
        for place in range(4)
    ]
    made = film(shots, [choose.choice(joints) for _ in shots[1:]], choose.randint(9, 30))
    return Film([boxed(frame, 0, 8, 0, 8) for frame in made.frames], made.changes) if bars else made


def score(joints: Sequence[str], films: int, bars: bool = False) -> float:
    """F1 of what is found in random films."""
    hits = found = true = 0
    for seed in range(films):
        made = random_film(seed, joints, bars)
        cuts = numbers(seen(made.frames))
        hits += sum(any(first - 1 <= cut <= last + 1 for cut in cuts) for first, last in made.changes)
        found, true = found + len(cuts), true + len(made.changes)
    return 2 * hits / (found + true)


def test_cuts_are_found_to_the_frame() -> None:
    made = film([shot(1, "pan"), shot(2), shot(3, "zoom"), shot(4, "shake")], ["cut"] * 3)
    assert numbers(seen(made.frames)) == [first for first, _ in made.changes]
    assert score(["cut"], 8) >= 0.95


@pytest.mark.parametrize("joint", ["dissolve", "fade"])
@pytest.mark.parametrize("bars", [False, True])
def test_dissolves_and_fades_are_found(joint: str, bars: bool) -> None:
    assert score([joint], 4, bars) >= 0.8


@pytest.mark.parametrize("kind", MOVES)
@pytest.mark.parametrize("speed", [0.05, 0.4])
def test_motion_is_not_a_cut(kind: str, speed: float) -> None:
    assert seen(shot(5, kind, 2.2, speed, (96, 54))).cuts_ms == []  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["static", "pan"])
def test_a_flash_is_not_a_cut(kind: str) -> None:
    frames = shot(6, kind, 3, 0.1)  # type: ignore[arg-type]
    for first, length in ((20, 1), (50, 3)):
        frames[first : first + length] = [lighter(frame) for frame in frames[first : first + length]]
    cuts = seen(frames)
    assert (cuts.cuts_ms, cuts.flashes_ms) == ([], [667, 1667])


def test_a_change_of_light_is_not_a_cut() -> None:
    frames = shot(7, "pan", 3, 0.02)
    assert seen([*frames[:45], *(lighter(frame, 20) for frame in frames[45:])]).cuts_ms == []
    fast = shot(7, "pan", 2, 0.45, (96, 54), 12)
    assert seen([*fast[:12], *(lighter(frame // 2, 0) for frame in fast[12:])], 12).cuts_ms == []


def test_repeated_frames_do_not_matter() -> None:
    made = film([shot(8, "pan", speed=0.3), shot(9, "shake")], ["cut"])
    at_60 = [frame for frame in made.frames[::3] for _ in range(6)]
    assert numbers(seen(at_60, 60), 30) == [60]
    slides = [frame for seed in range(4) for frame in shot(seed, seconds=0.1, fps=10) * 20]
    assert seen(slides, 10).cuts_ms == [2000, 4000, 6000]


def test_times_may_be_uneven() -> None:
    made = film([shot(10, "pan"), shot(11, "pan")], ["cut"])
    times = np.cumsum(random.Random(1).choices([10, 33, 90], k=len(made.frames))).tolist()
    assert seen(made.frames, times_ms=times).cuts_ms == [times[60]]


def test_short_and_empty_videos_have_no_cut() -> None:
    for count in range(6):
        assert seen(shot(12, "pan", 1, 0.1)[:count]).cuts_ms == []


def test_memory_does_not_grow() -> None:
    frames = [small(frame) for frame in shot(13, "shake", 3, 0.2, (96, 54))]
    cuts, sizes = Cuts(), []
    for number in range(1200):
        cuts.add(number * 33, frames[number % 60])
        sizes.append(len(pickle.dumps(cuts)) if number in (300, 1199) else 0)
    assert sizes[-1] <= sizes[300] * 1.1
