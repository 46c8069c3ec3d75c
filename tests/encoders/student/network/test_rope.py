import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from curate.encoders.student.network.rope import coordinates, directions, positions, rotate, rotate_pairs, rotations

sides = st.integers(1, 9)


@given(sides, sides)
def test_coordinates_are_symmetric_and_keep_the_area(rows, columns):
    at = coordinates(rows, columns)
    assert torch.allclose(at.mean(0), torch.zeros(2, dtype=at.dtype), atol=1e-12)
    step_x = 2 * math.sqrt(columns / rows) / columns
    assert at[:, 0].max().item() == pytest.approx(math.sqrt(columns / rows) - step_x / 2)
    assert at[:, 1].max().item() == pytest.approx(math.sqrt(rows / columns) - math.sqrt(rows / columns) / rows)


def test_a_grid_is_not_its_transpose():
    assert not torch.allclose(positions([(2, 4)], 1), positions([(4, 2)], 1))
    assert coordinates.cache_info().maxsize is not None


def test_waves_have_log_spaced_lengths_and_separate_directions():
    waves = directions(3, 16)
    assert torch.allclose(waves.norm(dim=-1), torch.logspace(0, math.log10(20), 8, dtype=waves.dtype).expand(3, 8))
    angles = torch.atan2(waves[..., 1], waves[..., 0]).flatten() % math.pi
    assert (angles.sort().values.diff() > 1e-3).all()


def test_prefixes_are_not_rotated_and_norms_are_kept():
    rotation = rotations(directions(2, 8), positions([(3, 2), (1, 2)], prefix=5))
    x = torch.randn(18, 2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    turned = rotate(x, rotation)
    assert torch.equal(turned[:5], x[:5])
    assert torch.equal(turned[11:16], x[11:16])
    assert not torch.allclose(turned[5:11], x[5:11])
    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1))


def test_complex_and_real_formula_agree():
    rotation = rotations(directions(2, 8), positions([(3, 4)], prefix=1))
    x = torch.randn(13, 2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(rotate(x, rotation), rotate_pairs(x.unflatten(-1, (-1, 2)), rotation).flatten(-2), atol=1e-15)


def test_scores_depend_on_the_difference_of_positions_only():
    q, k = torch.randn(2, 1, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).unbind(0)
    rotation = rotations(directions(1, 8), positions([(1, 5)], prefix=0))
    score = [
        [(rotate(q, rotation[i : i + 1]) * rotate(k, rotation[j : j + 1])).sum() for j in range(5)] for i in range(5)
    ]
    assert torch.allclose(score[0][1], score[3][4])
    assert torch.allclose(score[0][3], score[1][4])
