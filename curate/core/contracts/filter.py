"""`Filter`: decides which rows, or which items of rows, pass. Every threshold of the project is a filter.

A filter decides by columns that Maps have computed, so that changing a threshold recomputes nothing.
"""

from __future__ import annotations

from typing import Any, ClassVar

from curate.core.contracts.stage import Stage, Table


class Filter(Stage):
    """Judges each live row by the columns it `reads`. It has no ports: let a Map read an artifact and write a column.
    The result for a row must not depend on other rows."""

    emptied: ClassVar[str] = "look at its threshold"
    """What the run says if it rejects all rows: why, or what to do."""

    def reads(self) -> tuple[str, ...]:
        """Columns of the pool's table or of upstream Maps; `key` is always there."""
        raise NotImplementedError

    def keep(self, table: Table) -> Any:
        """Reasons (n,), as an Arrow array or a list of strings: null keeps the row, a snake_case word rejects it. For
        items (`places`): a list per row, as long as the row's items; null if the row has none. A row without remaining
        items is rejected. Items that an earlier filter rejected are null in `table`."""
        raise NotImplementedError
