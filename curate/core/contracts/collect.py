"""`Collect`: makes an artifact of external rows, in portions that a Source reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from curate.core.contracts.source import Portion
from curate.core.contracts.stage import Stage, Table

GROUP, ROW = "group", "row"
"""Columns of the tables that `read` yields (uint64): hash of what rows must have in common to be in one portion (null:
the row is dropped, and its `reject` is counted), and hash of the whole row."""
PORTIONS = "portions"
"""Part of the artifact: a table with a line per portion. `base` and `file` name its file, `index` its row group."""


class Collect(Stage):
    """External rows, too many for memory, as an artifact: files whose row groups are portions.

    The engine sorts the rows by `group`, and drops rows whose `group` and `row` are those of an earlier row. It divides
    them into portions of about `portion_rows` rows, but never divides a group. A portion of an earlier artifact with
    the same parameters is unchanged if all its rows are still there: a grown input adds portions with its new rows,
    also those of known groups.
    """

    kind: ClassVar[str] = ""
    """Kind of the artifact, by which ports name it."""
    portion_rows: int

    def plan(self) -> list[Portion]:
        """The input, divided into parts that `read` reads one by one. Raises InputError if there is none."""
        raise NotImplementedError

    def read(self, portion: Portion) -> Iterator[Table]:
        """Rows of a part, with GROUP, ROW and `reject` among the columns; never a whole file at once."""
        raise NotImplementedError
