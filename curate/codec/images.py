"""Decodes images, or rejects them with a reason. The only place in the package that decodes images.

Images are untrusted input. The first bytes select the decoder, the size in the header is checked before any pixel is
decoded, and every error of a decoder becomes `Undecodable` with a reason of REASONS. The decoder of HEIF, which had the
most errors that write out of bounds, runs in a limited child process. Pillow's limits are global to the process
(`Image.MAX_IMAGE_PIXELS`, warning filters). This module calls the format's plugin without `Image.open`, so that it
works in any number of threads and changes no setting of other users of Pillow.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    Jpeg2KImagePlugin,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)
from PIL.ImageFile import ImageFile

from curate.codec.formats import (
    DECODED,
    ORIENTATION_TAG,
    SNIFF_BYTES,
    exif_orientation,
    is_truncated,
    jxl_image,
    sniff,
    sniff_other,
    webp_size,
)
from curate.codec.pixels import has_alpha, in_srgb, other_profile, to_rgb, upright
from curate.core.errors import CurateError, Reject, Undecodable
from curate.core.reader import Reader, as_reader

MAX_PIXELS = 100_000_000
MOST_PIXELS_OF_A_SIDE = (1 << 31) - 1
"""No format has a longer side; a pool's columns hold no larger number."""
THUMBNAIL_QUALITY = 60
THUMBNAIL_RATIO = 4
"""Longer strips are cropped to their middle; otherwise nothing would be visible."""

OF_CHILD = {
    "decoder_died": "the process that decoded the file crashed, or needed too much memory",
    "decoder_timeout": "decoding took too long",
}
"""Reasons of a decoder in a limited child process."""
REASONS = OF_CHILD | {
    "empty": "the file has no bytes",
    "not_an_image": "the bytes are in no known image format",
    "unsupported": "an image format, or a variant of one, that is not decoded",
    "truncated": "the file ends before the image is complete",
    "corrupt": "the decoder failed on the contents",
    "too_many_pixels": "more pixels in the header than allowed; nothing was decoded",
    "metadata_bomb": "metadata that decompress to more than Pillow allows (1 MiB per chunk, 64 MiB per file)",
}
"""All reject reasons of `probe` and `decode`, with their meaning."""


class _Jpeg(JpegImagePlugin.JpegImageFile):
    def _read_dpi_from_exif(self) -> None:
        """Skip the print resolution: it is not used, and reading it warns about corrupt EXIF."""


def _heif(file: IO[bytes]) -> ImageFile:
    from pi_heif.as_plugin import HeifImageFile

    return HeifImageFile(file)


def _jxl(file: IO[bytes]) -> ImageFile:
    from pylibjxl.pillow_plugin import JxlImageFile

    return JxlImageFile(file)


LIMITED = ("heif",)
"""Formats that are decoded in a child process."""
_ONE = ("heif", "jxl")
"""Formats of which only the first, or primary, image is read; their decoders turn it upright."""
NOT_DECODED = (
    "unsupported", "not been built in", "not finite", "not implemented", "unknown pixel mode", "invalid palette size",
    "security limit exceeded", "conversion from yuv failed",
)  # fmt: skip
"""Errors of decoders at images that need not be damaged."""
_PLUGINS: dict[str, Callable[[IO[bytes]], ImageFile]] = {
    "jpeg": _Jpeg,
    "png": PngImagePlugin.PngImageFile,
    "gif": GifImagePlugin.GifImageFile,
    "webp": WebPImagePlugin.WebPImageFile,
    "avif": AvifImagePlugin.AvifImageFile,
    "bmp": BmpImagePlugin.BmpImageFile,
    "tiff": TiffImagePlugin.TiffImageFile,
    "jpeg2000": Jpeg2KImagePlugin.Jpeg2KImageFile,
    "heif": _heif,
    "jxl": _jxl,
}


@dataclass(frozen=True)
class Probe:
    """Properties from the header. `width` and `height` are those of the upright image that `decode` returns."""

    width: int
    height: int
    format: str
    """One of curate.codec.formats.DECODED."""
    frames: int
    orientation: int
    """EXIF orientation 1..8; 1 if missing."""
    mode: str
    """Pillow's mode of the first frame as stored: RGB, P, CMYK, I;16 …"""
    alpha: bool
    """Whether the header declares any kind of transparency."""


def probe(encoded: bytes | Reader, *, here: bool = False) -> Probe:
    """Read only the header, so the pixels may still be corrupt. Raises Undecodable. here: never in a child process."""
    reader = as_reader(encoded)
    name = _known_format(reader.read_at(0, SNIFF_BYTES))
    if name in LIMITED and not here:
        from curate.codec import limited

        found = limited.probe(encoded)
        if isinstance(found, Reject):
            raise found
        return found
    try:
        image = _open(name, reader, max_pixels=None)
        orientation = _orientation(name, image)
        width, height = _upright_size(name, image, orientation)
        alpha = has_alpha(image)
        frames = 1 if name in _ONE else getattr(image, "n_frames", 1)
        return Probe(width, height, name, frames, orientation, image.mode, alpha)
    except CurateError:  # also of the reader: a lost file, a store that fails
        raise
    except Exception as error:  # noqa: BLE001 - the sample boundary
        raise _undecodable(name, reader, error) from None


def decode(
    data: bytes,
    max_pixels: int = MAX_PIXELS,
    enough: Callable[[int, int], tuple[int, int]] | None = None,
    *,
    srgb: bool = False,
    here: bool = False,
) -> Image.Image:
    """First frame as upright RGB, transparency over white, 16 bits scaled to 8. Raises Undecodable.

    srgb: converted by the embedded colour profile, if any. here: never in a child process.
    enough: (width, height) of the upright image -> minimum (width, height). A JPEG may then be decoded at 1/2, 1/4 or
    1/8 of its size, but not below the minimum: the inverse cosine transform at the smaller size is much faster.
    """
    name = _known_format(data)
    if name in LIMITED and not here:
        from curate.codec import limited

        return limited.decode(data, max_pixels, srgb)
    try:
        image = _open(name, jxl_image(data) if name == "jxl" else data, max_pixels)
        orientation = 1 if name == "tiff" else _orientation(name, image)  # Pillow rotates a TIFF on load
        if enough is not None and name == "jpeg":
            least = enough(*_upright_size(name, image, orientation))
            image.draft(None, least[::-1] if orientation >= 5 else least)
        image.load()
        result = upright(to_rgb(in_srgb(image) if srgb else image), orientation)
    except Exception as error:  # noqa: BLE001 - the sample boundary
        raise _undecodable(name, Reader(data), error) from None
    result.info = {}
    return result


def has_profile(data: bytes) -> bool:
    """Whether `srgb` matters to `decode`, for formats whose headers tell: not for HEIF and JPEG XL. Raises
    Undecodable."""
    name = _known_format(data)
    try:
        return other_profile(_open(name, data, None).info.get("icc_profile")) is not None
    except Exception as error:  # noqa: BLE001 - the sample boundary
        raise _undecodable(name, Reader(data), error) from None


def thumbnail(data: bytes, side: int, *, here: bool = False) -> bytes:
    """A WebP of at most `side` pixels on the longer side; never enlarged. Raises Undecodable."""
    return webp(shrunk(decode(data, here=here), side))


def shrunk(image: Image.Image, side: int) -> Image.Image:
    """At most `side` pixels on the longer side, cropped if it is very long; never enlarged."""
    width, height = image.size
    crop_x, crop_y = max(0, width - THUMBNAIL_RATIO * height) / 2, max(0, height - THUMBNAIL_RATIO * width) / 2
    box = (crop_x, crop_y, width - crop_x, height - crop_y)
    scale = min(1.0, side / max(box[2] - box[0], box[3] - box[1]))
    size = (max(1, round((box[2] - box[0]) * scale)), max(1, round((box[3] - box[1]) * scale)))
    return image.resize(size, Image.Resampling.LANCZOS, box=box, reducing_gap=2.0)


def webp(image: Image.Image) -> bytes:
    sink = io.BytesIO()
    image.save(sink, "WEBP", quality=THUMBNAIL_QUALITY, method=4)
    return sink.getvalue()


def _known_format(data: bytes) -> str:
    if not data:
        raise Undecodable("empty", "0 bytes")
    name = sniff(data)
    if name is not None:
        return name
    other = sniff_other(data)
    if other is not None:
        raise Undecodable("unsupported", f"{other} is not decoded; expected one of {', '.join(DECODED)}")
    raise Undecodable("not_an_image", f"starts with {bytes(data[:12])!r}")


def _open(name: str, encoded: bytes | Reader, max_pixels: int | None) -> ImageFile:
    """Parse the header and check the size, without decoding pixels."""
    reader = as_reader(encoded)
    if name == "webp":
        _check_size(webp_size(reader.read_at(0, SNIFF_BYTES)), max_pixels)
    image = _PLUGINS[name](reader.open())
    _check_size(image.size, max_pixels)
    return image


def _check_size(size: tuple[int, int], max_pixels: int | None) -> None:
    width, height = size
    if max_pixels is not None and width * height > max_pixels:
        raise Undecodable("too_many_pixels", f"{width} x {height}; at most {max_pixels} pixels are decoded")
    if not 0 < min(size) <= max(size) <= MOST_PIXELS_OF_A_SIDE:
        raise Undecodable("corrupt", f"{width} x {height} pixels in the header")


def _orientation(name: str, image: ImageFile) -> int:
    if name in _ONE:
        return 1
    if name != "tiff":
        return exif_orientation(image.info.get("exif") or b"")
    value: Any = image.tag_v2.get(ORIENTATION_TAG, 1)  # type: ignore[attr-defined]
    return value if value in range(1, 9) else 1


def _upright_size(name: str, image: ImageFile, orientation: int) -> tuple[int, int]:
    width, height = image.size
    return (height, width) if orientation >= 5 and name != "tiff" else (width, height)


def _undecodable(name: str, reader: Reader, error: Exception) -> Exception:
    """Convert an error of a decoder. A MemoryError stays one, since the machine is the cause, not the sample."""
    if isinstance(error, Undecodable | MemoryError):
        return error
    text = f"{name}: {error}" if str(error) else f"{name}: {type(error).__name__}"
    lowered = text.lower()
    if isinstance(error, Image.DecompressionBombError):
        return Undecodable("too_many_pixels", text)
    if "max_text_" in lowered:
        return Undecodable("metadata_bomb", text)
    if "truncated" in lowered or "unexpected end" in lowered or is_truncated(name, reader):
        return Undecodable("truncated", text)
    unknown = any(sign in lowered for sign in NOT_DECODED) or (name == "heif" and "not identified" in lowered)
    if isinstance(error, NotImplementedError | ImportError) or unknown:
        return Undecodable("unsupported", text)
    return Undecodable("corrupt", text)
