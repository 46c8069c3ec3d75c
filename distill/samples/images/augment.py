"""Random crop, flip, colour change, blur and borders of an image: a pure function of the image and random numbers.

Transparent images already have a white background (curate.codec), as for every encoder.
"""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from distill.recipe import AugmentRecipe

_COLOUR = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
_SIGMA, _BLURRED_SIDE = (0.1, 2.0), 224.0


def augment(image: Image.Image, recipe: AugmentRecipe, random: np.random.Generator) -> Image.Image:
    """Random resized crop without the resize (Szegedy et al. 2015), flip, brightness, contrast and saturation, each by
    a factor in 1 ± its strength, hue, blur, and borders. Always draws the same random numbers in the same order, so
    that settings do not shift them."""
    area, aspect, left, top, flip, *colours, hue, blur, sigma, letterbox = random.random(9 + len(_COLOUR)).tolist()
    box = crop_box(image.size, recipe, area, aspect, left, top)
    if box != (0, 0, *image.size):
        image = image.crop(box)
    if recipe.flip and flip < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    *strengths, turn = recipe.colour if isinstance(recipe.colour, tuple) else (*[recipe.colour] * len(_COLOUR), 0.0)
    for enhance, strength, number in zip(_COLOUR, strengths, colours, strict=True):
        if strength:
            image = enhance(image).enhance(1.0 + strength * (2.0 * number - 1.0))
    if turn:
        from torchvision.transforms.functional import adjust_hue  # importing it takes seconds

        image = adjust_hue(image, turn * (2.0 * hue - 1.0))
    if blur < recipe.blur:
        scale = math.sqrt(image.width * image.height) / _BLURRED_SIDE
        image = image.filter(ImageFilter.GaussianBlur(scale * (_SIGMA[0] + (_SIGMA[1] - _SIGMA[0]) * sigma)))
    if letterbox < recipe.letterbox:
        image = ImageOps.pad(image, (max(image.size),) * 2, color="black")
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
