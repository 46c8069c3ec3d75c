from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.report.survey.spread import spread


def test_equal_groups():
    found = spread(np.full(8, 5))
    assert found.effective == pytest.approx(8.0)
    assert found.gini == pytest.approx(0.0)


def test_one_group_with_everything():
    found = spread(np.array([0, 0, 0, 12]))
    assert (found.groups, found.empty, found.effective, found.median) == (1, 3, 1.0, 12)


@given(st.lists(st.integers(0, 10**6), max_size=60).map(lambda values: np.array(values, dtype=np.int64)))
def test_spread_is_within_its_bounds(values):
    found = spread(values)
    assert 0 <= found.gini <= 1
    assert found.groups + found.empty == len(values)
    assert found.total == values.sum()
    assert found.effective <= found.groups * (1 + 1e-9)
