"""`duplicates.members` says which duplicate set a row is in, and as what; `duplicates.drop` decides by that."""

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

_REJECTED = ["none", *KINDS[1:]]
"""`reject` rejects every kind up to its value."""
_NAME = r"^[a-z][a-z0-9_]*$"


class DuplicateMembers(Map):
    """Look every row up in the sets of `duplicates.find` or of `duplicates.semantic`.

    Writes `<column>_set` (key of the set's keeper), `<column>_of` (the same, null for keepers) and `<column>_kind`.
    """

    op: ClassVar[str] = "duplicates.members"
    ports: ClassVar[dict[str, str]] = {"sets": KIND}
    batch_rows: ClassVar[int] = 4096
    by_shard: ClassVar[bool] = True

    column: str = Field(
        "duplicate",
        pattern=_NAME,
        description="Beginning of the columns' names: `<column>_set`, `<column>_of`, `<column>_kind`. Two stages over "
        "one pool need two names.",
    )

    _members: Any = PrivateAttr(None)
    """Stretches of the sets, once they are set up."""
    _sets: str = PrivateAttr(default="")
    """Kinds of the sets, for `duplicates.drop`: `semantic` or `exact near`; empty before `setup`."""

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        """Raises CurateError for sets that an older version has made."""
        sets = artifacts["sets"]
        if SHARDS not in sets:
            raise CurateError(
                f"{self.op}.sets: sets of an older version of curate; run the stage that finds them again"
            )
        self._members = RowLookup(sets, MEMBERS)
        self._sets = "semantic" if "semantic_duplicates" in sets["summary"] else "exact near"

    def schema(self) -> pa.Schema:
        said = {
            f"{self.column}_set": {"of": "key of the set's keeper; own key when alone"},
            f"{self.column}_of": {"of": "key of the keeper; null for the keeper"},
            f"{self.column}_kind": {"values": " ".join(KINDS), **({"sets": self._sets} if self._sets else {})},
        }
        return pa.schema([pa.field(name, pa.string(), metadata=metadata) for name, metadata in said.items()])

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
    """Reject the members of duplicate sets that are not their keepers: none, or those of some kinds.

    Rejects: exact_duplicate; with `near` also near_duplicate; with `semantic` also semantic_duplicate.
    """

    op: ClassVar[str] = "duplicates.drop"
    version: ClassVar[int] = 2

    reject: Literal["none", "exact", "near", "semantic"] = Field(
        "near",
        description="Which members to reject: none; exact duplicates; near duplicates and exact ones; or semantic "
        "duplicates and all others.",
    )
    column: str = Field("duplicate", pattern=_NAME, description="`column` of the `duplicates.members` to decide by.")

    def reads(self) -> tuple[str, ...]:
        return (f"{self.column}_kind",)

    def keep(self, table: Table) -> pa.ChunkedArray:
        """Raises CurateError if `reject` names no kind that the sets have."""
        (name,) = self.reads()
        made = (table.schema.field(name).metadata or {}).get(b"sets")
        if self.reject in ("exact", "near") and made == b"semantic":
            raise CurateError(
                f"{self.op}.reject: {self.reject!r} rejects nothing, since the sets of {name!r} are semantic; "
                "write semantic or none"
            )
        kinds = table.column(name)
        rejected = pa.array(_REJECTED[1 : _REJECTED.index(self.reject) + 1], pa.string())
        reasons = pc.binary_join_element_wise(kinds, "duplicate", "_")
        return pc.if_else(pc.is_in(kinds, rejected), reasons, pa.scalar(None, pa.string()))
