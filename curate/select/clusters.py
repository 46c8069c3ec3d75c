"""Base of the selections over clusters or labels: a quota for each, filled in an order of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr, model_validator

from curate.core.contracts import Added, Artifact, Select, Table
from curate.core.errors import CurateError, TargetError
from curate.core.hashing import ranks
from curate.kernels.groups import position_in_group
from curate.kernels.meta import META, check_label, texts_of
from curate.kernels.tree import TreeShape
from curate.select.sampling import leaf_quotas

NOT_SAMPLED, NO_LABEL = "not_sampled", "no_label"


class SelectClusters(Select):
    """Units are the clusters of a level, leaves by default, or the labels that rows have. One with fewer rows than its
    quota gives all of them."""

    ports: ClassVar[dict[str, str]] = {"tree": "cluster_tree"}
    optional_ports: ClassVar[tuple[str, ...]] = ("tree",)
    sizes: ClassVar[tuple[str, ...]] = ("target", "share")
    """Parameters that say how many rows to take; a recipe gives one of them."""

    target: int | None = Field(None, ge=1, description="Rows to take, including copies; or give `share`.")
    share: float | None = Field(
        None,
        gt=0,
        le=1000,
        description="Rows to take, including copies, as a share of the stage's rows; or give `target`.",
    )
    multiplier: int = Field(1, ge=1, description="Most copies of a row.")
    seed: int = Field(0, ge=0, description="Seed of every random choice.")
    by: Annotated[str | None, Added()] = Field(
        None,
        description="Column of labels, or `meta.FIELD`: samples among these in place of clusters, without `tree`. Rows "
        "without a label are rejected: no_label.",
    )

    _parents: list[NDArray[np.int64]] = PrivateAttr()
    _clusters: int = PrivateAttr()
    """Number of clusters of the level."""

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        given = {name: getattr(self, name) for name in self.sizes}
        if sum(value is not None for value in given.values()) != 1:
            some = {name: value for name, value in given.items() if value is not None} or given
            text = " with ".join(f"{name}: {value}" for name, value in some.items())
            which = "the two" if len(self.sizes) == 2 else ", ".join(self.sizes)
            raise ValueError(f"{text}; give one of {which}")
        return self

    def units_level(self) -> int:
        """Level of the tree whose clusters have quotas."""
        return 1

    def even_share(self) -> float:
        """Share of the target that is distributed evenly; the rest is distributed by size."""
        return 1.0

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        """Raises CurateError if the tree has fewer levels."""
        if self.by is not None:
            self._parents = []
            return
        shape, level = TreeShape.of(artifacts["tree"]), self.units_level()
        if level > len(shape.clusters):
            raise CurateError(f"{self.op}.level: {level}, but its `tree` has {len(shape.clusters)}; lower it")
        self._parents = list(shape.parents[level - 1 :])
        self._clusters = shape.clusters[level - 1]

    def check_ports(self, given: Mapping[str, str]) -> None:
        if self.by is None and "tree" not in given:
            raise CurateError("port 'tree' is missing; give the stage that makes the cluster_tree, or `by`: labels")
        if self.by is not None and "tree" in given:
            raise CurateError(f"by: {self.by} with tree: {given['tree']}; give one of the two")

    def check_columns(self, columns: pa.Schema) -> None:
        """Raises CurateError if `by` is a column of other values than labels."""
        if self.by is not None and not self.by.startswith(META):
            check_label("by", columns.field(self.by))

    def meta_fields(self) -> tuple[str, ...]:
        return () if self.by is None else (self.by,)

    def scaled(self, fraction: float) -> Self:
        if self.target is None:
            return self
        return self.model_copy(update={"target": max(1, int(self.target * fraction))})

    def target_rows(self) -> int | None:
        return self.target

    def order_columns(self) -> tuple[str, ...]:
        """Columns that order the rows of a cluster."""
        return ()

    def order(self, lines: Table, quotas: NDArray[np.int64]) -> NDArray[np.floating] | None:
        """Numbers (m,) by which the rows of a cluster are taken, smallest first, NaN last, ties by hash(seed, key);
        None: by the hash alone. quotas: of all clusters (K,), in copies."""
        return None

    def reads(self) -> tuple[str, ...]:
        if self.by is None:
            return (f"cluster_{self.units_level()}", *self.order_columns())
        return tuple(dict.fromkeys(["meta" if self.by.startswith(META) else self.by, *self.order_columns()]))

    def deal(self, table: Table) -> Table:
        """Raises CurateError for clusters that are not in the tree."""
        kept = ["key", *self.order_columns()]
        if self.by is not None:
            return table.select(kept).append_column("unit", texts_of(table, self.by))
        name = f"cluster_{self.units_level()}"
        column = table.column(name)
        units = column.fill_null(-1).to_numpy().astype(np.int64)
        if len(units) and not 0 <= units.min() <= units.max() < self._clusters:
            raise CurateError(
                f"{self.op}: {name} holds {units.min()}..{units.max()} ({column.null_count} null), but its `tree` has "
                f"{self._clusters} clusters there; select from rows that were assigned to this tree"
            )
        return table.select(kept).append_column("unit", pa.array(units))

    def plan(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Raises TargetError if the pool cannot give the target."""
        if self.by is not None:
            if not len(counts):
                raise TargetError(
                    f"{self.op}: no row that reaches it has a value of {self.by}; give `by` another column"
                )
            return self.quotas(counts)
        rows = np.zeros(self._clusters, dtype=np.int64)
        rows[: len(counts)] = counts
        return self.quotas(rows)

    def quotas(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """rows (K,) per cluster -> copies (K,) per cluster. Raises TargetError."""
        if self.target is not None:
            target = self.target
        else:
            assert self.share is not None
            target = max(1, int(self.share * rows.sum()))
        return leaf_quotas(rows, self._parents, target, self.multiplier, self.seed, self.even_share())

    def remark(self, counts: NDArray[np.int64]) -> str:
        if self.by is None or len(counts) > 1:
            return ""
        return f"all {counts.sum():,} rows have one value of {self.by}, so that this is a random sample; check `by`"

    def pick(self, lines: Table, counts: NDArray[np.int64], quotas: NDArray[np.int64]) -> dict[str, Any]:
        known = lines.column("unit").is_valid()
        held, copies = lines.filter(known), np.zeros(lines.num_rows, dtype=np.int64)
        rank = ranks(self.seed, held.column("key").to_pylist())
        copies[known.to_numpy()] = copies_of(held.column("unit").to_numpy(), quotas, rank, self.order(held, quotas))
        reasons = pc.if_else(known, NOT_SAMPLED, NO_LABEL)
        return {"copies": copies, "reject": pc.if_else(copies > 0, pa.scalar(None, pa.string()), reasons)}


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
