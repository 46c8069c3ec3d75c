"""Probes, whole passes and frames by time: beside a bare pass of PyAV, torchcodec and decord2, with exactness counted.

    python -m bench.video.decode

Ratios are costs of a bare pass, by one thread in this process, over ours, in pairs; the median of several. A peer is
installed into a folder of the benchmark's own (bench/kit/peers.py); one that is not available is skipped.
"""

from __future__ import annotations

import io
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import av
import numpy as np

from bench.kit import peers
from bench.kit.measure import line, load, machine
from curate.codec.video import decode, exact
from curate.codec.video.extract import extract
from curate.codec.video.probe import probe
from curate.codec.video.source import opened
from curate.core.reader import Reader
from tests.codec.video.make_videos import B_FRAMES, KINDS, Kind, made, number_of, repeated, video

PAIRS, PROBES, FRAMES, SECONDS = 5, 100, 8, 10
LEAST_PROBES = 100
TIMED = {
    "mp4 h264": Kind("mp4", "libx264", options=B_FRAMES | {"g": "75", "bf": "2"}, size=(640, 360)),
    "mp4 vp9": Kind("mp4", "libvpx-vp9", options={"g": "75", "deadline": "realtime", "cpu-used": "8"}, size=(640, 360)),
    "mp4 mpeg4": Kind("mp4", "mpeg4", options={"g": "75"}, size=(640, 360)),
}
"""Videos of 10 seconds, whose costs are measured."""


def bare(data: bytes) -> int:
    """A pass of PyAV alone, which converts and copies nothing."""
    with av.open(io.BytesIO(data)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        return sum(1 for _ in container.decode(video=0))


def whole(data: bytes) -> int:
    with opened(Reader(data)) as source:
        return sum(1 for _ in decode.pictures(source))


def eight(data: bytes) -> list[decode.Picture]:
    return list(exact.shown(Reader(data), times()))


def times() -> list[int]:
    return [int((part + 0.5) * SECONDS * 1000 / FRAMES) for part in range(FRAMES)]


def cpu(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def ratio(base: Callable[[], object], ours: Callable[[], object]) -> float:
    return statistics.median(cpu(base) / cpu(ours) for _ in range(PAIRS))


# --- exactness: what each shows at times in files that are hard ---


def hard() -> dict[str, bytes]:
    return {
        "MPEG-TS": video("ts h264"),
        "variable rate": made(KINDS["mp4 h264 vfr"], range(60)),
        "edit list": extract(Reader(video("mp4 h264")), {"start_ms": 300, "stop_ms": 2400}),
    }


def ours(data: bytes, asked: list[int]) -> list[int]:
    return [number_of(picture.planes.rgb()) for picture in exact.shown(Reader(data), asked)]


def torchcodec(data: bytes, asked: list[int]) -> list[int]:
    decoder = peers.torchcodec().decoders.VideoDecoder(data, dimension_order="NHWC", num_ffmpeg_threads=1)
    begin = decoder.metadata.begin_stream_seconds or 0.0
    return [number_of(decoder.get_frame_played_at(begin + ms / 1000 + 5e-4).data.numpy()) for ms in asked]


def decord(data: bytes, asked: list[int]) -> list[int]:
    reader: Any = peers.decord().VideoReader(io.BytesIO(data), num_threads=1)
    starts = np.asarray([reader.get_frame_timestamp(place)[0] for place in range(len(reader))])
    places = [max(0, int(np.searchsorted(starts - starts[0], ms / 1000 + 5e-4, "right")) - 1) for ms in asked]
    return [number_of(frame) for frame in reader.get_batch(places).asnumpy()]


def exactness(name: str, read: Callable[[bytes, list[int]], list[int]]) -> int:
    """How many frames are not those of a pass. Prints a line for each file."""
    wrong = 0
    for what, data in hard().items():
        with opened(Reader(data)) as source:
            every = [(picture.ms, number_of(picture.planes.rgb())) for picture in decode.pictures(source)]
        asked = [every[place][0] for place in range(2, len(every) - 2, len(every) // FRAMES)]
        expected = [number for ms, number in every if ms in asked]
        try:
            found = read(data, asked)
        except Exception as error:  # noqa: BLE001 - of a peer
            line(f"{name}, {what}: wrong frames", "error", str(error).split("\n")[0][:80])
            continue
        bad = sum(one != other for one, other in zip(found, expected, strict=True))
        line(f"{name}, {what}: wrong frames", f"{bad} of {len(asked)}")
        wrong += bad
    return wrong


def main(arguments: Sequence[str] = ()) -> int:
    print(f"{machine()}; {load()}; PyAV {av.__version__}")
    failed = 0
    for name, kind in TIMED.items():
        data = repeated(kind, 125, 2)
        rate = PROBES / cpu(lambda data=data: [probe(Reader(data)) for _ in range(PROBES)])  # type: ignore[misc]
        failed += rate < LEAST_PROBES
        line(f"{name}: probes a second", f"{rate:.0f}", f"aim: {LEAST_PROBES}")
        for what, work in (("a whole pass", whole), ("8 frames", eight)):
            line(f"{name}: {what}", f"{ratio(lambda d=data: bare(d), lambda d=data, w=work: w(d)):.2f}")  # type: ignore[misc]
    failed += exactness("ours", ours) > 0
    for peer, load_peer, read in (("torchcodec", peers.torchcodec, torchcodec), ("decord2", peers.decord, decord)):
        try:
            load_peer()
        except (RuntimeError, ImportError, OSError) as error:
            print(f"{peer} is skipped: {str(error).strip().splitlines()[0][:150]}")
            continue
        exactness(peer, read)
        for name, kind in TIMED.items():
            data = repeated(kind, 125, 2)
            try:
                cost = ratio(lambda d=data, r=read: r(d, times()), lambda d=data: ours(d, times()))  # type: ignore[misc]
            except Exception as error:  # noqa: BLE001 - of a peer
                print(f"{peer}, {name}: {error}")
                continue
            line(f"{name}: cost of 8 frames by {peer} over ours", f"{cost:.2f}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
