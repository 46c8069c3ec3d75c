"""Find samples of a run by what people type: a key, a source id, a URL, a reject reason, a text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.api.slices import FIXED
from curate.core.errors import InputError
from curate.engine.record.explain import indexed
from curate.engine.record.live import LiveRows
from curate.engine.record.runs import RunRecord

NO_TEXTS = frozenset(
    "key sha256 pixel_sha256 ext mode format parent root span duplicate_set duplicate_of duplicate_kind".split()  # noqa: SIM905
)
"""Columns of texts that say nothing to people, or have an index."""
LEAST = 8
"""Digits of a key's start: shorter ones may be words, such as "face"."""


@dataclass(frozen=True)
class Containing:
    """A region of a slice: rows with a text in any of some columns, regardless of case."""

    text: str
    columns: tuple[str, ...]
    """Texts, or lists of texts."""

    def holds(self, table: pa.Table) -> NDArray[np.bool_]:
        """Which rows (n,) of a table with its columns have the text."""
        found = np.zeros(len(table), bool)
        for name in self.columns:
            column = table.column(name).combine_chunks()
            nested = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
            rows = pc.list_parent_indices(column).to_numpy() if nested else np.arange(len(table))
            hit = pc.match_substring(pc.list_flatten(column) if nested else column, self.text, ignore_case=True)
            found[rows[hit.fill_null(False).to_numpy(zero_copy_only=False)]] = True
        return found


def containing(run: RunRecord, stage: str, text: str) -> Containing:
    """Rows with a text in any column of texts that the rows of a stage have. Raises InputError."""
    rows = LiveRows(run, stage)
    return Containing(text, tuple(name for name in rows.fields if name not in NO_TEXTS and _is_text(rows, name)))


def _is_text(rows: LiveRows, name: str) -> bool:
    try:
        kind = rows.one_field(name).type
    except InputError:  # several stages write it
        return False
    return bool(pa.types.is_string(kind.value_type if pa.types.is_list(kind) else kind))


def named(run: RunRecord, text: str) -> pa.Table:
    """The samples that have this source id or URL, or a key that begins so, by the indexes of the pools: columns of
    `slices.FIXED`."""
    hits = {found["key"]: found | {"shard": shard.id, "row": row} for _, shard, row, found in indexed(run, text)[0]}
    exact = [hit for key, hit in hits.items() if not key.startswith(text)]  # by its source id
    return pa.Table.from_pylist(exact or (list(hits.values()) if len(text) >= LEAST else []), FIXED)


def reasons(run: RunRecord, text: str) -> list[tuple[str, str, int]]:
    """(stage, reason, rows) of the rejects whose reason, or "stage: reason", contains a text, the most rows first."""
    wanted = "_".join(text.lower().split())
    lost = [(name, why, rows) for name, entry in run.ledger().items() for why, rows in entry.left.items() if rows]
    found = [one for one in lost if wanted in f"{one[0]}:_{one[1]}".lower()]
    return sorted(found, key=lambda one: -one[2])
