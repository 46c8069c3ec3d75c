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
from tests.codec.video.make_videos import (
    KINDS,
    Kind,
    patched,
    plain,
    repeated,
    sound,
    timeless,
    turned,
    two_sizes,
    video,
)
from tests.codec.video.test_containers import HOSTILE

HERE = "tests.codec.video.watched"
CODEC = "curate.codec.video.child"
LIMITS = Limits(60.0, limited.MEMORY_BYTES)
CPU_SECONDS = 10.0
ORDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "probe": (f"{CODEC}:probe", {"most": 1000, "languages": []}),
    "frames": (f"{CODEC}:frames", {"times_ms": [0, 700, 1900], "side": 32}),
    "extract": (f"{CODEC}:extract", {"span": {"start_ms": 500, "stop_ms": 900}}),
    "thumbnail": (f"{CODEC}:thumbnail", {"side": 32, "frames": 1}),
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
LARGE = Kind("mp4", "libx264", options=FAST)
FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "empty"),
    **{name: (lambda name=name: HOSTILE[name], "not_a_video") for name in HOSTILE},  # type: ignore[misc]
    "without beginning": (lambda: video("mp4 h264")[1000:], "not_a_video"),
    "without beginning, ts": (lambda: video("ts h264")[1880:], ""),  # as broadcasts are recorded
    "without end": (lambda: video("mp4 h264")[:-300], "truncated"),
    "without end, mkv": (lambda: video("mkv h264")[:-9000], "look: truncated"),
    "flipped": (flipped, "look: corrupt"),
    "sound": (sound, "no_video_stream"),
    "timeless": (timeless, "frames, thumbnail, look: no_timestamps; extract: not_copyable"),
    "variable rate": (lambda: video("mp4 h264 vfr"), ""),
    "two sizes": (two_sizes, ""),
    "8192 x 8192": (lambda: plain(LARGE, (8192, 8192)), "too_many_pixels"),
    "says 30000 x 30000": (lambda: lying("avi mjpeg", b"strf", 12, (30_000).to_bytes(4, "little") * 2), ""),
    "says 600 fps": (
        lambda: lying("avi mjpeg", b"strh", 28, b"\1\0\0\0" + (600).to_bytes(4, "little")),
        "extract: bad_span",
    ),
    "says 4 billion frames": (lambda: lying("mp4 h264", b"stsz", 12, b"\xff" * 4), "corrupt"),
    "says 2 frames a time": (
        lambda: lying("mp4 h264", b"stts", 12, b"\xff" * 8),
        "frames, thumbnail, look: no_timestamps; extract: not_copyable",
    ),
    "says 49 days": (lambda: lying("mp4 h264", b"mvhd", 20, b"\xff" * 4), ""),
    "50,000 tiny frames": (lambda: repeated(TINY, 250, 200, fps=1000), "look: too_many_frames"),
    "10 bits": (lambda: video("mp4 hevc 10"), ""),
    "rotation": (lambda: turned(video("mp4 h264"), 90), ""),
    "edit list": (lambda: extract(Reader(video("mp4 h264")), {"start_ms": 300, "stop_ms": 2400}), ""),
}
"""Name -> the file, and its reason: of all that a child does, or by what it does."""


def expected(reasons: str) -> dict[str, str]:
    """By order."""
    if ":" not in reasons:
        return dict.fromkeys(ORDERS, reasons)
    parts = (part.split(": ") for part in reasons.split("; "))
    return dict.fromkeys(ORDERS, "") | {order: reason for orders, reason in parts for order in orders.split(", ")}


@pytest.mark.parametrize("name", FILES)
def test_a_row_or_a_reason(name: str, warm: Warm) -> None:
    make, reasons = FILES[name]
    found = tried(warm, make())
    assert {order: reason for order, (reason, _) in found.items()} == expected(reasons)


def tried(warm: Warm, data: bytes, *orders: str) -> dict[str, tuple[str, Ended]]:
    """What children do with a file: all end by themselves, soon, and so does not the process that forks them."""
    warm.start()
    process, found = warm.process, {order: outcome(warm, order, data) for order in orders or ORDERS}
    for order, (_, ended) in found.items():
        assert (ended.answer, ended.how) == (b"", ""), (order, ended)
        assert 0 < ended.cpu_seconds < CPU_SECONDS, (order, ended)
    assert warm.process is process and process is not None and process.poll() is None
    return found


@pytest.mark.long
def test_200_000_tiny_frames_take_little_time(warm: Warm) -> None:
    found = tried(warm, repeated(TINY, 250, 800, fps=1000))
    assert found["look"][0] == "too_many_frames"


@pytest.mark.long
def test_large_frames_take_little_time_and_memory(warm: Warm) -> None:
    for _, ended in tried(warm, plain(LARGE, (8192, 4320))).values():
        assert ended.peak_bytes < 400 << 20


def test_mutants_give_a_row_or_a_reason(warm: Warm) -> None:
    for number, kind in enumerate(KINDS):
        tried(warm, damaged(kind, number), list(ORDERS)[number % len(ORDERS)], list(ORDERS)[(number + 3) % len(ORDERS)])


@pytest.mark.long
def test_many_mutants_give_a_row_or_a_reason(warm: Warm) -> None:
    for kind in KINDS:
        for number in range(100, 103):
            tried(warm, damaged(kind, number))


# --- nothing else is opened ---


@pytest.fixture(scope="module")
def watched() -> Iterator[Warm]:
    """Its children may open files and sockets, and the kernel kills them if they do."""
    with closing(Warm(f"{HERE}:ready", f"{look.CHILD}:ready", alone=False)) as made:
        yield made


def refers() -> bytes:
    """An mp4 that says that its frames are in a file beside it."""
    data = video("mp4 h264")
    at = data.index(b"dref") + 12
    return patched(data, at, (12).to_bytes(4) + b"url " + bytes(4))


@pytest.mark.parametrize("order", ORDERS)
def test_nothing_else_is_opened(order: str, watched: Warm) -> None:
    for data in (
        *HOSTILE.values(),
        refers(),
        video("mp4 h264"),
        video("ts h264"),
        video("mkv h264"),
        video("asf wmv2"),
    ):
        _, ended = outcome(watched, order, data, f"{HERE}:answers")
        assert (ended.answer, ended.how) == (b"", ""), (data[:40], ended)


@pytest.mark.parametrize("name", ["sdp", "concat"])
def test_ffmpeg_alone_would_open_something_and_the_kernel_would_notice(name: str, watched: Warm) -> None:
    payload = json.dumps({"protocols": "file,udp,rtp", "format": name}).encode()
    ended = watched.call(f"{HERE}:trusting", payload, LIMITS, Reader(HOSTILE[name]))
    assert (ended.how, "SIGSYS" in ended.detail) == ("signal", True), ended
