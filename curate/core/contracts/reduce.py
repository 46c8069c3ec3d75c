"""`Reduce`: an artifact out of one pass over the alive rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa

from curate.core.contracts.stage import Artifact, Stage, Table


class Reduce(Stage):
    """A global fact. States are tables, so that they can lie in files and be looked at."""

    kind: ClassVar[str] = ""
    """What other stages' ports call this artifact."""

    def reads(self) -> tuple[str, ...]:
        return ()

    def counting(self) -> dict[str, Any]:
        """What decides `partial`, JSON-able: states are kept under it. Parameters of `merge` and `finish` alone may be
        left out; another value of them then looks at no row again."""
        return {"parameters": self.parameters(), "identity": self.identity()}

    def partial(self, table: Table) -> Table:
        """State of one shard's live rows (`key` and what it `reads`)."""
        raise NotImplementedError

    def merge(self, states: Iterator[Table]) -> Table:
        """States in shard order -> one state."""
        return pa.concat_tables(list(states))

    def finish(self, state: Table) -> Artifact:
        raise NotImplementedError
