import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.kernels.evenness import entropy, entropy_bits, evenness, gini


def test_even_and_one_sided_sizes() -> None:
    assert evenness(np.array([7, 7, 7])) == pytest.approx(1) and gini(np.array([7, 7, 7])) == pytest.approx(0)
    assert evenness(np.array([9, 0, 0, 0])) == 0 and gini(np.array([9, 0, 0, 0])) == pytest.approx(0.75)
    assert evenness(np.array([5])) == 1 and gini(np.array([5])) == 0
    assert evenness(np.array([0, 0])) == gini(np.array([0, 0])) == 0


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30))
def test_within_bounds_and_as_defined(sizes: list[int]) -> None:
    array = np.array(sizes)
    assert 0 <= evenness(array) <= 1 + 1e-9 and -1e-9 <= gini(array) < 1
    if array.sum():
        mean_difference = np.abs(array[:, None] - array[None]).mean()
        assert gini(array) == pytest.approx(mean_difference / (2 * array.mean()), abs=1e-9)


def test_entropy_in_bits_ignores_empty_groups() -> None:
    assert entropy_bits(np.full(8, 5)) == pytest.approx(3)
    assert entropy_bits(np.array([0, 12, 0])) == entropy_bits(np.array([0])) == 0


def test_entropy_of_probabilities_along_an_axis() -> None:
    certain_and_even = np.array([[1.0, 0.0], [0.5, 0.5]])
    assert entropy(certain_and_even) == pytest.approx([0, np.log(2)])
    assert entropy(certain_and_even.T, axis=0) == pytest.approx([0, np.log(2)])
