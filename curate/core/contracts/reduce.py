"""`Reduce`: an artifact out of one pass over the alive rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa

from curate.core.contracts.stage import Artifact, Stage, Table


class Reduce(Stage):
    """A global fact. States are tables, so that they can lie in files and be looked at.

    The engine merges them as a tree, in workers: `merge` gets the states of consecutive shards, or what it has made of
    consecutive stretches of shards, some dozens at a time. So it must be associative over stretches: what comes out of
    merging all at once, `finish` must also make of merged parts. A state must not grow with the pool, or stay far below
    it: one worker holds the last one."""

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
        """States of consecutive shards or stretches, in order -> one state. Keep what adds up apart: sums and counts,
        never a mean; of what is sampled or cut off, as much as a whole pool's state may hold."""
        return pa.concat_tables(list(states))

    def finish(self, state: Table) -> Artifact:
        raise NotImplementedError
