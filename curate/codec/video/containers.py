"""Detects a video's container by its first bytes, and lists what is decoded. Needs no decoder.

FFmpeg would also open playlists, session descriptions and image sequences, which make it open other files and sockets.
Only the demuxers of CONTAINERS are ever named to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from curate.codec.formats import _iso_brands
from curate.core.reader import Reader

CONTAINERS = {
    "mp4": "mov",
    "matroska": "matroska",
    "avi": "avi",
    "mpegts": "mpegts",
    "mpegps": "mpeg",
    "flv": "flv",
    "asf": "asf",
    "ogg": "ogg",
}
"""Our name, also the value of the column `format` -> FFmpeg's name of the demuxer."""
EXTENSION_OF = {
    "mp4": "mp4", "matroska": "mkv", "avi": "avi", "mpegts": "ts", "mpegps": "mpg", "flv": "flv", "asf": "wmv",
    "ogg": "ogv",
}  # fmt: skip
"""Usual extension of a container."""
INDEXED = ("mp4", "matroska", "avi")
"""Containers with an index; in others, a seek lands anywhere."""
CODECS = (
    "h264", "hevc", "vp8", "vp9", "av1", "mpeg1video", "mpeg2video", "mpeg4", "msmpeg4v1", "msmpeg4v2", "msmpeg4v3",
    "wmv1", "wmv2", "wmv3", "vc1", "mjpeg", "theora", "prores", "h263", "flv1", "cinepak", "ffv1",
)  # fmt: skip
"""FFmpeg's names of the codecs that are decoded."""
COPYABLE = ("h264", "hevc", "av1", "vp9", "mpeg4", "mpeg2video", "mpeg1video", "mjpeg")
"""Those that an mp4 may hold."""
DECODERS = (
    "h264,hevc,vp8,vp9,libdav1d,mpeg1video,mpeg2video,mpeg4,msmpeg4v1,msmpeg4v2,msmpeg4,wmv1,wmv2,wmv3,vc1,mjpeg,theora,"
    "prores,h263,flv,cinepak,ffv1,aac,mp3float,mp2float,ac3,eac3,opus,vorbis,flac"
)
"""Decoders that FFmpeg may open while it reads the header."""

MAX_PIXELS, MAX_SIDE = 8192 * 4320, 16_384

MAX_CORRUPT = 0.02
"""Share of damaged and missing frames above which a video is corrupt, unless a stage says otherwise."""
REASONS = {
    "empty": "the file has no bytes",
    "not_a_video": "the bytes are in no known container of videos",
    "unsupported": "a container, codec or pixel format that is not decoded",
    "no_video_stream": "the file has no video stream",
    "truncated": "the file ends before the video is complete",
    "corrupt": "the decoder failed on the contents, or too many frames are damaged or missing",
    "library_error": "an error of the library that reads videos, which says nothing about the file",
    "too_many_pixels": "more pixels in a frame, or on a side of it, than allowed",
    "too_many_frames": "more frames than allowed",
    "too_slow": "decoding takes more processor time than allowed for its frames",
    "no_timestamps": "too many frames have no time, or one that is not after the one before",
    "bad_span": "the span is not in the video, or has no key frame before it",
    "not_copyable": "the codec, or frames that have only times of decoding, cannot be copied into an mp4",
}
"""Reject reasons of videos, with their meaning."""


@dataclass(frozen=True)
class Probe:
    """Width and height are those of the upright frame. The header may be wrong about the whole, or say nothing."""

    width: int
    height: int
    format: str
    """The container: a key of CONTAINERS."""
    codec: str
    pixels: str
    """FFmpeg's name of the pixel format."""
    rotation: int
    """Degrees counterclockwise that make stored frames upright."""
    duration_ms: int | None
    fps: float | None
    frames: int | None
    has_audio: bool


_IMAGES = {b"avif", b"avis", b"heic", b"heix", b"hevc", b"hevx", b"mif1", b"msf1", b"jp2 ", b"jpx "}
_MAGIC = (
    ("matroska", b"\x1a\x45\xdf\xa3"),
    ("mpegps", b"\x00\x00\x01\xba"),
    ("flv", b"FLV\x01"),
    ("asf", bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")),
    ("ogg", b"OggS"),
)
_PARTS = (b"moov", b"mdat", b"moof")
_BOXES = (b"moov", b"mdat", b"wide", b"free", b"skip")
"""What a QuickTime file without `ftyp` begins with."""


def sniff(data: bytes) -> str | None:
    """The container, one of CONTAINERS, from the first bytes; None for anything but a video."""
    for name, magic in _MAGIC:
        if data.startswith(magic):
            return name
    if data[4:8] == b"ftyp":
        return None if _iso_brands(data) & _IMAGES else "mp4"
    if data[4:8] in _BOXES:
        return "mp4"
    if data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        return "avi"
    for first, step in ((0, 188), (4, 192)):  # the second has times before its packets, as cameras write
        if len(data) > first + 2 * step and all(data[first + n * step] == 0x47 for n in range(3)):
            return "mpegts"
    return None


def is_cut(container: str, reader: Reader) -> bool:
    """Whether the last part of the file ends after the file; never for containers whose parts have no sizes."""
    if container == "avi":
        size = int.from_bytes(reader.read_at(4, 4), "little")
        return reader.size < size + 8 < 1 << 32  # written to a pipe, it has the largest size
    if container == "matroska":
        head, at = reader.read_at(0, 256), 4
        at = sum(_vint(head, at))  # after the header
        size, start = _vint(head, at + 4)
        return head[at : at + 4] == b"\x18\x53\x80\x67" and start + size > reader.size
    if container != "mp4":
        return False
    at, name = 0, b""
    for _ in range(1000):
        head = reader.read_at(at, 16)
        size = int.from_bytes(head[8:16] if head[:4] == b"\0\0\0\1" else head[:4])
        if len(head) < 8 or size == 0:  # 0: up to the end of the file
            break
        at, name = at + max(size, 8), head[4:8]
    return at > reader.size and name in _PARTS  # otherwise what follows the video is something else


def _vint(data: bytes, at: int) -> tuple[int, int]:
    """A size of EBML (RFC 8794, section 4), and where what has it begins; 0 if it is not known."""
    wide = 9 - (data[at : at + 1] or b"\0")[0].bit_length()
    value = int.from_bytes(data[at : at + wide]) & ((1 << 7 * wide) - 1)
    return (0 if value == (1 << 7 * wide) - 1 else value), at + wide
