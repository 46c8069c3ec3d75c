"""Classes of sizes and aspect ratios."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from curate.report.survey.sizes import RATIO_NAMES, ImageSizes, side_names


def counted(*sizes: tuple[int | None, int | None]) -> ImageSizes:
    found = ImageSizes()
    width, height = zip(*sizes, strict=True)
    found.add(pa.table({"width": pa.array(width, pa.int32()), "height": pa.array(height, pa.int32())}))
    return found


def names(found: ImageSizes) -> tuple[list[str], list[str]]:
    """Class of side and of ratio of one image."""
    sides = [name for name, count in zip(side_names(), found.sides, strict=True) if count]
    return sides, [name for name, count in zip(RATIO_NAMES, found.ratios, strict=True) if count]


def test_classes() -> None:
    assert names(counted((63, 63))) == (["under 64"], ["4:5 to 5:4, about square"])
    assert names(counted((1000, 64))) == (["64 to 127"], ["wider than 3:1"])
    assert names(counted((640, 480))) == (["256 to 511"], ["4:3 to 2:1"])
    assert names(counted((480, 640))) == (["256 to 511"], ["3:4 to 4:5"])
    assert names(counted((5000, 20_000))) == (["4,096 or more"], ["taller than 1:3"])


def test_images_of_unknown_size_are_not_counted() -> None:
    assert names(counted((None, None), (0, 10))) == ([], [])
    found = ImageSizes()
    found.add(pa.table({"key": ["a"]}))
    assert not found.sides.any()


@given(st.lists(st.tuples(st.integers(1, 10_000), st.integers(1, 10_000)), min_size=1))
def test_every_image_is_in_one_class_of_each(sizes: list[tuple[int, int]]) -> None:
    found = counted(*sizes)
    assert found.sides.sum() == found.ratios.sum() == len(sizes)
    turned = counted(*((height, width) for width, height in sizes))
    assert np.array_equal(found.sides, turned.sides)
