import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from distill.recipe import AugmentRecipe
from distill.samples.images.augment import augment, crop_box

NUMBER = st.floats(0, 1, exclude_max=True)


def make_image(width: int = 40, height: int = 24) -> Image.Image:
    return Image.fromarray(np.random.default_rng(5).integers(0, 256, (height, width, 3), dtype=np.uint8))


def augmented(recipe: AugmentRecipe, seed: int = 0) -> np.ndarray:
    return np.asarray(augment(make_image(), recipe, np.random.default_rng(seed)))


def test_the_default_changes_nothing():
    assert (augmented(AugmentRecipe()) == np.asarray(make_image())).all()


def test_the_same_numbers_give_the_same_image():
    recipe = AugmentRecipe(crop=(0.3, 1.0), aspect=1.5, flip=True, colour=0.4)
    first, again, other = augmented(recipe, 1), augmented(recipe, 1), augmented(recipe, 2)
    assert first.shape == again.shape and (first == again).all()
    assert first.shape != other.shape or (first != other).any()


def test_half_of_the_images_are_mirrored():
    mirrored = [(augmented(AugmentRecipe(flip=True), seed) != np.asarray(make_image())).any() for seed in range(40)]
    assert 10 < sum(mirrored) < 30
    flipped = next(seed for seed, value in enumerate(mirrored) if value)
    assert (augmented(AugmentRecipe(flip=True), flipped) == np.asarray(make_image())[:, ::-1]).all()


def test_colours_change_and_stay_within_their_share():
    grey = Image.new("RGB", (8, 8), (100, 100, 100))
    for seed in range(20):
        value = np.asarray(augment(grey, AugmentRecipe(colour=0.2), np.random.default_rng(seed))).astype(int)
        assert (abs(value - 100) <= 21).all() and value.std() == 0
    assert (augmented(AugmentRecipe(colour=0.5)) != np.asarray(make_image())).any()


def test_settings_do_not_shift_random_numbers():
    cut = AugmentRecipe(crop=(0.3, 0.9))
    both = AugmentRecipe(crop=(0.3, 0.9), colour=(0.3, 0, 0, 0.2), blur=1)
    assert augmented(cut, 3).shape == augmented(both, 3).shape


def test_each_colour_has_its_own_strength():
    """One number is three equal ones without a hue; brightness alone scales, saturation and hue keep grey pixels."""
    assert (augmented(AugmentRecipe(colour=0.4)) == augmented(AugmentRecipe(colour=(0.4, 0.4, 0.4, 0)))).all()
    image, grey = np.asarray(make_image()).astype(float), Image.new("RGB", (8, 8), (100, 100, 100))
    brighter = augmented(AugmentRecipe(colour=(0.4, 0, 0, 0))).astype(float)
    unclipped = (brighter > 0) & (brighter < 255) & (image > 50)
    assert np.ptp(brighter[unclipped] / image[unclipped]) < 0.05 and abs(brighter - image).max() > 5
    for colour in ((0, 0, 0.4, 0), (0, 0, 0, 0.5)):
        recipe = AugmentRecipe(colour=colour)
        assert (np.asarray(augment(grey, recipe, np.random.default_rng(0))) == 100).all()
        assert (augmented(recipe) != np.asarray(make_image())).any()


def test_blur_is_drawn_with_its_probability_and_smooths():
    rough = [
        np.abs(np.diff(augmented(AugmentRecipe(blur=0.5), seed).astype(float), axis=1)).mean() for seed in range(40)
    ]
    plain = np.abs(np.diff(np.asarray(make_image()).astype(float), axis=1)).mean()
    assert 8 < sum(value < plain for value in rough) < 32 and max(rough) == plain


def test_borders_make_a_square_with_the_image_in_its_middle():
    square = augmented(AugmentRecipe(letterbox=1))
    assert square.shape == (40, 40, 3)
    assert (square[8:32] == np.asarray(make_image())).all() and not square[:8].any() and not square[32:].any()


@given(st.integers(1, 300), st.integers(1, 300), NUMBER, NUMBER, NUMBER, NUMBER, st.floats(0.05, 1), st.floats(1, 3))
def test_a_crop_is_inside_and_keeps_its_share(width, height, area, aspect, left, top, low, most):
    recipe = AugmentRecipe(crop=(low, 1.0), aspect=most)
    x, y, right, bottom = crop_box((width, height), recipe, area, aspect, left, top)
    assert 0 <= x < right <= width and 0 <= y < bottom <= height
    wide, tall = right - x, bottom - y
    if 20 < wide < width and 20 < tall < height:
        assert wide * tall / (width * height) == pytest.approx(low + (1 - low) * area, rel=0.1)
        ratio = (wide / tall) / (width / height)
        assert 1 / most * 0.9 < ratio < most * 1.1
