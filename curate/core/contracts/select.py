"""`Select`: which rows go on, and how often."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.contracts.stage import Stage, Table


class Select(Stage):
    """Which rows go on, and how often. A stage that chooses among the items of rows (texts) deals a line per item."""

    multiplier: int = 1
    """The most copies of one row, or of one of its items."""

    def reads(self) -> tuple[str, ...]:
        return ()

    def target_rows(self) -> int | None:
        """Rows asked for, copies counted, so that a run fails before it computes anything; None if it takes what it
        takes."""
        return None

    def deal(self, table: Table) -> Table:
        """Live rows of a shard (`key` and what the stage reads) -> lines to choose from, in order of rows; no more
        columns than `pick` needs. Some columns have a meaning:

        `unit` (int64, >= 0): what quotas are given to, a cluster or a concept. All rows of a unit reach one `pick`.
        Without it, rows are counted under unit 0 and `pick` sees any of them, so it must judge each alone.
        `item` (string) and `row` (int64, place in `table`): a line per item, at least one per row; a null `unit` is
        not counted. All items of a row reach one `pick`, but those of a unit reach many."""
        return table

    def plan(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """counts (U,): lines per unit -> quotas (U,): copies per unit. Raises TargetError, naming the maximum."""
        raise NotImplementedError

    def pick(self, lines: Table, counts: NDArray[np.int64], quotas: NDArray[np.int64]) -> dict[str, Any]:
        """lines (m,): a part of what all shards dealt, with `key` and `unit`; the whole pool's counts and quotas (U,)
        -> `copies` (m,), 0 rejects; `reject` (m,), the reason where 0; and `expected` (m,), if any: the copies that
        chance was to give, which a report compares with those it gave."""
        raise NotImplementedError
