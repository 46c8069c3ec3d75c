from __future__ import annotations

import numpy as np

from curate.kernels.groups import position_in_group


def test_position_in_group() -> None:
    assert position_in_group(np.array([4, 4, 4, 1, 9, 9])).tolist() == [0, 1, 2, 0, 0, 1]
    assert len(position_in_group(np.zeros(0, np.int64))) == 0
