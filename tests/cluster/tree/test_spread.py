import numpy as np
import pytest

from curate.cluster.tree.spread import variance
from curate.core.group import MemoryGroup


@pytest.mark.parametrize("parts", [1, 7])
@pytest.mark.parametrize("unit", [True, False])
def test_the_variance_of_all_rows(parts: int, unit: bool) -> None:
    rng = np.random.default_rng(0)
    points = (rng.normal(size=(9000, 6)) + 2).astype(np.float32)
    norms = np.linalg.norm(points, axis=1)
    directions = points / norms[:, None]
    held = [{"vectors": v.astype(np.float16)} for v in np.array_split(directions, parts)]
    if not unit:
        for part, some in zip(held, np.array_split(norms, parts), strict=True):
            part["norms"] = some
    wanted = directions if unit else points
    assert variance(MemoryGroup(held)) == pytest.approx(wanted.var(axis=0).sum(), rel=1e-3)


def test_equal_rows_or_no_rows_have_no_variance() -> None:
    assert (
        variance(MemoryGroup([{"vectors": np.ones((5, 3), np.float32)}, {"vectors": np.ones((0, 3), np.float32)}])) == 0
    )
    assert variance(MemoryGroup([{"vectors": np.ones((0, 3), np.float32)}])) == 0
