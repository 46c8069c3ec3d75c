"""`Fit`: an artifact out of many passes over the alive rows, which workers hold in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from numpy.typing import NDArray

from curate.core.contracts.stage import Artifact, Stage, Table

if TYPE_CHECKING:
    from curate.core.group import Group


class Fit(Stage):
    """A global fact that takes many passes over the rows, or their regrouping: workers hold them in parts."""

    kind: ClassVar[str] = ""
    """What other stages' ports call this artifact."""

    def reads(self) -> tuple[str, ...]:
        return ()

    def made(self, schema: pa.Schema) -> dict[str, str]:
        """What the columns say of how they were made, as far as all shards must agree: `fit` finds it in the group."""
        return {}

    def load(self, table: Table) -> dict[str, NDArray[Any]]:
        """What workers hold of one shard's live rows: arrays of as many rows as should take part, of the same names,
        types and trailing shapes for every shard, also for one without rows. Raises InputError."""
        raise NotImplementedError

    def fit(self, group: Group) -> Artifact:
        """Runs in the driver: steps see rows, it sees what they return. What steps `store` is part of the artifact."""
        raise NotImplementedError
