"""`duplicates.members` writes each row's duplicate set and its kind; `duplicates.drop` rejects rows by kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, PrivateAttr

from curate.core.contracts import Artifact, Batch, Filter, Map, Table
from curate.core.errors import CurateError
from curate.core.hashing import keys_of_words
from curate.core.row_lookup import SHARDS, RowLookup, as_words, found_in, packed_keys
from curate.duplicates.near.find import KIND, KINDS, MEMBERS

_REJECT_LEVELS = ["none", *KINDS[1:]]
"""Values of `reject`; each value rejects its kind and all kinds before it."""
_NAME = r"^[a-z][a-z0-9_]*$"


class DuplicateMembers(Map):
    """Look up every row in the sets of `duplicates.find` or `duplicates.semantic`.

    Writes `<column>_set` (key of the set's keeper), `<column>_of` (the same key, null for keepers) and
    `<column>_kind`. A row in no set is its own keeper.
    """

    op: ClassVar[str] = "duplicates.members"
    ports: ClassVar[dict[str, str]] = {"sets": KIND}
    batch_rows: ClassVar[int] = 4096
    by_shard: ClassVar[bool] = True

    column: str = Field(
        "duplicate",
        pattern=_NAME,
        description="Prefix of the columns `<column>_set`, `<column>_of` and `<column>_kind`. Give each such stage "
        "over a pool a different prefix.",
    )

    _members: Any = PrivateAttr(None)
    """Lookup in the sets; None before `setup`."""
    _sets: str = PrivateAttr(default="")
    """Kinds in the sets, for `duplicates.drop`: `semantic` or `exact near`; empty before `setup`."""

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        """Raises CurateError if an older version of curate wrote the sets."""
        sets = artifacts["sets"]
        if SHARDS not in sets:
            raise CurateError(
                f"{self.op}.sets: an older version of curate wrote these sets; rerun the stage that finds them"
            )
        self._members = RowLookup(sets, MEMBERS)
        self._sets = "semantic" if "semantic_duplicates" in sets["summary"] else "exact near"

    def schema(self) -> pa.Schema:
        metadata = {
            f"{self.column}_set": {"of": "key of the set's keeper; own key when alone"},
            f"{self.column}_of": {"of": "key of the keeper; null for the keeper"},
            f"{self.column}_kind": {"values": " ".join(KINDS), **({"sets": self._sets} if self._sets else {})},
        }
        return pa.schema([pa.field(name, pa.string(), metadata=about) for name, about in metadata.items()])

    def process(self, batch: Batch) -> dict[str, Any]:
        keys = packed_keys(batch.table.column("key"))
        sets, kinds = keys.copy(), np.zeros(len(keys), dtype=np.int8)
        for rows, members in self._members.files(batch.table):
            at, member = found_in(members["key"], keys[rows])
            sets[rows[member]] = members["keeper"][at[member]]
            kinds[rows[member]] = members["kind"][at[member]]
        names = pa.array(keys_of_words(as_words(sets)), pa.string())
        return {
            f"{self.column}_set": names,
            f"{self.column}_of": pc.if_else(pa.array(kinds > 0), names, pa.scalar(None, pa.string())),
            f"{self.column}_kind": pa.array(KINDS, pa.string()).take(pa.array(kinds)),
        }


class DropDuplicates(Filter):
    """Reject members of duplicate sets by kind; a set's keeper always passes.

    Rejects: exact_duplicate; with `near` also near_duplicate; with `semantic` also semantic_duplicate.
    """

    op: ClassVar[str] = "duplicates.drop"
    version: ClassVar[int] = 2

    reject: Literal["none", "exact", "near", "semantic"] = Field(
        "near",
        description="Members to reject: none; exact duplicates; exact and near duplicates; or exact, near and semantic "
        "duplicates.",
    )
    column: str = Field("duplicate", pattern=_NAME, description="`column` of the `duplicates.members` stage to use.")

    def reads(self) -> tuple[str, ...]:
        return (f"{self.column}_kind",)

    def keep(self, table: Table) -> pa.ChunkedArray:
        """Raises CurateError if `reject` covers none of the kinds in the sets."""
        (name,) = self.reads()
        kinds_in_sets = (table.schema.field(name).metadata or {}).get(b"sets")
        if self.reject in ("exact", "near") and kinds_in_sets == b"semantic":
            raise CurateError(
                f"{self.op}.reject: {self.reject!r} rejects nothing, since the sets of {name!r} are semantic; "
                "write semantic or none"
            )
        kinds = table.column(name)
        rejected = pa.array(_REJECT_LEVELS[1 : _REJECT_LEVELS.index(self.reject) + 1], pa.string())
        reasons = pc.binary_join_element_wise(kinds, "duplicate", "_")
        return pc.if_else(pc.is_in(kinds, rejected), reasons, pa.scalar(None, pa.string()))
