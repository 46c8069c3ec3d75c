import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.kernels.sizes import entropy, gini


def test_even_and_one_sided() -> None:
    assert entropy(np.array([7, 7, 7])) == pytest.approx(1) and gini(np.array([7, 7, 7])) == pytest.approx(0)
    assert entropy(np.array([9, 0, 0, 0])) == 0 and gini(np.array([9, 0, 0, 0])) == pytest.approx(0.75)
    assert entropy(np.array([5])) == 1 and gini(np.array([5])) == 0
    assert entropy(np.array([0, 0])) == gini(np.array([0, 0])) == 0


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30))
def test_within_bounds_and_as_defined(sizes: list[int]) -> None:
    array = np.array(sizes)
    assert 0 <= entropy(array) <= 1 + 1e-9 and -1e-9 <= gini(array) < 1
    if array.sum():
        mean_difference = np.abs(array[:, None] - array[None]).mean()
        assert gini(array) == pytest.approx(mean_difference / (2 * array.mean()), abs=1e-9)
