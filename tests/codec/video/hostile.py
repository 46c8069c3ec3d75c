"""Damaged videos."""

from __future__ import annotations

import random

from tests.codec.video.make_videos import edited, video


def damaged(kind: str, number: int, frames: int = 60) -> bytes:
    """A mutant of the file of a kind, the same at each call."""
    rng, data = random.Random(f"{kind} {number}"), bytearray(video(kind, frames))
    at = rng.randrange(1, len(data))
    match number % 7:  # not a factor of the number of kinds
        case 0:
            del data[at:]
        case 1:  # anywhere
            for _ in range(rng.randrange(1, 30)):
                data[rng.randrange(len(data))] = rng.randrange(256)
        case 2:  # in the header
            for _ in range(rng.randrange(1, 6)):
                data[rng.randrange(12, min(len(data), 1500))] = rng.choice((0, 1, 127, 128, 255))
        case 3:  # at the end, where an index may be
            for _ in range(rng.randrange(1, 6)):
                data[-rng.randrange(1, min(len(data), 3000))] = rng.choice((0, 1, 127, 255, rng.randrange(256)))
        case 4:  # a part twice
            data[at:at] = data[rng.randrange(at) : at][:2000]
        case 5:  # a part is missing
            del data[at : at + rng.randrange(1, 200)]
        case 6 if b"elst" in data:
            parts = [(rng.randrange(40, 1500), rng.choice((-1, *(rng.randrange(30_000) for _ in range(6)))))]
            return edited(bytes(data), *parts, *((rng.randrange(40, 1500), rng.randrange(30_000)) for _ in range(2)))
        case _:
            del data[at : at + 1]
    return bytes(data)
