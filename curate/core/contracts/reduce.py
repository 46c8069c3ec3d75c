"""`Reduce`: an artifact from one pass over the live rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa

from curate.core.contracts.stage import Artifact, Stage, Table


class Reduce(Stage):
    """A global fact. States are tables, so that they can be stored and inspected.

    The engine merges states as a tree in workers: `merge` gets the states of some dozens of consecutive shards, or of
    consecutive ranges of shards that it has merged. It must be associative over consecutive ranges: `finish` must give
    the same result however they were merged. A state must be far smaller than the pool, because one worker holds the
    last one."""

    kind: ClassVar[str] = ""
    """Kind of the artifact, by which ports name it."""

    def counting(self) -> dict[str, Any]:
        """The values that determine `partial`, JSON-able; states are cached by them. Parameters used only by `merge`
        and `finish` may be left out, so that changing them reads no rows."""
        return {"parameters": self.parameters(), "identity": self.identity()}

    def partial(self, table: Table) -> Table:
        """State of a shard's live rows (`key` and the columns that the stage `reads`)."""
        raise NotImplementedError

    def merge(self, states: Iterator[Table]) -> Table:
        """States of consecutive shards or ranges, in order -> one state. Keep sums and counts, never a mean; keep
        samples and truncated lists as long as in the state of the whole pool."""
        return pa.concat_tables(list(states))

    def finish(self, state: Table) -> Artifact:
        raise NotImplementedError
