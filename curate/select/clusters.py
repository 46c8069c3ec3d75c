"""Base of the selections over a tree of clusters: a quota for each leaf, filled in an order of the leaf's rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr, model_validator

from curate.core.contracts import Artifact, Select, Table
from curate.core.errors import CurateError
from curate.core.hashing import ranks
from curate.kernels.groups import position_in_group
from curate.select.sampling import leaf_quotas

NOT_SAMPLED = "not_sampled"


class SelectClusters(Select):
    """Units are leaf clusters. A leaf with fewer rows than its quota gives all of them."""

    ports: ClassVar[dict[str, str]] = {"tree": "cluster_tree"}
    sizes: ClassVar[tuple[str, ...]] = ("target", "share")
    """Parameters that say how many rows to take; a recipe gives one of them."""

    target: int | None = Field(None, ge=1, description="Rows to take, including copies; or give `share`.")
    share: float | None = Field(
        None,
        gt=0,
        description="Rows to take, including copies, as a share of the stage's rows; or give `target`.",
    )
    multiplier: int = Field(1, ge=1, description="Most copies of a row.")
    seed: int = Field(0, ge=0, description="Seed of every random choice.")

    _parents: list[NDArray[np.int64]] = PrivateAttr()
    _leaves: int = PrivateAttr()

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        given = {name: getattr(self, name) for name in self.sizes}
        if sum(value is not None for value in given.values()) != 1:
            some = {name: value for name, value in given.items() if value is not None} or given
            text = " with ".join(f"{name}: {value}" for name, value in some.items())
            which = "the two" if len(self.sizes) == 2 else ", ".join(self.sizes)
            raise ValueError(f"{text}; give one of {which}")
        return self

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        tree = artifacts["tree"]
        self._parents = [np.asarray(tree[f"parents_{t}"]) for t in range(1, len(tree["levels"]["levels"]))]
        self._leaves = tree["levels"]["levels"][0]["clusters"]

    def scaled(self, fraction: float) -> Self:
        if self.target is None:
            return self
        return self.model_copy(update={"target": max(1, int(self.target * fraction))})

    def target_rows(self) -> int | None:
        return self.target

    def order_columns(self) -> tuple[str, ...]:
        """Columns that order the rows of a leaf."""
        return ()

    def order(self, lines: Table) -> NDArray[np.floating] | None:
        """Numbers (m,) by which the rows of a leaf are taken, smallest first, NaN last, ties by hash(seed, key); None:
        by the hash alone."""
        return None

    def reads(self) -> tuple[str, ...]:
        return ("cluster_1", *self.order_columns())

    def deal(self, table: Table) -> Table:
        """Raises CurateError for clusters that are not in the tree."""
        column = table.column("cluster_1")
        leaves = column.fill_null(-1).to_numpy().astype(np.int64)
        if len(leaves) and not 0 <= leaves.min() <= leaves.max() < self._leaves:
            raise CurateError(
                f"{self.op}: cluster_1 holds {leaves.min()}..{leaves.max()} ({column.null_count} null), but its `tree` "
                f"has {self._leaves} leaves; select from rows that were assigned to this tree"
            )
        return table.select(["key", *self.order_columns()]).append_column("unit", pa.array(leaves))

    def plan(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Raises TargetError if the pool cannot give the target."""
        rows = np.zeros(self._leaves, dtype=np.int64)
        rows[: len(counts)] = counts
        return self.quotas(rows)

    def quotas(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """rows (K_1,) per leaf -> copies (K_1,) per leaf. Raises TargetError."""
        if self.target is not None:
            target = self.target
        else:
            assert self.share is not None
            target = max(1, int(self.share * rows.sum()))
        return leaf_quotas(rows, self._parents, target, self.multiplier, self.seed)

    def pick(self, lines: Table, counts: NDArray[np.int64], quotas: NDArray[np.int64]) -> dict[str, Any]:
        rank = ranks(self.seed, lines.column("key").to_pylist())
        copies = copies_of(lines.column("unit").to_numpy(), quotas, rank, self.order(lines))
        return {"copies": copies, "reject": pc.if_else(copies > 0, pa.scalar(None, pa.string()), NOT_SAMPLED)}


def copies_of(
    units: NDArray[np.int64],
    quotas: NDArray[np.int64],
    rank: NDArray[np.uint64],
    order: NDArray[np.floating] | None = None,
) -> NDArray[np.int64]:
    """Copies (n,) of all rows of some units; `units` (n,) index `quotas` (U,), in copies.

    Rows of a unit are taken in order of `rank`, or of `order` if given, with ties by rank. A quota above the unit's
    size is spread evenly over its rows; the first rows get the remainder.
    """
    places = np.lexsort((rank, units) if order is None else (rank, order, units))
    group = units[places]
    _, place, count = np.unique(group, return_inverse=True, return_counts=True)  # U may be far more than n
    size = count[place]
    each, rest = np.divmod(quotas[group], size)
    copies = np.empty(len(units), dtype=np.int64)
    copies[places] = each + (position_in_group(group) < rest)
    return copies
