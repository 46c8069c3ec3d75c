import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from curate.encoders.student.network.tokens import means
from distill.objectives.kernels.losses import errors


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
def test_each_image_has_the_same_weight_for_any_number_of_tokens(tokens):
    values = randn(sum(tokens))
    expected = [part.mean().item() for part in values.split(tokens)]
    assert means(values, tokens).tolist() == pytest.approx(expected)
