import io

import numpy as np
import pytest
from PIL import Image

from distill.evaluation.tasks.maps import colours, png


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
