"""A folder and tars of good images, and every kind of bad input found in a web pool."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from curate.codec.tars import TarWriter
from tests.codec.make_images import encoded, grey16, noise, png_bomb


def blocks(seed: int, size: int = 48) -> Image.Image:
    """Coarse random blocks: images that perceptual hashes distinguish and that form clusters."""
    values = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(values).resize((size, size), Image.Resampling.NEAREST)


def good(number: int) -> bytes:
    """Small PNGs, JPEGs and WebPs, alternating."""
    kind = ("png", "jpeg", "webp")[number % 3]
    return encoded(blocks(number), kind, **({} if kind == "png" else {"quality": 90}))


def extension(number: int) -> str:
    return ("png", "jpg", "webp")[number % 3]


def write_good(root: Path, count: int, folders: int = 4) -> Path:
    """`count` images with captions in `folders` folders."""
    for number in range(count):
        place = root / f"kind{number % folders}" / f"{number:04d}.{extension(number)}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(good(number))
        place.with_suffix(".txt").write_text(f"picture number {number} of blocks")
    return root


def animated() -> bytes:
    frames = [blocks(900 + i).convert("P") for i in range(3)]
    buffer = io.BytesIO()
    frames[0].save(buffer, format="gif", save_all=True, append_images=frames[1:])
    return buffer.getvalue()


def palette_with_transparency() -> bytes:
    return encoded(blocks(901).convert("P"), "png", transparency=0)


def deep() -> bytes:
    return grey16(np.random.default_rng(902).integers(0, 65536, (4, 4), dtype=np.uint16).repeat(12, 0).repeat(12, 1))


def truncated() -> bytes:
    whole = encoded(noise(64, 64, seed=903), "jpeg", quality=95)
    return whole[: len(whole) // 2]


BAD: dict[str, tuple[bytes, str | None]] = {
    "truncated.jpg": (truncated(), "truncated"),
    "zero.jpg": (b"", "empty"),
    "words.jpg": (b"this is a letter to the editor, and no picture at all\n" * 9, "not_an_image"),
    "cmyk.jpg": (encoded(blocks(904).convert("CMYK"), "jpeg"), None),
    "palette.png": (palette_with_transparency(), None),
    "deep.png": (deep(), None),
    "animated.gif": (animated(), "animated"),
    "one.png": (encoded(noise(1, 1), "png"), "too_small"),
    "bomb.png": (png_bomb(), "too_many_pixels"),
}
"""File name -> bytes, and the reason for which they leave (None: an image like any other)."""


def left_at(reason: str) -> str:
    """The stage at which images leave for a reason: by size and form, or because they cannot be decoded."""
    return "size" if reason in ("animated", "too_small") else "inspect"


def write_tar(path: Path, samples: list[tuple[str, bytes, bytes | None]], keep: int | None = None) -> Path:
    """A tar of samples (stem.ext, image, caption's bytes), truncated to `keep` bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file, TarWriter(file) as tar:
        for name, data, caption in samples:
            tar.add(name, data)
            if caption is not None:
                tar.add(f"{name.rsplit('.', 1)[0]}.txt", caption)
    if keep is not None:
        path.write_bytes(path.read_bytes()[:keep])
    return path
