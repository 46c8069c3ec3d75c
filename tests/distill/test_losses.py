import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import interpolate

from distill.losses import patch_loss, resample_patches, summary_loss


def test_summary_loss_is_one_minus_cosine():
    a = torch.tensor([[1.0, 0.0], [1.0, 0.0], [2.0, 0.0], [0.0, 0.0]])
    b = torch.tensor([[3.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [1.0, 0.0]])
    assert summary_loss(a, b).tolist() == pytest.approx([0.0, 1.0, 2.0, 1.0])


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.sampled_from(["mean", "sum"]))
def test_patch_loss_counts_images_not_tokens(tokens, error):
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, sum(tokens), 3, dtype=torch.float64, generator=generator)
    expected = []
    for x, y in zip(a.split(tokens), b.split(tokens), strict=True):
        squared = (x - y) ** 2
        expected.append((squared.mean() if error == "mean" else squared.sum(1).mean()).item())
    assert patch_loss(a, b, tokens, error).tolist() == pytest.approx(expected)


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
