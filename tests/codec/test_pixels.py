from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from curate.codec.pixels import scale_to_8_bits, to_rgb

WIDE = ["I", "F", "I;16", "I;16B"]
MODES = ["1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "LA", "PA", "RGBX", "RGBa", "La", *WIDE]


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_becomes_rgb(mode: str) -> None:
    decoded = to_rgb(Image.new(mode, (5, 3)))
    assert (decoded.mode, decoded.size) == ("RGB", (5, 3))


@given(arrays(np.uint16, (4, 5)))
def test_sixteen_bits_round_to_the_nearest(values: np.ndarray) -> None:
    scaled = scale_to_8_bits(values, sixteen_bits=True)
    assert scaled.dtype == np.uint8
    assert np.abs(scaled * 257.0 - values).max() <= 128.5


@given(arrays(np.float64, (3, 3), elements=st.floats(-1e6, 1e6)))
def test_wide_values_keep_their_order(values: np.ndarray) -> None:
    flat = np.argsort(values, axis=None)
    scaled = scale_to_8_bits(values, sixteen_bits=False).reshape(-1)[flat]
    assert (np.diff(scaled.astype(int)) >= 0).all()


def test_the_smallest_sufficient_range_is_used() -> None:
    assert scale_to_8_bits(np.array([[0.0, 0.5, 1.0]]), sixteen_bits=False).tolist() == [[0, 128, 255]]
    assert scale_to_8_bits(np.array([[0.0, 2.0, 255.0]]), sixteen_bits=False).tolist() == [[0, 2, 255]]
    assert scale_to_8_bits(np.array([[-5, 0, 65535]], dtype=np.int32), sixteen_bits=False).tolist() == [[0, 0, 255]]
    assert scale_to_8_bits(np.array([[0, 1 << 30]], dtype=np.int32), sixteen_bits=False).tolist() == [[0, 255]]


def test_values_that_are_not_numbers_are_rejected() -> None:
    with pytest.raises(ValueError, match="not finite"):
        scale_to_8_bits(np.array([[np.nan]]), sixteen_bits=False)


@given(st.tuples(*[st.integers(0, 255)] * 4))
def test_alpha_is_composited_over_white(colour: tuple[int, int, int, int]) -> None:
    found = to_rgb(Image.new("RGBA", (1, 1), colour)).getpixel((0, 0))
    alpha = colour[3] / 255
    assert np.allclose(found, [value * alpha + 255 * (1 - alpha) for value in colour[:3]], atol=1)
