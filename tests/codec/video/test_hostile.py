"""Hostile and unusual files through limited children: each is a row or a reason, soon, and ends no worker."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from curate.codec.limited import rejected
from curate.codec.video import limited
from curate.codec.video.extract import extract
from curate.core.child import Ended, Limits, Warm
from curate.core.reader import Reader
from curate.video import look
from tests.codec.video.hostile import damaged
from tests.codec.video.make_videos import KINDS, Kind, patched, plain, repeated, sound, timeless, turned, two_sizes, video
from tests.codec.video.test_containers import HOSTILE

HERE = "tests.codec.video.watched"
CODEC = "curate.codec.video.child"
LIMITS = Limits(60.0, limited.MEMORY_BYTES)
CPU_SECONDS = 5.0
ORDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "probe": (f"{CODEC}:probe", {}),
    "frames": (f"{CODEC}:frames", {"times_ms": [0, 700, 1900], "side": 32}),
    "extract": (f"{CODEC}:extract", {"span": {"start_ms": 500, "stop_ms": 900}}),
    "thumbnail": (f"{CODEC}:thumbnail", {"side": 32}),
    "look": (f"{look.CHILD}:look", {"max_corrupt": 0.02}),
}


def outcome(warm: Warm, order: str, data: bytes, answers: str = f"{CODEC}:answers") -> tuple[str, Ended]:
    """The reason that a child gives, and how it ended."""
    function, given = ORDERS[order]
    payload, reason = json.dumps({"function": function, "order": given}).encode(), ""
    parts = warm.stream(answers, payload, LIMITS, Reader(data))
    while True:
        try:
            part = next(parts)
        except StopIteration as end:
            return reason, end.value
        if part[:1] == limited.REJECT:
            reason = rejected(part[1:], limited.REASONS).reason


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    with closing(Warm(f"{look.CHILD}:ready")) as made:
        yield made


def flipped() -> bytes:
    data, rng = bytearray(video("mp4 h264", 200)), random.Random(0)
    media = data.index(b"mdat") + 4
    for _ in range(200):
        data[rng.randrange(media, data.rindex(b"moov"))] ^= 1 << rng.randrange(8)
    return bytes(data)


def lying(kind: str, name: bytes, skip: int, new: bytes) -> bytes:
    data = video(kind)
    return patched(data, data.index(name) + skip, new)


FAST = {"preset": "ultrafast", "x264-params": "weightp=0:aq-mode=0:me=dia:rc-lookahead=0:sync-lookahead=0:qp=50"}
TINY = Kind("mp4", "libx264", options={"preset": "ultrafast", "g": "250", "x264-params": "scenecut=0"}, size=(16, 16))
FILES: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    **{name: lambda name=name: HOSTILE[name] for name in HOSTILE},  # type: ignore[misc]
    "without beginning": lambda: video("mp4 h264")[1000:],
    "without beginning, ts": lambda: video("ts h264")[1880:],
    "without end": lambda: video("mp4 h264")[:-300],
    "without end, mkv": lambda: video("mkv h264")[:-9000],
    "flipped": flipped,
    "sound": sound,
    "timeless": timeless,
    "variable rate": lambda: video("mp4 h264 vfr"),
    "two sizes": two_sizes,
    "8192 x 8192": lambda: plain(Kind("mp4", "libx264", options=FAST), (8192, 8192)),
    "8192 x 4320": lambda: plain(Kind("mp4", "libx264", options=FAST), (8192, 4320)),
    "says 30000 x 30000": lambda: lying("avi mjpeg", b"strf", 12, (30_000).to_bytes(4, "little") * 2),
    "says 600 fps": lambda: lying("avi mjpeg", b"strh", 28, b"\1\0\0\0" + (600).to_bytes(4, "little")),
    "says 4 billion frames": lambda: lying("mp4 h264", b"stsz", 12, b"\xff" * 4),
    "says 2 frames a sample": lambda: lying("mp4 h264", b"stts", 12, b"\xff" * 8),
    "says 49 days": lambda: lying("mp4 h264", b"mvhd", 20, b"\xff" * 4),
    "200,000 tiny frames": lambda: repeated(TINY, 250, 800, fps=1000),
    "10 bits": lambda: video("mp4 hevc 10"),
    "rotation": lambda: turned(video("mp4 h264"), 90),
    "edit list": lambda: extract(Reader(video("mp4 h264")), {"start_ms": 300, "stop_ms": 2400}),
}


@pytest.mark.parametrize("name", FILES)
def test_a_row_or_a_reason(name: str, warm: Warm) -> None:
    data = FILES[name]()
    warm.start()
    process = warm.process
    found = {order: outcome(warm, order, data) for order in ORDERS}
    print(name, len(data), {order: (reason, round(ended.cpu_seconds, 2), ended.peak_bytes >> 20, ended.how) for order, (reason, ended) in found.items()})
    assert warm.process is process and process is not None and process.poll() is None
