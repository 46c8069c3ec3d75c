"""`filter.split`: one side of a split into training and validation."""

from __future__ import annotations

from typing import ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from curate.core.contracts import Filter, Table
from curate.kernels.meta import META, check_label, texts_of
from curate.kernels.sides import held_out, words_of_sets


class Split(Filter):
    """Keep one side of a split by hash: two stages with the same parameters but `side` share the rows out between them.

    Rows of one duplicate set are on one side, if `duplicates.members` is upstream. A set stays on its side when the
    pool grows. `distill` holds out the same sets for the same `seed` and `data.test_fraction`. Rejects: validation, if
    `side` is train, and train, if it is validation.
    """

    op: ClassVar[str] = "filter.split"
    emptied: ClassVar[str] = "they are one set, or too few sets for this share"

    side: Literal["train", "validation"] = Field(description="The side to keep.")
    share: float = Field(0.1, gt=0, lt=1, description="Share of the sets that are on the side `validation`, roughly.")
    within: str = Field(
        "duplicate_set",
        description="Column of sets, or `meta.FIELD`, such as that of an album: rows of a set are on one side, and a "
        "row without a set is its own; `key`: each row is.",
    )
    seed: int = Field(0, ge=0, description="Seed of the hash.")

    def reads(self) -> tuple[str, ...]:
        return ("meta" if self.within.startswith(META) else self.within,)

    def meta_fields(self) -> tuple[str, ...]:
        return (self.within,)

    def check_columns(self, columns: pa.Schema) -> None:
        """Raises CurateError if `within` is a column of other values than names of sets."""
        if not self.within.startswith(META) and self.within != "key":
            check_label("within", columns.field(self.within))

    def keep(self, table: Table) -> pa.Array:
        keys = texts_of(table, "key")
        sets = pc.coalesce(texts_of(table, self.within), keys).dictionary_encode()
        held = pa.array(held_out(words_of_sets(sets.dictionary.to_pylist()), self.seed, self.share))
        kept, other = pa.scalar(None, pa.string()), "train" if self.side == "validation" else "validation"
        found = held.take(sets.indices)
        return pc.if_else(found if self.side == "validation" else pc.invert(found), kept, other)
