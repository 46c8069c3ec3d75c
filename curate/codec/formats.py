"""Detects an image's format by its first bytes, never by its file name.

Only these formats are decoded: those of the web and of phones and cameras, plus TIFF, BMP and JPEG 2000. The rest of
Pillow's fifty plugins are disabled, since a pool is hostile input and several plugins run interpreters or are never
fuzzed.
"""

from __future__ import annotations

import re
from typing import Literal

from curate.core.reader import Reader

_BMP_HEADERS = {12, 16, 40, 52, 56, 64, 108, 124}
_AVIF_BRANDS = (b"avif", b"avis")
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_JXL = (b"\xff\x0a", b"\x00\x00\x00\x0cJXL \r\n\x87\n")
_OTHER_FORMATS: tuple[tuple[str, bytes], ...] = (
    ("psd", b"8BPS"),
    ("pdf", b"%PDF"),
    ("eps", b"%!PS"),
    ("ico", b"\x00\x00\x01\x00"),
    ("xcf", b"gimp xcf"),
    ("exr", b"v/1\x01"),
    ("djvu", b"AT&TFORM"),
)
# Atomic: two dozen comments would otherwise be split in every possible way before the match fails.
_SVG = re.compile(rb"\A\s*(<\?xml[^>]*\?>\s*)?(?>(<!--.*?-->\s*)*)(<!DOCTYPE\s+svg|<([a-z]+:)?svg[\s>])", re.S | re.I)
_PNM = re.compile(rb"\AP[1-7]\s")

DECODED = ("jpeg", "png", "gif", "webp", "avif", "bmp", "tiff", "jpeg2000", "heif", "jxl")
"""Names of the formats that `decode` reads; also the values of the `format` column."""

RASTER_EXTENSIONS: tuple[str, ...] = (
    "apng", "avif", "avifs", "blp", "bmp", "bw", "cur", "dcx", "dds", "dib", "flc", "fli", "ftc", "ftu", "gif",
    "heic", "heics", "heif", "heifs", "hif", "icb", "icns", "ico", "iim", "im", "j2c", "j2k", "jfif", "jp2", "jpc",
    "jpe", "jpeg", "jpf", "jpg", "jpx", "jxl", "mpo", "msp", "pbm", "pcd", "pcx", "pfm", "pgm", "png", "pnm", "ppm",
    "psd", "pxr", "qoi", "ras", "rgb", "rgba", "sgi", "tga", "tif", "tiff", "vda", "vst", "webp", "xbm", "xpm",
)  # fmt: skip
"""File name extensions of HEIF, of JPEG XL and of all raster types that Pillow 13 reads. They decide which files are
samples; the bytes decide whether one is an image. The list is fixed, so that another version of Pillow imports the same
pool."""
_ADDED = ("heic", "heics", "heif", "heifs", "hif", "jxl", "mpo")
FIRST_EXTENSIONS = [name for name in RASTER_EXTENSIONS if name not in _ADDED]
"""Those before HEIF and JPEG XL were read."""

SNIFF_BYTES = 4096
"""As many first bytes tell the format."""

EXTENSION_OF = {"jpeg": "jpg", "jpeg2000": "jp2", "tiff": "tif", "heif": "heic"}
"""Usual extension of a format, if it differs from the format's name."""


def sniff(data: bytes) -> str | None:
    """Format of `data`: one of DECODED, or None."""
    if data.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data.startswith((b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+")):
        return "tiff"
    if data.startswith((b"\xff\x4f\xff\x51", b"\x00\x00\x00\x0cjP  \r\n\x87\n")):
        return "jpeg2000"
    if data[:2] == b"BM" and int.from_bytes(data[14:18], "little") in _BMP_HEADERS:
        return "bmp"
    if data.startswith(_JXL):
        return "jxl"
    brands = _iso_brands(data)
    return "avif" if brands & set(_AVIF_BRANDS) else "heif" if brands & set(_HEIF_BRANDS) else None


def sniff_other(data: bytes) -> str | None:
    """Name of an image format that is not decoded here; None if the bytes are in no known format."""
    for name, magic in _OTHER_FORMATS:
        if data.startswith(magic):
            return name
    if _PNM.match(data[:8]):
        return "pnm"
    return "svg" if _SVG.match(data[:4096]) else None


def _iso_brands(data: bytes) -> set[bytes]:
    """Major and compatible brands of an ISO base media file's `ftyp` box (ISO/IEC 14496-12, 4.3)."""
    if data[4:8] != b"ftyp":
        return set()
    box = data[8 : min(int.from_bytes(data[:4], "big"), 256)]
    return {box[i : i + 4] for i in range(0, len(box), 4) if i != 4}


_END_MARKS = {"jpeg": b"\xff\xd9", "png": b"IEND", "gif": b";"}


def is_truncated(name: str, reader: Reader) -> bool:
    """Whether the end of a file that failed to decode is missing; never for a format without an end mark."""
    head = reader.read_at(0, 8)
    if name == "webp":
        return int.from_bytes(head[4:8], "little") + 8 > reader.size
    if name == "bmp":
        return int.from_bytes(head[2:6], "little") > reader.size
    mark = _END_MARKS.get(name)
    return mark is not None and mark not in reader.read_at(max(0, reader.size - 64), 64)


def webp_size(data: bytes) -> tuple[int, int]:
    """Canvas (width, height) from the first chunk (RFC 9649, 2.5-2.7), which libwebp allocates on opening a file."""
    chunk = data[12:16]
    if chunk == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if chunk == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1
    return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF


ORIENTATION_TAG = 0x0112


def exif_orientation(exif: bytes) -> int:
    """Orientation 1..8 of an EXIF block, with or without its `Exif` prefix; 1 if missing or unreadable, since corrupt
    metadata does not make an image unusable (EXIF 2.32, 4.6.4; TIFF 6.0, section 2: IFD entries of 12 bytes)."""
    tiff = exif.removeprefix(b"Exif\0\0")
    order: Literal["little", "big"] = "little" if tiff.startswith(b"II") else "big"
    start = int.from_bytes(tiff[4:8], order)
    for entry in range(int.from_bytes(tiff[start : start + 2], order)):
        at = start + 2 + 12 * entry
        if at + 12 > len(tiff):
            break
        if int.from_bytes(tiff[at : at + 2], order) == ORIENTATION_TAG:
            value = int.from_bytes(tiff[at + 8 : at + 10], order)
            return value if 1 <= value <= 8 else 1
    return 1


_OF_JXL = (b"JXL ", b"ftyp", b"jxll", b"jxlc", b"jxlp")


def jxl_image(data: bytes) -> bytes:
    """A JPEG XL without its metadata (ISO/IEC 18181-2): its decoder would expand theirs, a kilobyte to gigabytes."""
    if not data.startswith(b"\0\0\0\x0cJXL "):
        return data
    kept, place = list[bytes](), 0
    while place + 8 <= len(data):
        size = int.from_bytes(
            data[place + 8 : place + 16] if data[place : place + 4] == b"\0\0\0\1" else data[place : place + 4]
        )
        end = place + max(size, 8) if size else len(data)
        if data[place + 4 : place + 8] in _OF_JXL:
            kept.append(data[place:end])
        place = end
    return b"".join(kept)
