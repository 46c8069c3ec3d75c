"""Compares frames at times with those of a pass over the whole video."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from curate.codec.video import decode, exact
from curate.codec.video.decode import Picture, Tally
from curate.codec.video.source import opened
from curate.core.errors import Undecodable
from curate.core.reader import Reader


def linear(data: bytes, tally: Tally | None = None) -> list[Picture]:
    with opened(Reader(data)) as source:
        return list(decode.pictures(source, tally))


def at(pictures: Sequence[Picture], ms: int) -> Picture:
    """By the definition: the last that is not after the time, and the first before it."""
    return [pictures[0], *(picture for picture in pictures if picture.ms <= ms)][-1]


def same(one: Picture, other: Picture) -> bool:
    planes = zip(one.planes.planes, other.planes.planes, strict=True)
    return (one.ms, one.corrupt) == (other.ms, other.corrupt) and all(np.array_equal(a, b) for a, b in planes)


def check(data: bytes, seed: object, count: int = 8) -> str:
    """Compare the frames at some times; the reason if there are none. Raises AssertionError if one is wrong, or missing
    without a reason."""
    rng, every, tally, failed = random.Random(f"{seed}"), list[Picture](), Tally(), ""
    try:
        with opened(Reader(data)) as source:
            for picture in decode.pictures(source, tally):
                every.append(picture)
    except Undecodable as error:
        failed = error.reason
    end = every[-1].ms if every else 0
    # After an error, it is not known until when the last frame is shown.
    times = sorted(rng.randrange(max(1, end if failed else end + 300)) for _ in range(count))
    found, reason = list[Picture](), ""
    try:
        for picture in exact.shown(Reader(data), times):
            found.append(picture)
    except Undecodable as error:
        reason = error.reason
    if reason:
        untimed = tally.untimed and reason == "no_timestamps"
        assert failed or untimed or not every, f"{reason}, and a pass shows {len(every)} frames"
    else:
        assert len(found) == count
    assert every or not found, f"{len(found)} frames, and a pass shows none"
    for picture, ms in zip(found, times, strict=False):
        assert same(picture, at(every, ms)), f"another frame at {ms} ms: {picture.ms}, and not {at(every, ms).ms}"
    return reason
