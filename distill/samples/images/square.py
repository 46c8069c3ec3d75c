"""Images brought to squares, as papers evaluate: the centre, or the whole image without its aspect ratio."""

from __future__ import annotations

from typing import Literal

from PIL import Image

Square = Literal["crop", "squash"]


def squared(image: Image.Image, how: Square) -> Image.Image:
    """The centre square of an image (crop), or the image resized to the square of its longer side (squash)."""
    width, height = image.size
    if how == "squash":
        return image.resize((max(width, height),) * 2, Image.Resampling.BICUBIC)
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return image.crop((left, top, left + side, top + side))
