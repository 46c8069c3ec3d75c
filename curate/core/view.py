"""What a report may look at: every noun upstream of it, read-only, a shard at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from curate.core.contracts import Artifact
from curate.core.nouns import Manifest


class View(Protocol):
    stages: dict[str, Manifest]
    """Stage name -> its committed manifest (op, parameters, ledger, seconds, built_rows, bytes), in DAG order."""

    pinned: dict[str, Manifest]
    """`pin:NAME` -> manifest of an artifact that ports upstream take from the workspace; no stage here has made it."""

    def columns(self) -> tuple[str, ...]:
        """Names of all columns that can be asked for: the pool's, the upstream Maps', and what else `tables` has."""
        ...

    def tables(self, names: Sequence[str], shards: int = 0) -> Iterator[pa.Table]:
        """A table per shard, all rows: the named columns that exist, and `key`. Also to be had: `rejected_by` (name of
        the stage that the row left at, or null) and `reject_reason`; `copies` (int32, 0 where not selected); by item
        `item_copies` and `item_expected` (lists of float32: copies, and how many the selection expected by chance).
        `shards`: at most so many of them, chosen by hash, the same ones in every call; 0: all."""
        ...

    def size(self) -> tuple[int, int]:
        """Shards of the pool, and their rows: how many tables there are in all."""
        ...

    def rows_of(self, keys: Sequence[str], names: Sequence[str]) -> Iterator[pa.Table]:
        """The rows of these keys, as `tables` has them, a table per shard that holds any. Meant for hundreds."""
        ...

    def artifact(self, stage: str) -> Artifact:
        """The artifact of a Reduce or a Fit, by stage name; a pinned one by `pin:NAME`."""
        ...

    def quotas(self) -> pa.Table | None:
        """`count` (rows there were) and `quota` (copies asked for) of every unit of the selection upstream, if any."""
        ...

    def images(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Encoded images by key; those that have no bytes are left out. Meant for hundreds, not for millions."""
        ...

    def dataset(self) -> dict[str, Any] | None:
        """The dataset's path, fingerprint, samples, tars and bytes, when a Pack is upstream."""
        ...
