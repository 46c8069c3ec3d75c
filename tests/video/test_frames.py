from __future__ import annotations

import io
from itertools import pairwise
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.codec.images import decode
from curate.codec.video import limited
from curate.codec.video.times import times_ms
from curate.core.contracts import Child, Sample
from curate.core.errors import Reject, Undecodable
from curate.video.frames import Frames
from tests.codec.video.make_videos import number_of, video


def children(data: bytes, duration_ms: int | None = None, **parameters: Any) -> list[Child]:
    """duration_ms: what the pool or a stage before has in the row."""
    sample = Sample(data, decode, {"key": "0" * 32, "duration_ms": duration_ms})
    return list(Frames(namespace="frames", **parameters).children(sample))


@given(st.integers(1, 10**8), st.integers(1, 50), st.none() | st.integers(1, 10**6))
def test_times_are_in_the_middle_of_equal_parts(duration: int, count: int, every: int | None) -> None:
    times = times_ms(duration, count, every)
    assert 1 <= len(times) <= count
    assert all(0 <= time < duration for time in times) and times == sorted(times)
    steps = np.diff(times)
    assert len(steps) == 0 or steps.max() - steps.min() <= 1
    assert every is None or len(steps) == 0 or steps.max() >= min(every, duration // count)


def test_frames_are_those_of_their_times() -> None:
    found = children(video("mp4 h264"), frames=4, format="png")  # 2.4 s, 25 frames a second
    assert [child.span for child in found] == [{"time_ms": ms} for ms in (280, 880, 1480, 2080)]
    assert [number_of(np.asarray(decode(child.data or b""))) for child in found] == [7, 22, 37, 52]
    assert found == children(video("mp4 h264"), frames=4, format="png")


def test_a_frame_every_few_seconds_up_to_a_maximum() -> None:
    assert [child.span["time_ms"] for child in children(video("mp4 mpeg4"), every_seconds=0.8)] == [400, 1200, 2000]
    assert len(children(video("mp4 mpeg4"), every_seconds=0.1, frames=5)) == 5


def test_a_frame_is_one_sample_however_often_it_is_asked_for() -> None:
    spans = [child.span["time_ms"] for child in children(video("mp4 mpeg4", 3), frames=50)]
    assert spans == [0, 40, 80]


@pytest.mark.parametrize(("side", "size"), [(32, (48, 32)), (None, (96, 64)), (512, (96, 64))])
def test_frames_get_smaller_never_larger(side: int | None, size: tuple[int, int]) -> None:
    [child] = children(video("mp4 mpeg4"), frames=1, short_side=side)
    assert child.ext == "jpg" and decode(child.data or b"").size == size


def test_a_live_recording_has_no_duration_until_something_before_measures_it() -> None:
    sink = io.BytesIO()
    options = {"live": "1"}
    with av.open(io.BytesIO(video("webm vp9", 25))) as source, av.open(sink, "w", "webm", options=options) as live:
        stream = live.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                live.mux(packet)
    with pytest.raises(Reject, match=r"no_duration: .*put video.look before"):
        children(sink.getvalue())
    found = children(sink.getvalue(), duration_ms=1000, frames=2)
    assert [child.span["time_ms"] for child in found] == [240, 720]  # of the frames shown at 250 and 750
    assert Frames(namespace="frames").reads() == ("duration_ms",)


def test_frames_beyond_the_end_are_the_last_one_once() -> None:
    found = children(video("mp4 mpeg4", 25), duration_ms=4000, frames=4)
    assert [child.span["time_ms"] for child in found] == [480, 960]


@pytest.mark.parametrize(("data", "reason"), [(b"", "empty"), (b"not a video" * 99, "not_a_video")])
def test_other_bytes_are_rejected(data: bytes, reason: str) -> None:
    with pytest.raises(Undecodable) as caught:
        children(data)
    assert caught.value.reason == reason


@pytest.mark.parametrize("kind", ["mp4 h264", "mkv h264", "mp4 vp9"])
def test_frames_of_a_virtual_clip_are_those_of_its_video(kind: str) -> None:
    whole = video(kind)
    for start, stop in [(280, 1000), (520, 2400)]:  # key frames are every 480 ms
        clip = limited.extract(whole, {"start_ms": start, "stop_ms": stop})
        times = times_ms(stop - start, 5)
        asked = [start + time for time in times]
        of_clip, of_whole = list(limited.frames(clip, times)), list(limited.frames(whole, asked))
        assert [number_of(frame.rgb) for frame in of_clip] == [time // 40 for time in asked]
        assert all(np.array_equal(a.rgb, b.rgb) for a, b in zip(of_clip, of_whole, strict=True))
        numbers = [number_of(np.asarray(decode(c.data or b""))) for c in children(clip, frames=50, format="png")]
        assert numbers == list(range(start // 40, stop // 40)) and all(b - a == 1 for a, b in pairwise(numbers))
