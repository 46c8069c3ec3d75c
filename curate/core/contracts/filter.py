"""`Filter`: which rows, or which items of rows, go on. Every threshold of the project is one.

A filter only decides; what it decides by are columns that Maps wrote. So another threshold computes nothing again.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from curate.core.contracts.stage import Stage, Table


class Filter(Stage):
    """Judges each alive row by the columns it `reads`. It has no ports: what needs an artifact is a Map that writes a
    column. What it says of a row must not depend on the rows beside it."""

    def reads(self) -> tuple[str, ...]:
        """Columns of the pool's table or of upstream Maps; `key` is always there."""
        raise NotImplementedError

    def places(self) -> str | None:
        """None where `keep` judges rows; the list column whose places its reasons follow where it judges items."""
        return None

    def check(self, columns: pa.Schema) -> None:
        """Raise CurateError where these columns cannot be judged. Called before anything runs, with all columns that
        reach the stage; `pa.null()` is a type that is not known yet."""

    def keep(self, table: Table) -> Any:
        """Reasons (n,): null keeps the row, a snake_case word rejects it. For items (`places`): a list per row, of the
        length of the row's items, null where the row has none; a row that has no item left is rejected. Items that an
        earlier filter rejected are null in `table`. Arrow array or list of strings."""
        raise NotImplementedError
