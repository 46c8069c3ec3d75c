"""What a card says about the rows, counted while they are written."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

MOST_PIXELS, MOST_WORDS = 1 << 16, 1 << 12
"""Longer sides and texts count as these."""
PERCENTILES = (5, 25, 50, 75, 95)
MOST_VALUES = 1000
"""Different licences that are counted by name; further ones count together."""
OTHERS = "other values"


class Statistics:
    def __init__(self, captions: list[str]) -> None:
        self.rows = self.copies = self.urls = self.digests = 0
        self.withheld: dict[str, Counter[str]] = {}
        """Column -> values that were not published, by reason."""
        self.licences: Counter[str] = Counter()
        self.sides = {name: np.zeros(MOST_PIXELS + 1, np.int64) for name in ("width", "height")}
        self.words = {name: np.zeros(MOST_WORDS + 1, np.int64) for name in captions}

    def add(self, table: pa.Table) -> None:
        self.rows += len(table)
        self.copies += pc.sum(table.column("copies")).as_py() or 0
        self.urls += len(table) - table.column("url").null_count
        self.digests += len(table) - table.column("sha256").null_count
        for name, counts in self.sides.items():
            counts += _counted(table.column(name), MOST_PIXELS)
        for name, counts in self.words.items():
            counts += _counted(pc.add(pc.count_substring(table.column(name), " "), 1), MOST_WORDS)
        for line in pc.value_counts(table.column("license")).to_pylist():
            name = line["values"]
            known = name is None or name in self.licences or len(self.licences) < MOST_VALUES
            self.licences[(name or "") if known else OTHERS] += line["counts"]

    def withhold(self, column: str, reasons: Counter[str]) -> None:
        if reasons:
            self.withheld.setdefault(column, Counter()).update(reasons)

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows, "samples": self.copies, "urls": self.urls, "digests": self.digests,
            "withheld": {column: dict(sorted(reasons.items())) for column, reasons in sorted(self.withheld.items())},
            "licences": dict(self.licences.most_common()),
            "pixels": {name: _percentiles(counts) for name, counts in self.sides.items()},
            "words": {name: _percentiles(counts) | {"rows": int(counts.sum())} for name, counts in self.words.items()},
        }  # fmt: skip


def _counted(column: pa.ChunkedArray, most: int) -> NDArray[np.int64]:
    values = column.drop_null().to_numpy()
    return np.bincount(np.clip(values, 0, most), minlength=most + 1)


def _percentiles(counts: NDArray[np.int64]) -> dict[str, int]:
    """Percentile -> the value (nearest rank)."""
    if not counts.any():
        return {}
    total = np.cumsum(counts)
    return {f"p{p}": int(np.searchsorted(total, max(1, -(-total[-1] * p // 100)))) for p in PERCENTILES}
