"""`Select`: which rows go on, and how often."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from curate.core.contracts.stage import Stage, Table


class Select(Stage):
    """Which rows go on, and how often. `units` are what quotas are given to: clusters, concepts."""

    spread: ClassVar[bool] = False
    """Whether `pick` looks at rows one by one, so that the rows of a unit may be dealt to several buckets."""
    multiplier: int = 1
    """The most copies of one row, or of one of its items."""

    def reads(self) -> tuple[str, ...]:
        return ()

    def target_rows(self) -> int | None:
        """Rows asked for, copies counted; None when the stage takes what it takes."""
        return None

    def dealt(self, table: Table) -> Table:
        """What the methods below see of the live rows of a shard, and what goes to buckets: `key` and what the stage
        reads, or something smaller that says as much."""
        return table

    def units(self, table: Table) -> NDArray[np.int64]:
        """Unit (>= 0) of each live row of a shard."""
        return np.zeros(table.num_rows, dtype=np.int64)

    def counted(self, table: Table, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """Units (m,) of what `plan` counts: the live rows, or the items of these for stages that choose among items."""
        return units

    def plan(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """counts (U,): what is `counted`, per unit -> quotas (U,): copies per unit. Raises TargetError, naming the
        maximum."""
        raise NotImplementedError

    def planned(self, counts: NDArray[np.int64], quotas: NDArray[np.int64]) -> None:
        """What `plan` was given and has returned, before every `pick`: for stages that pick by more than the quotas."""

    def pick(self, rows: Table, units: NDArray[np.int64], quotas: NDArray[np.int64]) -> dict[str, Any]:
        """All rows of some whole units (any rows, if `spread`) -> `copies` (0 = rejected), `reject` (reason where 0).

        Stages that choose among items return them one by one: `row` (m,), ascending places in `rows`, each at least
        once; `item` (m,), their names; and `copies`, `reject` (m,). `expected` (m,), if any, is how many copies chance
        was to give: what a report holds against what it gave. `unit` (m,), if any, is what each item was counted under.
        """
        raise NotImplementedError
