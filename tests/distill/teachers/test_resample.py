import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import interpolate

from distill.teachers.resample import resample_patches


def test_a_grid_of_the_same_size_and_constants_are_unchanged():
    grid = torch.arange(24.0).view(2, 3, 4)
    assert torch.equal(resample_patches(grid, 2, 3), grid.flatten(0, 1))
    assert torch.allclose(resample_patches(torch.full((4, 4, 2), 3.0), 2, 5), torch.full((10, 2), 3.0))


def test_rows_and_columns_keep_their_order():
    grid = torch.zeros(4, 4, 1)
    grid[:2] = 1.0
    assert resample_patches(grid, 2, 1).flatten().tolist() == pytest.approx([6 / 7, 1 / 7])
    assert resample_patches(grid, 1, 2).flatten().tolist() == pytest.approx([0.5, 0.5])


@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 7), st.integers(2, 7))
def test_resampling_equals_torchs_interpolate(height, width, rows, columns):
    grid = torch.rand(height, width, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    stacked = grid.permute(2, 0, 1)[None]
    expected = interpolate(stacked, (rows, columns), mode="bilinear", align_corners=False, antialias=True)[0]
    assert torch.allclose(resample_patches(grid, rows, columns), expected.permute(1, 2, 0).flatten(0, 1))
