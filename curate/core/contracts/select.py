"""`Select`: which rows are selected, and how many copies of each."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from curate.core.contracts.stage import Stage, Table


class Select(Stage):
    """Which rows are selected, and how many copies of each. To select items of rows (texts), deal a line per item."""

    target_name: ClassVar[str] = "target"
    """Parameter that `target_rows` reads, for messages."""

    multiplier: int = 1
    """Most copies of a row, or of one of its items."""

    def bucket_rows(self) -> int | None:
        """Most rows, on average, whose lines one `pick` receives, if the lines are long. None: the engine decides."""
        return None

    def draw(self) -> str:
        """What decides the rows apart from pool and size, for a selection whose samples contain each other: two
        stages with the same value are not independent. "" for other selections."""
        return ""

    def deal(self, table: Table) -> Table:
        """Live rows of a shard (`key` and the columns that the stage reads) -> lines to choose from, in row order, with
        only the columns that `pick` needs. Some columns have a meaning:

        `unit` (int64, >= 0): the cluster or concept that has a quota. All rows of a unit reach one `pick`. Without it,
        rows are counted as unit 0, and a `pick` gets an arbitrary part of them, so it must judge each row by itself.
        Texts are labels: `plan` and `pick` get numbers for them, 0 … U - 1 in the order of the pool's labels. A row
        whose label is null is not counted.
        `item` (string) and `row` (int64, position in `table`): a line per item, at least one per row; a null `unit` is
        not counted. All items of a row reach one `pick`, but the items of a unit reach several."""
        return table

    def plan(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """counts (U,): lines per unit -> quotas (U,): copies per unit. Raises TargetError, naming the maximum."""
        raise NotImplementedError

    def remark(self, counts: NDArray[np.int64]) -> str:
        """What is probably a mistake, given lines per unit (U,); "" for nothing. The run warns of it."""
        return ""

    def pick(self, lines: Table, counts: NDArray[np.int64], quotas: NDArray[np.int64]) -> dict[str, Any]:
        """lines (m,): a part of the lines of all shards, with `key` and `unit`; counts and quotas (U,) of the whole
        pool -> `copies` (m,), 0 to reject; `reject` (m,), the reason if 0; and optionally `expected` (m,): the expected
        number of copies of a random choice, which a report compares with the actual one."""
        raise NotImplementedError
