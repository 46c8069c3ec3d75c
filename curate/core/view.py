"""Read access of a report to every noun upstream, a shard at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from curate.core.contracts.stage import Artifact
from curate.core.errors import Reject
from curate.core.nouns.manifest import Manifest
from curate.core.reader import Reader
from curate.core.spend import RunSpend


class View(Protocol):
    stages: dict[str, Manifest]
    """Stage name -> its committed manifest (op, parameters, ledger, seconds, built_rows, bytes), in DAG order."""

    @property
    def selected_by(self) -> str | None:
        """The stage whose selection `copies` and `quotas` are of. Other selections in `stages` chose rows to fit on."""
        ...

    spend: RunSpend
    """What the run has spent at endpoints so far."""

    pinned: dict[str, Manifest]
    """`pin:NAME` -> manifest of a pinned artifact that a port upstream reads; no stage of the recipe has built it."""

    def columns(self) -> tuple[str, ...]:
        """Names of all columns of `tables`: the pool's, those of upstream Maps, and the further ones listed there."""
        ...

    def tables(self, names: Sequence[str], shards: int = 0) -> Iterator[pa.Table]:
        """A table per shard with all rows: `key` and the named columns that exist. Further columns: `rejected_by` (name
        of the stage at which the row left, or null) and `reject_reason`; `copies` (int32, 0 if not selected, or if
        rejected after that); by item `item_copies` and `item_expected` (lists of float32: copies, and their expected
        number if chosen at random). `shards`: the number of shards to read, chosen by hash, the same in every call; 0:
        all."""
        ...

    def size(self) -> tuple[int, int]:
        """Number of shards of the pool, and of their rows."""
        ...

    def rows_of(self, keys: Sequence[str], names: Sequence[str]) -> Iterator[pa.Table]:
        """Rows by key, with the columns of `tables`, a table per shard that has any. Meant for hundreds."""
        ...

    def artifact(self, stage: str) -> Artifact:
        """The artifact of a Reduce or a Fit, by stage name; a pinned one by `pin:NAME`."""
        ...

    def quotas(self) -> pa.Table | None:
        """`count` (rows available) and `quota` (copies requested) of each unit of the selection upstream, if any."""
        ...

    def images(self, keys: Sequence[str]) -> Iterator[tuple[str, Reader | Reject]]:
        """Keys and encoded images or videos, or why one cannot be read, one at a time; nothing for rows without bytes.
        Meant for hundreds, not for millions."""
        ...

    def dataset(self) -> dict[str, Any] | None:
        """Path, fingerprint, samples, tars and bytes of the dataset, if a Pack is upstream."""
        ...
