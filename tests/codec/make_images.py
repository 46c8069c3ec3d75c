"""Makes valid and invalid images for tests."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image


def gradient(width: int = 48, height: int = 32) -> Image.Image:
    """A smooth RGB image with a different colour in every corner, which lossy formats preserve."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [x * 255 // max(width - 1, 1), y * 255 // max(height - 1, 1), np.full_like(x, 64)]
    return Image.fromarray(np.stack(planes, axis=-1).astype(np.uint8))


def noise(width: int = 64, height: int = 64, seed: int = 0) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format, **options)
    return buffer.getvalue()


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, depth: int, colour: int, rows: bytes, *extra: bytes) -> bytes:
    """A PNG from its parts; `rows` with their filter bytes, `extra` chunks before the pixels."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    body = png_chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(extra) + body + png_chunk(b"IEND", b"")


def png_bomb() -> bytes:
    """50,000 x 50,000 pixels in a few hundred bytes. The rows are truncated, since no reader may get that far."""
    return png(50_000, 50_000, 8, 2, bytes(1 << 16))


def text_bomb(kind: bytes = b"zTXt", size: int = 32 << 20) -> bytes:
    """A 1 x 1 PNG whose compressed text decompresses to `size` bytes."""
    content = b"Comment\0\0" + zlib.compress(bytes(size), 9)
    return png(1, 1, 8, 2, b"\0\x10\x20\x30", png_chunk(kind, content))


def grey16(values: np.ndarray) -> bytes:
    """A 16-bit grey PNG of the values (H, W) uint16."""
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return png(values.shape[1], values.shape[0], 16, 0, rows)


def webp_header(width: int, height: int) -> bytes:
    """Header of an extended WebP with a canvas of this size and no image data."""
    chunk = b"VP8X" + struct.pack("<I", 10) + bytes(4) + (width - 1).to_bytes(3, "little")
    chunk += (height - 1).to_bytes(3, "little")
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk
