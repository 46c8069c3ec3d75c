"""Maps as PNG: a point is a spot of its colour at its place."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from curate.html.scatter import fitted, scatter

RED, BLUE = "#ff0000", "#0000ff"


def drawn(points: list[tuple[float, float]], category: list[int], alive: list[int]) -> np.ndarray:
    data = scatter(
        np.array(points, np.float32).reshape(-1, 2), np.array(category, np.uint8), np.array(alive, np.uint8),
        [RED, BLUE], (0, 0, 10, 5), (100, 50),
    )  # fmt: skip
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))


def test_points_are_where_they_belong() -> None:
    image = drawn([(2, 1), (8, 4), (20, 1), (float("nan"), 1)], [0, 1, 0, 0], [1, 1, 1, 1])
    assert image[40, 20].tolist() == [255, 0, 0, 255] and image[10, 80].tolist() == [0, 0, 255, 255]
    assert int((image[:, :, 3] > 0).sum()) == 18


def test_faint_points_are_below_the_others() -> None:
    image = drawn([(2, 1), (2, 1), (6, 1)], [0, 1, 1], [1, 0, 0])
    assert image[40, 20].tolist() == [255, 0, 0, 255]
    assert 0 < image[40, 60, 3] < 128


def test_no_points() -> None:
    assert not drawn([], [], []).any()


@pytest.mark.parametrize("view", [(0, 0, 1, 1), (-5, 2, 9, 3), (0, 0, 1e-6, 1e-6)])
def test_both_axes_have_one_scale(view: tuple[float, float, float, float]) -> None:
    left, bottom, right, top = fitted(view, 1000, 700)
    assert (right - left) / 1000 == pytest.approx((top - bottom) / 700)
    assert left <= view[0] + 1e-9 and right >= view[2] - 1e-9 and bottom <= view[1] + 1e-9 and top >= view[3] - 1e-9
