"""Packets that no frame is shown of: later frames refer to theirs, or the one before stays."""

from __future__ import annotations

from typing import Any

NOT_CODED_BYTES = 8
"""A VOP of MPEG-4 that is coded has more, in videos of 64 x 64 pixels at least."""
FRAME_UNITS = (3, 6)
"""Types of AV1's units that have a frame's header."""


def shows_none(codec: str, packet: Any) -> bool:
    """Whether no frame of a packet is shown, by the headers of its frames."""
    if codec == "mpeg4":
        return bool(packet.size <= NOT_CODED_BYTES)
    rule = {"vp8": _vp8, "vp9": _vp9, "av1": _av1}.get(codec)
    return rule is not None and packet.size > 0 and rule(memoryview(packet))


def shows_again(codec: str, packet: Any) -> bool:
    """Whether a packet of VP9 only shows an earlier frame."""
    data = memoryview(packet) if codec == "vp9" and packet.size else b"\0"
    return bool(data[0] & (0x04 if data[0] & 0x30 == 0x30 else 0x08))


def _vp8(data: memoryview) -> bool:
    """RFC 6386, 9.1."""
    return not data[0] & 0x10


def _vp9(data: memoryview) -> bool:
    """VP9 bitstream specification, 6.2 and annex B: the last frame of several in one packet is shown."""
    several, has_reserved_bit = data[-1] & 0xE0 == 0xC0, data[0] & 0x30 == 0x30
    shown = 0x05 if has_reserved_bit else 0x0A  # show_existing_frame, show_frame
    return not (several or data[0] & shown)


def _av1(data: memoryview) -> bool:
    """AV1 specification, 5.3 and 5.9.2."""
    place, found = 0, False
    while place < len(data):
        header, place = data[place], place + 1 + (data[place] >> 2 & 1)
        size, shift = len(data) - place, 0
        if header & 2:
            size = 0
            while place < len(data) and shift < 35:
                size, shift, place = size | (data[place] & 127) << shift, shift + 7, place + 1
                if data[place - 1] < 128:
                    break
        if header >> 3 & 15 in FRAME_UNITS and place < len(data):
            if data[place] & 0x90:  # show_existing_frame, show_frame
                return False
            found = True
        place += size
    return found
