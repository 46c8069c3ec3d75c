"""Whether a key frame empties the decoder, so that not even a damaged frame after it can refer to what was before."""

from __future__ import annotations

from collections.abc import Iterator

CODECS = ("h264", "vp9", "av1")
"""Codecs whose decoders notice damage. In others, damaged parts show what a buffer held before (HEVC, too), or which
encoder the first frame names decides how all are decoded (MPEG-4)."""
SLICES, IDR = range(1, 6), 5
"""Types of NAL units (ITU-T H.264, table 7-1)."""


def resets(codec: str, extradata: bytes | None, packet: bytes) -> bool:
    """Whether a packet that its container calls a key frame does so."""
    if codec != "h264":
        return True
    slices = {kind for kind in _kinds(extradata or b"", packet) if kind in SLICES}
    return slices == {IDR}


def _kinds(extradata: bytes, packet: bytes) -> Iterator[int]:
    """Types of all NAL units. Before each is its length, if the extradata is that of mp4 (ISO/IEC 14496-15), or a start
    code."""
    at = 0
    if extradata[:1] == b"\x01":
        wide = (extradata[4] & 3) + 1 if len(extradata) > 4 else 4
        while at + wide < len(packet):
            yield packet[at + wide] & 31
            at += wide + int.from_bytes(packet[at : at + wide])
        return
    while (at := packet.find(b"\0\0\1", at)) >= 0 and at + 3 < len(packet):
        yield packet[at + 3] & 31
        at += 3
