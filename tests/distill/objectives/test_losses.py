import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import interpolate

from distill.objectives.losses import errors, image_means, resample_patches


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_cosine_error():
    a = torch.tensor([[1.0, 0.0], [1.0, 0.0], [2.0, 0.0], [0.0, 0.0]])
    b = torch.tensor([[3.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [1.0, 0.0]])
    assert errors(a, b, "cosine").tolist() == pytest.approx([0.0, 1.0, 2.0, 1.0])


@pytest.mark.parametrize(("kind", "expected"), [("mse", (0.25 + 9.0)), ("smooth_l1", (0.125 + 2.5))])
def test_errors_over_channels(kind, expected):
    a, b = torch.tensor([[1.5, 5.0]]), torch.tensor([[1.0, 2.0]])
    assert errors(a, b, kind, "sum").item() == pytest.approx(expected)
    assert errors(a, b, kind, "mean").item() == pytest.approx(expected / 2)
    assert errors(a[None], b[None], kind).shape == (1, 1)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_an_image_counts_once_however_many_tokens_it_has(tokens):
    values = randn(sum(tokens))
    expected = [part.mean().item() for part in values.split(tokens)]
    assert image_means(values, tokens).tolist() == pytest.approx(expected)


def test_resampling_keeps_a_grid_of_its_size_and_constants():
    grid = torch.arange(24.0).view(2, 3, 4)
    assert torch.equal(resample_patches(grid, 2, 3), grid.flatten(0, 1))
    assert torch.allclose(resample_patches(torch.full((4, 4, 2), 3.0), 2, 5), torch.full((10, 2), 3.0))


def test_resampling_goes_row_by_row():
    grid = torch.zeros(4, 4, 1)
    grid[:2] = 1.0
    assert resample_patches(grid, 2, 1).flatten().tolist() == pytest.approx([6 / 7, 1 / 7])
    assert resample_patches(grid, 1, 2).flatten().tolist() == pytest.approx([0.5, 0.5])


@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 7), st.integers(2, 7))
def test_resampling_is_what_torch_does(height, width, rows, columns):
    grid = torch.rand(height, width, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    stacked = grid.permute(2, 0, 1)[None]
    expected = interpolate(stacked, (rows, columns), mode="bilinear", align_corners=False, antialias=True)[0]
    assert torch.allclose(resample_patches(grid, rows, columns), expected.permute(1, 2, 0).flatten(0, 1))
