"""The text of a soft subtitle track, read from its packets; no decoder of subtitles is ever opened."""

from __future__ import annotations

import encodings.utf_16  # otherwise loaded when it is used; a child cannot open its file  # noqa: F401
import re
import time
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

from av.stream import Discard

from curate.codec.video.source import BASE_SECONDS, DAMAGE, Input, opened
from curate.core.errors import Undecodable

BYTES_PER_SECOND = 50 << 20
"""More processor time for larger files: subtitles are all over a file."""
LINE_BYTES = 1 << 16
_TAGS = re.compile(r"</?[a-zA-Z][^<>]*>|<\d\d[\d:.]*>")
"""Tags of SubRip and WebVTT; WebVTT also has times within a line."""
_OVERRIDES = re.compile(r"\{[^{}]*\}|\\[Nnh]")
_DRAWING = re.compile(r"\{[^{}]*\\p[1-9]")


def text(reader: Input, languages: Sequence[str], most: int) -> str | None:
    """Lines of the first track whose format is known, or of the first in one of these languages (of its header),
    joined by spaces, of at most `most` characters. None without such a track, "" if it says nothing. What follows
    damage is left out. Raises Undecodable."""
    with opened(reader) as source:
        stream, plain = _track(source.container.streams.subtitles, {name.casefold() for name in languages})
        if stream is None or plain is None:
            return None
        for other in source.container.streams:
            if other.index != stream.index:
                other.discard = Discard.all  # an mp4's other samples are not read
        end = source.budget.began + BASE_SECONDS + reader.size / BYTES_PER_SECOND
        lines, size = list[str](), 0
        for packet in _packets(source.container, stream):
            if time.process_time() > end:
                raise Undecodable("too_slow", f"{len(lines):,} lines of subtitles")
            line = printable(plain(bytes(memoryview(packet)[:LINE_BYTES])))
            if line:
                lines.append(line)
                size += len(line) + 1
            if size > most:
                break
        return " ".join(lines)[:most].rstrip()


def _packets(container: Any, stream: Any) -> Iterator[Any]:
    try:
        for packet in container.demux(stream):
            if packet.size:
                yield packet
    except DAMAGE:
        pass


def printable(line: str) -> str:
    """In one line, without control characters and invisible ones; joiners, which some scripts need, stay."""
    return " ".join("".join(map(_shown, line)).split())


def _shown(one: str) -> str:
    if one.isprintable() or one in "\u200c\u200d":
        return one
    return " " if one.isspace() or one < "\xa0" else ""


def _track(streams: Any, languages: Set[str]) -> tuple[Any, Callable[[bytes], str] | None]:
    for stream in streams:
        name = stream.codec_context.name if stream.codec_context else ""
        plain = FORMATS.get(name)
        found = (stream.metadata.get("language") or "").casefold()
        if plain and (not languages or found in languages):
            return stream, plain
    return None, None


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _mov_text(data: bytes) -> str:
    """A length, the text, and boxes of styles (3GPP TS 26.245, 5.17)."""
    found = data[2 : 2 + int.from_bytes(data[:2])]
    marks = (b"\xfe\xff", b"\xff\xfe")
    return found.decode("utf-16", "replace") if found[:2] in marks else _decoded(found)


def _tagged(data: bytes) -> str:
    return _TAGS.sub("", _decoded(data))


def _ass(data: bytes) -> str:
    """The ninth field of a line, unless it draws."""
    found = _decoded(data).split(",", 8)[-1]
    return "" if _DRAWING.search(found) else _OVERRIDES.sub(" ", found) if "\\" in found or "{" in found else found


FORMATS: dict[str, Callable[[bytes], str]] = {
    "mov_text": _mov_text, "srt": _tagged, "subrip": _tagged, "webvtt": _tagged, "text": _decoded,
    "ssa": _ass, "ass": _ass,
}  # fmt: skip
"""FFmpeg's name of a subtitle format -> the text of a packet."""
