"""The frames at some times: those that a pass over the whole video shows, mostly without one.

A seek is believed only if everything fits: the container has an index, all packets have times, no key frame overtakes
another frame, and from the key frame on the decoder gives all frames, undamaged and in order. Otherwise the video is
decoded from its beginning, once.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from av.video.frame import VideoFrame

from curate.codec.video import decode
from curate.codec.video.containers import INDEXED
from curate.codec.video.decode import Picture
from curate.codec.video.resets import CODECS, resets
from curate.codec.video.source import DAMAGE, Budget, Input, Source, opened

SURVEY_BYTES = 64 << 20
"""In smaller files, all packets are read first; in larger files, only those that are decoded."""
REFERENCES = 32
"""More frames than a decoder keeps for others to refer to."""


class InexactError(Exception):
    """A seek cannot be trusted."""


@dataclass(frozen=True)
class Keys:
    """All key frames, ascending."""

    pts: list[int]
    begins: list[int]
    """Places of the key frames to decode from: the same one if it empties the decoder, otherwise one so far before it
    that what damaged frames may refer to is there."""
    every: set[int] | None
    """Times of all packets that a pass finds. None if they were not read; `pts` are then those of the index, which
    may be a bit early."""


def shown(reader: Input, times_ms: Sequence[int], budget: Budget | None = None) -> Iterator[Picture]:
    """The frame at each time (ascending). Raises Undecodable, possibly after some frames."""
    waiting = list(times_ms)
    budget = budget or Budget()
    with opened(reader, budget, strict=True) as source:
        try:
            for picture in _sought(source, waiting, _keys(source, reader.size)):
                yield picture
                waiting.pop(0)
            return
        except (InexactError, *DAMAGE):
            pass
    with opened(reader, budget) as source:
        yield from decode.shown(source, waiting)


def _keys(source: Source, size: int) -> Keys:
    if source.format not in INDEXED or source.codec not in CODECS or source.edited:
        raise InexactError
    if size > SURVEY_BYTES:
        source.container.seek(source.start, stream=source.stream)  # Matroska's index is read at the first seek
        times = [entry.timestamp for entry in source.stream.index_entries if entry.is_keyframe]
        if times != sorted(times):
            raise InexactError
        return Keys(times, list(range(len(times))), None)
    keys, begins, numbers, seen, latest = list[int](), list[int](), list[int](), set[int](), None
    extradata = source.stream.codec_context.extradata
    for number, packet in enumerate(source.packets()):
        if packet.pts is None or packet.is_corrupt or packet.pts in seen:
            raise InexactError
        if packet.is_keyframe:
            if latest is not None and latest >= packet.pts:
                raise InexactError
            reset = resets(source.codec, extradata, bytes(packet))
            before = max(0, bisect_right(numbers, number - REFERENCES) - 1)
            begins.append(len(keys) if reset else before)
            keys.append(packet.pts)
            numbers.append(number)
        elif not keys:
            raise InexactError
        latest = packet.pts if latest is None else max(latest, packet.pts)
        seen.add(packet.pts)
    return Keys(keys, begins, seen)


def _sought(source: Source, times_ms: list[int], keys: Keys) -> Iterator[Picture]:
    if len(keys.pts) < 2:
        raise InexactError  # a pass is as fast
    starts = [source.ms(pts) for pts in keys.pts]
    at = -1
    run: Iterator[tuple[int, VideoFrame]] = iter(())
    before = after = None
    for ms in times_ms.copy():
        begin = keys.begins[max(0, bisect_right(starts, ms) - 1)]
        if begin > at and (after is None or after[0] <= ms):
            at, before, after = begin, None, None
            run = _run(source, keys, begin, ms)
        while after is None or after[0] <= ms:
            before, after = after or before, next(run, None)
            if after is None:
                break
        found = before or after
        if found is None:
            raise InexactError
        yield Picture.of(*found)


def _run(source: Source, keys: Keys, place: int, ms: int) -> Iterator[tuple[int, VideoFrame]]:
    """(time, frame) from a key frame on: this one, or one that is not after the time."""
    source.container.seek(source.ticks(ms) if keys.every is None else keys.pts[place], stream=source.stream)
    source.stream.codec_context.flush_buffers()
    begin, expected = None, list[int]()
    for packet, frames in source.decoded(source.packets()):
        if packet is not None:
            if (
                frames is None
                or packet.pts is None
                or packet.is_corrupt
                or not (keys.every is None or packet.pts in keys.every)
            ):
                raise InexactError
            if begin is None:
                begin = packet.pts
                late = begin > keys.pts[place] if keys.every else place > 0 and source.ms(begin) > ms
                if late or not packet.is_keyframe:
                    raise InexactError
            if packet.pts >= begin and not packet.is_discard:
                heapq.heappush(expected, packet.pts)
        for frame in frames or ():
            if frame.pts is None:
                raise InexactError
            if begin is None or frame.pts < begin:
                continue  # it depends on what is before the key frame
            if frame.is_corrupt or not expected or heapq.heappop(expected) != frame.pts:
                raise InexactError
            yield source.ms(frame.pts), frame
    if expected:
        raise InexactError
