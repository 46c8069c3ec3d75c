from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from curate.video.hashes import FrameHashes
from curate.video.look import facts
from tests.video.make_shots import Frame, encoded, shot, small

NEAR = 20


def of(frames: Sequence[Frame], times_ms: Sequence[int] | None = None, end_ms: int | None = None) -> list[bytes | None]:
    hashes = FrameHashes()
    for number, frame in enumerate(frames):
        hashes.add(times_ms[number] if times_ms else round(number * 1000 / 30), small(frame))
    hashes.finish(round(len(frames) * 1000 / 30) if end_ms is None else end_ms)
    return hashes.hashes


def distances(a: Sequence[bytes | None], b: Sequence[bytes | None]) -> np.ndarray:
    """Bits from each hash of a to the nearest of b."""
    bits = [
        np.unpackbits(np.frombuffer(b"".join(h for h in some if h), np.uint8).reshape(-1, 32), axis=1)
        for some in (a, b)
    ]
    return (bits[0][:, None] != bits[1][None]).sum(-1).min(1)


SIZE = 160, 90
FILM = [*shot(1, "pan", 4, 0.1, SIZE), *shot(2, "zoom", 3, 0.2, SIZE), *shot(3, "shake", 3, 0.05, SIZE)]
HASHES = cache(lambda: of(FILM))


def test_there_are_two_hashes_a_second_of_two_seconds_each() -> None:
    lengths = [len(of(FILM[:count])) for count in (300, 75, 60, 59, 30, 1, 0)]
    assert lengths == [16, 2, 1, 1, 1, 1, 0]  # two of the 17 are the same
    assert all(len(found or b"") == 32 for found in HASHES())


def test_uneven_and_repeated_frames_do_not_matter() -> None:
    times = [round(number * 1000 / 30) for number in range(300)]
    kept = [number for number in range(300) if number % 7 not in (2, 3)]
    assert distances(HASHES(), of([FILM[n] for n in kept], [times[n] for n in kept], 10_000)).max() <= 4
    slides = of([FILM[0], FILM[299]], [0, 5_000], 10_000)
    assert slides == of([FILM[0]] * 10 + [FILM[299]] * 10, [500 * number for number in range(20)], 10_000)
    assert len(slides) == 5  # one of each slide, and three of both


def test_what_does_not_change_costs_nothing() -> None:
    days = 10**12
    began = time.process_time()
    found = of([FILM[0], FILM[299]], [0, days], 2 * days)
    assert time.process_time() - began < 1
    assert [found[0], found[-1]] == [of([FILM[0]])[0], of([FILM[299]])[0]] and len(found) <= 5


def test_frames_without_detail_have_no_hash() -> None:
    grey = np.full((180, 320, 3), 90, np.uint8)
    assert of([grey] * 90) == [None]


@pytest.mark.parametrize("how", ["encoded", "resized", "trimmed", "all"])
def test_copies_share_hashes(how: str) -> None:
    frames = FILM[37:-20] if how in ("trimmed", "all") else FILM
    size = (96, 54) if how in ("resized", "all") else None
    copy = encoded(frames, size=size, qscale="10" if how in ("encoded", "all") else "3", flags="+qscale")
    bits = distances([h and bytes.fromhex(h) for h in facts(copy).frame_hashes], HASHES())
    assert (bits <= NEAR).mean() >= 0.7


def test_other_videos_share_none() -> None:
    other = [*shot(4, "pan", 4, 0.1, SIZE), *shot(5, "zoom", 3, 0.2, SIZE)]
    assert distances(of(other), HASHES()).min() > 2 * NEAR
