"""A bounded sample of rows, by group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


class Reservoir:
    """Keeps the `size` rows of lowest order of each group."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._groups: NDArray[np.int64] = np.empty(0, np.int64)
        self._order: NDArray[Any] | None = None
        self._table: pa.Table | None = None

    def add(self, table: pa.Table, groups: NDArray[np.int64], order: NDArray[Any]) -> None:
        """`groups`, `order`: (n,), one per row of `table`."""
        best = first_per_group(groups, order, self.size)
        if len(best) == 0:
            return
        table, groups, order = table.take(best), groups[best], order[best]
        if self._table is not None and self._order is not None:
            table = pa.concat_tables([self._table, table], promote_options="permissive")
            groups, order = np.r_[self._groups, groups], np.r_[self._order, order]
            best = first_per_group(groups, order, self.size)
            table, groups, order = table.take(best), groups[best], order[best]
        self._table, self._groups, self._order = table, groups, order

    def table(self) -> tuple[pa.Table | None, NDArray[np.int64]]:
        """The rows, None without any, and the group of each (n,)."""
        return self._table, self._groups

    def rows(self) -> dict[int, list[dict[str, Any]]]:
        """Rows by group, lowest order first."""
        found: dict[int, list[dict[str, Any]]] = {}
        if self._table is not None:
            for group, row in zip(self._groups.tolist(), self._table.to_pylist(), strict=True):
                found.setdefault(group, []).append(row)
        return found


def first_per_group(groups: NDArray[np.int64], order: NDArray[np.generic], count: int) -> NDArray[np.int64]:
    """Indices of the `count` rows of lowest `order` in each group, by group, then order; ties keep their order."""
    if len(groups) == 0:
        return np.empty(0, np.int64)
    index = np.lexsort((order, groups))
    ordered = groups[index]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lengths = np.diff(np.r_[starts, len(ordered)])
    within = np.arange(len(ordered)) - np.repeat(starts, lengths)
    return index[within < count]
