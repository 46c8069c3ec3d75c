"""Frames a second that `video.look` looks at, with and without motion, beside a bare linear decode by PyAV.

python -m bench.video.look

All three decode the same film in this process, in turn, by one thread; processor time of the best of several rounds.
The last row is `video.look` as it runs, with its limited child; wall time.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from statistics import median

import av
import numpy as np

from bench.kit.measure import line, machine
from curate.codec.video import decode
from curate.codec.video.source import opened
from curate.core.reader import as_reader
from curate.video.blank import Blank
from curate.video.cuts import Cuts
from curate.video.hashes import FrameHashes
from curate.video.look import facts
from curate.video.looking import look, small_planes
from tests.video.make_shots import encoded, film, shot

ROUNDS = 7
AIMS = {"without motion": 800, "with motion": 500}


def made(size: tuple[int, int], codec: str, **options: str) -> bytes:
    """Ten seconds: a pan, a zoom and a shake, with a sensor's noise."""
    shots = [shot(1, "pan", 4, 0.1, size), shot(2, "zoom", 3, 0.1, size), shot(3, "shake", 3, 0.1, size)]
    random = np.random.default_rng(0)
    field = np.rint(random.normal(0, 3, (size[1] + 64, size[0] + 64, 1))).astype(np.int16)
    frames = []
    for frame in film(shots, ["cut", "cut"]).frames:
        y, x = random.integers(0, 64, 2)
        frames.append(np.clip(frame + field[y : y + size[1], x : x + size[0]], 0, 255).astype(np.uint8))
    return encoded(frames, codec, **options)


def bare(data: bytes) -> int:
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        return sum(1 for _ in container.decode(stream))


def without_motion(data: bytes) -> None:
    every = Cuts(), Blank(), FrameHashes()
    with opened(as_reader(data)) as video:
        for picture in decode.pictures(video):
            small = small_planes(picture.planes)
            for one in every:
                one.add(picture.ms, small)


def with_motion(data: bytes) -> None:
    for _ in look(as_reader(data), 1.0):
        pass


def spent(work: Callable[[bytes], object], data: bytes) -> float:
    began = time.process_time()
    work(data)
    return time.process_time() - began


def main() -> int:
    print(machine())
    slow = False
    for name, size, codec, options in (
        ("360p H.264", (640, 360), "libx264", {"preset": "medium"}),
        ("360p MPEG-4", (640, 360), "mpeg4", {"qscale": "4", "flags": "+qscale"}),
        ("720p H.264", (1280, 720), "libx264", {"preset": "medium"}),
    ):
        data = made(size, codec, **options)
        frames = bare(data)
        works = {"a bare decode": bare, "without motion": without_motion, "with motion": with_motion}
        rounds = [{way: spent(work, data) for way, work in works.items()} for _ in range(ROUNDS)]
        for way in works:
            rate = frames / min(one[way] for one in rounds)
            ratio = median(one["a bare decode"] / one[way] for one in rounds)
            aim = AIMS.get(way) if name == "360p H.264" else None
            slow = slow or rate < (aim or 0)
            line(f"{name}, {way}", f"{rate:,.0f} frames/s", f"{ratio:.2f} of bare" + (f"; aim {aim}" if aim else ""))
        walls = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            facts(data)
            walls.append(time.perf_counter() - began)
        line(f"{name}, in its child", f"{frames / min(walls):,.0f} frames/s", "wall time")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
