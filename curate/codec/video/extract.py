"""Copies a span of a video into a separate mp4, without encoding: the same bytes each time.

The copy begins at the key frame before the span, as decoding must. Its edit list, which players and FFmpeg follow, says
where the span begins and ends: time 0 of the copy is `start_ms`, from which on it shows the frame that began before.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any

import av

from curate.codec.video.containers import COPYABLE, INDEXED
from curate.codec.video.hidden import shows_again, shows_none
from curate.codec.video.source import Budget, Input, Source, opened
from curate.core.errors import Undecodable
from curate.core.reader import Reader

AUDIO = ("aac", "mp3", "ac3", "eac3", "opus", "flac", "alac")
"""Codecs of sound that an mp4 may hold."""
MAX_SCALE = 1 << 30
"""Parts of a second that an mp4's times may count."""
APART_MS = 2000
"""How much later audio may be stored than its video."""


def extract(reader: Input, span: Mapping[str, Any], budget: Budget | None = None) -> bytes:
    """The mp4 of {"start_ms", "stop_ms"}, with the first audio stream that it may hold. Raises Undecodable."""
    start, stop = span.get("start_ms"), span.get("stop_ms")
    if not (isinstance(start, int) and isinstance(stop, int) and 0 <= start < stop):
        raise Undecodable("bad_span", f"{dict(span)}: expected whole start_ms < stop_ms")
    with opened(reader, budget) as source:
        if source.codec not in COPYABLE:
            raise Undecodable("not_copyable", f"{source.codec}; an mp4 holds {', '.join(COPYABLE)}")
        if source.edited:
            raise Undecodable("not_copyable", "an mp4 whose edit list has several parts, or with times that go back")
        audio = next((one for one in source.container.streams.audio if _name(one) in AUDIO), None)
        frames, sounds, end, after = list[Any](), list[Any](), 0, None
        if source.format in INDEXED:
            source.container.seek(source.ticks(start), stream=source.stream)
            frames, sounds, end, after = _packets(source, audio, start, stop)
            if not frames:  # it may lead too far; an edit list hides frames before the start
                entries = source.stream.index_entries
                first = min(source.start, entries[0].timestamp) if entries else source.start
                source.container.seek(first, stream=source.stream)
        if not frames:
            frames, sounds, end, after = _packets(source, audio, start, stop, whole=True)
        if not frames:
            raise Undecodable("bad_span", f"{start} to {stop} ms: no frame, or no key frame before it")
        if end <= start:
            raise Undecodable("bad_span", f"{start} to {stop} ms: the video ends at {end} ms")
        _check_begin(source, frames)
        return _mp4(source, frames, audio, sounds, start, min(stop, end), after)


def _check_begin(source: Source, frames: list[Any]) -> None:
    """The key frame can be decoded without what is before it, and all frames have different times."""
    context = source.stream.codec_context
    context.flush_buffers()
    if context.has_b_frames and all(one.pts < after.pts for one, after in pairwise(frames)):
        times: list[Any] = [frame.pts for _, some in source.decoded(frames) for frame in some or ()]
        if None in times or times != sorted(times):
            raise Undecodable("not_copyable", f"the times of this {source.format} are those of decoding")
        context.flush_buffers()
    first = next((frame for _, some in source.decoded(frames) for frame in some or ()), None)
    shown = min((packet.pts for packet in frames if _is_shown(source, packet)), default=None)
    if first is None or first.pts != shown or first.is_corrupt:
        raise Undecodable("not_copyable", "the key frame before the span cannot be decoded without those before it")
    visible = [packet.pts for packet in frames if not shows_none(source.codec, packet)]
    if len(set(visible)) < len(visible):
        raise Undecodable("no_timestamps", "two frames of the span have the same time")


def _name(stream: Any) -> str:
    return stream.codec_context.codec.canonical_name if stream.codec_context else ""


def _packets(
    source: Source, audio: Any, start: int, stop: int, whole: bool = False
) -> tuple[list[Any], list[Any], int, int | None]:
    """Packets of the video, from the last key frame that is not after `start`, and of the audio, when the video ends,
    if not after `stop`, and the time in the stream of the first frame that is not shown before `stop`. whole: reading
    begins with the file, whose first key frame is shown before its time too."""
    frames, sounds, ended = list[Any](), list[Any](), False
    for packet in source.packets(*(one for one in (source.stream, audio) if one)):
        time = packet.dts if packet.pts is None else packet.pts
        if time is None:
            if packet.stream.index == source.stream.index and frames:
                raise Undecodable("no_timestamps", "a packet before the end of the span has no time")
            continue
        if packet.stream.index != source.stream.index:
            sounds_at = _audio_ms(source, packet, time)
            if sounds_at + float((packet.duration or 0) * packet.time_base * 1000) > start and sounds_at < stop:
                sounds.append(packet)
            if ended and sounds_at >= stop:
                break
            continue
        if packet.pts is None:
            raise Undecodable("no_timestamps", "a packet before the end of the span has no time")
        begins = packet.is_keyframe and not shows_none(source.codec, packet)
        if begins and (source.ms(time) <= start or (whole and not frames)):
            frames = []
        elif not frames or time < frames[0].pts:
            continue  # it depends on what is before the key frame
        frames.append(packet)
        late = source.ms(packet.dts if packet.dts is not None else time)
        ended = ended or late >= stop
        if late >= stop + (APART_MS if audio else 0):
            break
    last = max((packet for packet in frames if _is_shown(source, packet)), key=_pts, default=None)
    average = round(1 / (source.stream.average_rate or 25) / source.stream.time_base)
    end = source.end_ms(last.pts, last.duration or average) if last else 0
    visible = (packet for packet in frames if not shows_none(source.codec, packet))
    after = min((packet.pts for packet in visible if source.ms(packet.pts) >= stop), default=None)
    while frames and (source.ms(frames[-1].pts) >= stop or shows_none(source.codec, frames[-1])):
        frames.pop()
    return frames, sounds, end, after


def _shows(source: Source, count: int) -> bool:
    """Whether so many frames are decoded. FFmpeg does not show a frame again that an edit list hid the first time."""
    source.container.seek(source.start, stream=source.stream)
    source.stream.codec_context.flush_buffers()
    return count == sum(len(frames or ()) for _, frames in source.decoded(source.packets()))


def _is_shown(source: Source, packet: Any) -> bool:
    """Neither an edit list hides it nor does the codec."""
    return not (packet.is_discard or shows_none(source.codec, packet))


def _audio_ms(source: Source, packet: Any, time: int) -> float:
    begin = source.start * source.stream.time_base
    return float((time * packet.time_base - begin) * 1000)


def _mp4(
    source: Source, frames: list[Any], audio: Any, sounds: list[Any], start: int, stop: int, after: int | None
) -> bytes:
    visible = [packet for packet in frames if not shows_none(source.codec, packet)] or frames
    first = max((packet for packet in visible if source.ms(packet.pts) <= start), key=_pts, default=visible[0])
    shown = sum(first.pts <= packet.pts and source.ms(packet.pts) < stop for packet in visible)
    again = any(shows_again(source.codec, packet) for packet in frames)
    _fill_dts(frames)
    base = source.stream.time_base
    scale = math.lcm(base.denominator, 1000)  # both times of frames and of the span are whole numbers
    scale = scale if scale < MAX_SCALE else base.denominator
    zero = source.start * base + Fraction(start, 1000)
    for packet in frames:
        packet.pts, packet.dts = (round((time * base - zero) * scale) for time in (packet.pts, packet.dts))
        packet.time_base, packet.duration = Fraction(1, scale), round((packet.duration or 0) * base * scale)
    first.pts, first.dts = 0, min(first.dts, 0)  # it is shown before its time, if it is the video's first
    length, parts = stop - start, 1000
    if after is not None and (after - source.start) * base * 1000 < stop:  # in the last millisecond
        length, parts = round((after * base - zero) * scale), scale
    frames[-1].duration = round(Fraction(stop - start, 1000) * scale) - frames[-1].dts
    sink = io.BytesIO()
    options = {"fflags": "+bitexact", "video_track_timescale": str(scale), "movie_timescale": str(parts)}
    with av.open(sink, "w", format="mp4", options=options) as output:
        streams = [(source.stream, frames), *([(audio, sounds)] if sounds else [])]
        packets = list[tuple[Any, Any]]()
        for stream, some in streams:
            copy = output.add_stream_from_template(stream, opaque=True)
            packets += [(packet, copy) for packet in some]
        for packet in sounds:
            shift = round(zero / packet.time_base)
            packet.pts = None if packet.pts is None else packet.pts - shift
            packet.dts = None if packet.dts is None else packet.dts - shift
        for packet, copy in sorted(packets, key=_order):
            packet.stream = copy
            output.mux(packet)
    mp4 = _ended(sink.getvalue(), length)
    with opened(Reader(mp4), source.budget) as copied:
        if shown != sum(_is_shown(copied, packet) for packet in copied.packets()) or (
            again and not _shows(copied, shown)
        ):
            raise Undecodable("not_copyable", f"the edit list of an mp4 does not show the span of this {source.format}")
    return mp4


def _pts(packet: Any) -> int:
    return packet.pts


def _order(packet: tuple[Any, Any]) -> Any:
    data = packet[0]
    return (data.dts if data.dts is not None else data.pts or 0) * data.time_base


def _fill_dts(frames: Iterable[Any]) -> None:
    """Matroska has no decoding times: the first packets get none, or the same after a seek."""
    later = None
    for packet in reversed(list(frames)):
        if packet.dts is None or (later is not None and packet.dts >= later):
            packet.dts = packet.pts if later is None else min(packet.pts, later - max(1, packet.duration or 0))
        later = packet.dts


def _ended(mp4: bytes, duration: int) -> bytes:
    """Have the edit list of the video, which is the first, end with the span: the frames beyond only help to decode.
    Its duration is in parts of a second that the whole mp4 has."""
    at = mp4.find(b"elst", mp4.rfind(b"moov"))
    if at < 0 or mp4[at + 4] != 0 or mp4[at + 8 : at + 12] != b"\0\0\0\1":
        return mp4
    now = int.from_bytes(mp4[at + 12 : at + 16])
    return mp4[: at + 12] + min(now, duration).to_bytes(4) + mp4[at + 16 :]
