"""File name extensions of raster images: what makes a file a sample. Whether it is a picture, its bytes decide."""

from __future__ import annotations

RASTER_EXTENSIONS: tuple[str, ...] = (
    "apng", "avif", "avifs", "blp", "bmp", "bw", "cur", "dcx", "dds", "dib", "flc", "fli", "ftc", "ftu", "gif", "icb",
    "icns", "ico", "iim", "im", "j2c", "j2k", "jfif", "jp2", "jpc", "jpe", "jpeg", "jpf", "jpg", "jpx", "msp", "pbm",
    "pcd", "pcx", "pfm", "pgm", "png", "pnm", "ppm", "psd", "pxr", "qoi", "ras", "rgb", "rgba", "sgi", "tga", "tif",
    "tiff", "vda", "vst", "webp", "xbm", "xpm",
)  # fmt: skip
"""All raster types that Pillow 13 reads by name; a fixed list, so that another Pillow does not make another pool."""

EXTENSION_OF = {"jpeg": "jpg", "jpeg2000": "jp2", "tiff": "tif"}
"""The usual extension of a format (curate.codec.formats) whose own name it is not."""


def extension(path: str) -> str:
    """In lower case, without the dot; "" when there is none."""
    name = path.rpartition("/")[2]
    return name.rpartition(".")[2].lower() if "." in name[1:] else ""
