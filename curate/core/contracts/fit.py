"""`Fit`: an artifact from many passes over the live rows, which workers hold in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from numpy.typing import NDArray

from curate.core.contracts.stage import Artifact, Stage, Table

if TYPE_CHECKING:
    from curate.core.group import Group


class Fit(Stage):
    """A global fact that takes many passes over the rows or regroups them. Workers hold the rows in parts."""

    kind: ClassVar[str] = ""
    """Kind of the artifact, by which ports name it."""

    def provenance(self, schema: pa.Schema) -> dict[str, str]:
        """Provenance of the columns that must be equal for all shards; `fit` finds it in the group."""
        return {}

    def load(self, table: Table) -> dict[str, NDArray[Any]]:
        """Arrays for workers to hold of a shard's live rows: n rows each for the rows that take part. Names, types and
        trailing shapes must be equal for all shards, including empty ones. Raises InputError."""
        raise NotImplementedError

    def fit(self, group: Group) -> Artifact:
        """Runs in the driver. Only steps see rows; `fit` sees their results. Arrays that steps `store` belong to the
        artifact."""
        raise NotImplementedError
