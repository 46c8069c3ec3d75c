"""Random crop, flip and colour change of an image: a pure function of the image and random numbers.

Transparent images already have a white background (curate.codec), as for every encoder.
"""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageEnhance

from distill.recipe import AugmentRecipe

_COLOUR = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)


def augment(image: Image.Image, recipe: AugmentRecipe, random: np.random.Generator) -> Image.Image:
    """Random resized crop without the resize (Szegedy et al. 2015), flip, brightness, contrast and saturation, each by
    a factor in 1 ± colour. Always draws the same number of random numbers, so that settings do not shift them."""
    area, aspect, left, top, flip, *colours = random.random(5 + len(_COLOUR))
    box = crop_box(image.size, recipe, area, aspect, left, top)
    if box != (0, 0, *image.size):
        image = image.crop(box)
    if recipe.flip and flip < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if recipe.colour:
        for enhance, number in zip(_COLOUR, colours, strict=True):
            image = enhance(image).enhance(1.0 + recipe.colour * (2.0 * number - 1.0))
    return image


def crop_box(
    size: tuple[int, int], recipe: AugmentRecipe, area: float, aspect: float, left: float, top: float
) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) in pixels; area, aspect, left, top uniform in [0, 1). At least one pixel."""
    width, height = size
    low, high = recipe.crop
    share = low + (high - low) * area
    stretch = math.exp((2.0 * aspect - 1.0) * math.log(recipe.aspect) / 2.0)
    wide = max(1, min(width, round(width * math.sqrt(share) * stretch)))
    tall = max(1, min(height, round(height * math.sqrt(share) / stretch)))
    x, y = round((width - wide) * left), round((height - tall) * top)
    return x, y, x + wide, y + tall
