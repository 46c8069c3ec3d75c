import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from curate.encoders.descriptor import colour_histogram, gradients, normalise_cells, oriented_cells, unit

_PIXELS = arrays(np.uint8, (3, 16, 16, 3))


def _ramp(angle: float) -> np.ndarray:
    """(1, 16, 16, 1), brighter along `angle`."""
    y, x = np.mgrid[0:16, 0:16]
    return (np.cos(angle) * x + np.sin(angle) * y)[None, ..., None].astype(np.float32) / 16


@pytest.mark.parametrize("turn", [0.0, 0.5, 1.7, 3.0, 4.5, 6.0])
def test_gradient_points_to_the_bright_side(turn):
    magnitude, angle = gradients(_ramp(turn))
    inside = (slice(None), slice(1, -1), slice(1, -1))
    assert np.allclose(magnitude[inside], 2 / 16, atol=1e-5)
    assert np.allclose(np.cos(angle[inside] - turn), 1, atol=1e-5)


def test_gradient_is_the_strongest_channels():
    weak, strong = _ramp(0.0) * 0.1, _ramp(1.0)
    magnitude, angle = gradients(np.concatenate([weak, strong, weak], axis=-1))
    assert np.allclose(angle[0, 4, 4], 1.0, atol=1e-4)
    assert np.allclose(magnitude[0, 4, 4], 2 / 16, atol=1e-5)


@given(_PIXELS)
def test_votes_add_up_over_directions(pixels):
    """Trilinear votes are shares: their sum over directions is the magnitude, for any number of bins."""
    values = pixels.astype(np.float32) / 255
    few, many = oriented_cells(values, 4, 5), oriented_cells(values, 4, 12)
    assert np.allclose(few.sum(-1), many.sum(-1), atol=1e-2)
    assert (few >= 0).all()


def test_a_quarter_turn_shifts_directions_and_cells():
    values = np.random.default_rng(0).random((1, 16, 16, 3), dtype=np.float32)
    turned = np.rot90(values, axes=(2, 1))  # x -> y: directions rise by a quarter
    cells, other = oriented_cells(values, 4, 8), oriented_cells(np.ascontiguousarray(turned), 4, 8)
    assert np.allclose(np.rot90(np.roll(cells, 2, axis=-1), axes=(2, 1)), other, atol=1e-4)


@given(arrays(np.float32, (2, 4, 4, 3), elements=st.floats(0, 1e3, width=32)))
def test_normalised_cells_are_bounded(cells):
    normal = normalise_cells(cells, clip=0.2)
    assert normal.shape == cells.shape
    assert ((normal >= 0) & (normal <= np.float32(0.2) + 1e-6)).all()


def test_contrast_does_not_count_where_there_is_any():
    cells = oriented_cells(np.random.default_rng(1).random((1, 16, 16, 3), dtype=np.float32), 4, 8)
    assert np.allclose(normalise_cells(cells * 50, floor=0.01), normalise_cells(cells * 100, floor=0.01), atol=1e-4)


@given(_PIXELS, st.integers(1, 6))
def test_histogram_counts_every_pixel_once(pixels, levels):
    shares = colour_histogram(pixels, levels)
    assert shares.shape == (3, levels**3)
    assert np.allclose(shares.sum(1), 1, atol=1e-5)


def test_histogram_boxes():
    pixels = np.zeros((1, 2, 2, 3), dtype=np.uint8)
    pixels[0, 0, 0] = 255
    shares = colour_histogram(pixels, 2)[0]
    assert shares[0] == 0.75
    assert shares[-1] == 0.25


@given(arrays(np.float32, (4, 6), elements=st.floats(-100, 100, width=32)))
def test_unit_rows(rows):
    norms = np.linalg.norm(unit(rows), axis=1)
    assert (np.isclose(norms, 1, atol=1e-4) | (norms < 1e-5)).all()
