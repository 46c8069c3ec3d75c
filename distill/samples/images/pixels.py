"""Pixels of the size that a picture's grid has: where most of a reader's time goes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from PIL import Image
from simplejpeg import decode_jpeg
from torch import Tensor
from torch.nn.functional import interpolate

from curate.codec.formats import sniff
from curate.codec.images import decode, probe

Fit = Callable[[int, int], tuple[int, int]]
"""(width, height) of an upright picture -> those of its grid in pixels."""


def decode_to(data: bytes, fit: Fit, max_pixels: int) -> NDArray[np.uint8]:
    """Pixels of an encoded picture, as `resize` gives them, for when nobody else wants to look at it.

    A JPEG of twice the size or more is decoded smaller. Raises Undecodable.
    """
    pixels = _jpeg(data, fit, max_pixels) if sniff(data) == "jpeg" else None
    if pixels is not None:
        return pixels
    image = decode(data, max_pixels=max_pixels)
    return resize(image, fit(*image.size))


def _jpeg(data: bytes, fit: Fit, max_pixels: int) -> NDArray[np.uint8] | None:
    """By libjpeg-turbo without the detour over Pillow's memory: the same bits at full size. None for turned pictures,
    other colours and what cannot be decoded, of which `decode` knows more."""
    found = probe(data)
    if found.orientation != 1 or found.mode not in ("RGB", "L") or found.width * found.height > max_pixels:
        return None
    width, height = fit(found.width, found.height)
    try:
        pixels_HWC = decode_jpeg(data, min_width=width, min_height=height, min_factor=2)
    except ValueError:
        return None
    return _resized(torch.from_numpy(pixels_HWC)[None], width, height)


def resize(image: Image.Image, size: tuple[int, int]) -> NDArray[np.uint8]:
    """RGB picture -> pixels (height, width, 3 or 4), the fourth without meaning; bicubic with antialiasing, what Pillow
    gives, to rounding. Out of Pillow's own memory, four bytes a pixel, where that lies in one piece."""
    if image.size == size:
        return np.asarray(image)
    try:
        batch_HWC = torch.from_dlpack(pa.array(image).flatten()).view(1, image.height, image.width, 4)
    except ValueError:
        batch_HWC = torch.from_numpy(np.array(image))[None]
    return _resized(batch_HWC, *size)


def _resized(batch_HWC: Tensor, width: int, height: int) -> NDArray[np.uint8]:
    """By torch, in a quarter of Pillow's time; as a batch of one channels-last image, which it resizes as it lies."""
    if batch_HWC.shape[1:3] == (height, width):
        return batch_HWC[0].numpy()
    batch = batch_HWC.permute(0, 3, 1, 2)
    resized = interpolate(batch, size=(height, width), mode="bicubic", antialias=True)
    return resized[0].permute(1, 2, 0).numpy()
