"""Sizes and aspect ratios of images, counted in fixed classes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.report.survey.rows import integers

SIDES = (64, 128, 256, 512, 1024, 2048, 4096)
"""Lower bounds of the classes of shorter sides, after the first; pixels."""
RATIOS = (1 / 3, 1 / 2, 3 / 4, 4 / 5, 5 / 4, 4 / 3, 2, 3)
"""Lower bounds of the classes of width / height, after the first. Each class has a mirror image."""
RATIO_NAMES = (
    "taller than 1:3", "1:3 to 1:2", "1:2 to 3:4", "3:4 to 4:5", "4:5 to 5:4, about square", "5:4 to 4:3", "4:3 to 2:1",
    "2:1 to 3:1", "wider than 3:1",
)  # fmt: skip


def side_names() -> tuple[str, ...]:
    between = [f"{low:,} to {high - 1:,}" for low, high in itertools.pairwise(SIDES)]
    return (f"under {SIDES[0]}", *between, f"{SIDES[-1]:,} or more")


@dataclass
class ImageSizes:
    """Counts by class of shorter side and of aspect ratio."""

    sides: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(SIDES) + 1, np.int64))
    ratios: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(RATIOS) + 1, np.int64))

    def add(self, table: pa.Table) -> None:
        """Count the rows with a `width` and a `height`."""
        width, height = (integers(table, name) for name in ("width", "height"))
        known = (width > 0) & (height > 0)
        width, height = width[known], height[known]
        sides = np.searchsorted(SIDES, np.minimum(width, height), side="right")
        ratios = np.searchsorted(RATIOS, width / height, side="right")
        self.sides += np.bincount(sides, minlength=len(self.sides))
        self.ratios += np.bincount(ratios, minlength=len(self.ratios))
