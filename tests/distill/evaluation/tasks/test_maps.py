import io

import numpy as np
import pytest
from PIL import Image

from distill.evaluation.tasks.maps import _in_order, colours, lch, low_pass, png


def test_equal_features_have_equal_colours_in_all_maps():
    left, right = np.array([5.0, 0, 0, 1]), np.array([0, 5.0, 0, 1])
    image = np.stack([np.stack([left, left, right])] * 2)
    rng = np.random.default_rng(5)
    noise = 0.01 * rng.normal(size=(2, *image.shape))
    one, two = colours([image + noise[0], (image + noise[1])[:, ::-1]])
    assert one.shape == (2, 3, 3)
    assert np.abs(one[0, 0, 0].astype(int) - one[0, 2, 0]) > 200
    assert np.abs(one[:, 0, 0].astype(int) - two[:, 2, 0]).max() < 60


def test_maps_of_the_foreground_leave_the_background_white():
    image = np.zeros((4, 4, 5))
    image[1:3, 1:3] = np.random.default_rng(6).normal(size=(2, 2, 5)) + 9
    (shown,) = colours([image], foreground=True)
    assert (shown[0] == 255).all()
    assert (shown[1:3, 1:3] != 255).any(-1).sum() >= 3


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_maps_of_constant_or_narrow_features_are_plain(channels):
    (shown,) = colours([np.ones((2, 2, channels))])
    assert len(np.unique(shown.reshape(-1, 3), axis=0)) == 1
    assert Image.open(io.BytesIO(png(shown))).size == (160, 160)


def test_a_low_pass_keeps_constant_features_and_damps_noise():
    assert low_pass(np.full((4, 5, 2), 3.0)) == pytest.approx(np.full((4, 5, 2), 3.0))
    noise = np.random.default_rng(0).normal(size=(16, 16, 4))
    assert 0.3 < low_pass(noise).std() / noise.std() < 0.8


def test_lightness_chroma_and_hue_are_colours():
    grey = lch(np.array([[0.0, 0.0, 0.0], [0.5, 0.0, 1.0], [1.0, 0.0, 0.5]]))
    assert np.ptp(grey, axis=1).max() < 0.01
    assert (np.diff(grey[:, 0]) > 0.2).all()
    red, green = lch(np.array([[0.5, 1.0, 0.0], [0.5, 1.0, 0.6]]))
    assert red.argmax() == 0 and green.argmax() == 1
    image = np.random.default_rng(1).normal(size=(3, 4, 6))
    one, other = colours([image])[0], colours([image], space="lch")[0]
    assert one.shape == other.shape and (one != other).any()


def test_each_head_is_shown_above_its_teacher():
    assert _in_order(["student", "student, as a", "student, as b", "teacher a", "teacher b", "teacher c"]) == [
        "student", "student, as a", "teacher a", "student, as b", "teacher b", "teacher c",
    ]  # fmt: skip
