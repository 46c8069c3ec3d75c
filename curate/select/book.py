"""The counts of entries as a selection looks them up: by entry, or by group and entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.kernels.entries import Entries, Known


@dataclass(frozen=True)
class Book:
    """Rows of the table of counts, commonest first, by what they are of. Row K, behind the last, is what was never
    counted: it stands for the rarest of all."""

    index: Known
    groups: dict[str, int]
    counts: NDArray[np.int64]
    """(K + 1,): texts that have the entry; 1 for what was never counted."""
    group: NDArray[np.int64]
    """(K + 1,): the group that each row is of; -1 for what was never counted."""
    keys: NDArray[np.int64]
    """(K,): group * entries + entry of each row, ascending; of no use with one group, where entries are rows."""
    rows: NDArray[np.int64]
    """(K,): the rows in that order."""

    @classmethod
    def of(cls, table: pa.Table) -> Self:
        """`table`: entry, by, count; commonest first."""
        entry, by = (table.column(name).combine_chunks().dictionary_encode() for name in ("entry", "by"))
        index = Known(entry.dictionary)
        groups = {name: number for number, name in enumerate(by.dictionary.to_pylist())}
        group = by.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        keys = group * max(1, len(index)) + entry.indices.to_numpy(zero_copy_only=False)
        rows = np.argsort(keys, kind="stable")
        counts = np.append(table.column("count").to_numpy(), 1)
        return cls(index, groups, counts, np.append(group, -1), keys[rows], rows)

    @property
    def unknown(self) -> int:
        """Number of the row behind the last."""
        return len(self.rows)

    def rows_of(self, found: Entries, group: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Row (P,) of the pairs of `found`, whose entries are numbered by `index`; `group` (m,) of its items as
        `groups` numbers them, -1 for others; None without groups."""
        if group is None:
            return found.entry  # in the order of the table, and the unknown behind them
        wanted = group[found.item] * max(1, len(self.index)) + found.entry
        wanted[(group[found.item] < 0) | (found.entry == len(self.index))] = -1
        place = np.minimum(np.searchsorted(self.keys, wanted), max(0, len(self.keys) - 1))
        if not len(self.keys):
            return np.full(len(wanted), self.unknown)
        return np.where(self.keys[place] == wanted, self.rows[place], self.unknown)
