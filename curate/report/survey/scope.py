"""Columns and stages of a view that the report uses, and the shards that it reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.view import View
from curate.kernels.labels import read_labels
from curate.report.survey.entries import entry_columns
from curate.report.survey.quotas import quotas_of
from curate.report.survey.rows import integers, label_column, label_values, texts

FACTS = ("source_id", "url", "width", "height", "format", "meta", "media", "duration_ms", "span")
CAPTIONS = ("text", "caption")
READ_SHARDS = 64
"""A report reads the tables of at most this many shards, chosen by hash; images, captions and labels come from them."""


def read_tables(view: View, names: Sequence[str]) -> Iterator[pa.Table]:
    """Tables of the shards that the report reads, the same ones in every pass."""
    return view.tables(names, READ_SHARDS)


def shards_read(view: View) -> tuple[int, int]:
    """How many shards the report reads, and how many the pool has."""
    shards, _ = view.size()
    return min(shards, READ_SHARDS), shards


@dataclass(frozen=True)
class Scope:
    """Columns to show, and the position of the selection among the stages."""

    columns: frozenset[str]
    levels: int
    """Levels of `cluster_1` … `cluster_L`; 0 without clusters."""
    select: str | None
    earlier: tuple[str, ...]
    """Stages whose rejects never reach the selection."""
    caption: str | None
    label: str | None
    known: Mapping[str, str] | None = None
    """Key -> label, instead of a column."""
    rates: tuple[int, NDArray[np.float64]] | None = None
    """For labels of a file, the level of the tree down to which the selection distributed its target, and the quota of
    each cluster (K,) over its rows."""
    entries: tuple[str, ...] = ()
    """Columns of entries by which the selection balances texts."""
    embedding: str | None = None
    """Column of vectors, the one that clusters are made of."""

    def names(self, *wanted: str | None) -> list[str]:
        return [name for name in dict.fromkeys(wanted) if name is not None and name in self.columns]

    @property
    def clusters(self) -> list[str]:
        return [f"cluster_{level}" for level in range(1, self.levels + 1)]

    def reached(self, table: pa.Table) -> NDArray[np.bool_]:
        """Mask (n,) of the rows that reached the selection (without one, the rows that were not rejected)."""
        by = texts(table, "rejected_by")
        early = pc.is_in(by, value_set=pa.array(self.earlier, pa.string()))
        stopped = early if self.select else pc.is_valid(by)
        return ~stopped.to_numpy(zero_copy_only=False)

    def live(self, table: pa.Table) -> NDArray[np.bool_]:
        """Mask (n,) of the rows that were not rejected."""
        return pc.is_null(texts(table, "rejected_by")).to_numpy(zero_copy_only=False)

    def copies(self, table: pa.Table) -> NDArray[np.int64]:
        """Copies of each row (n,): the selection's, or without a selection 1 for live rows."""
        live = self.live(table)
        return live * integers(table, "copies", 1) if self.select else live.astype(np.int64)

    def labels(self, table: pa.Table) -> pa.Array:
        """Labels (n,) as strings; null for a row without one."""
        if self.known is not None:
            return pa.array(map(self.known.get, table.column("key").to_pylist()), pa.string())
        return label_values(table, self.label) if self.label else texts(table, "")

    def naming_texts(self, table: pa.Table) -> pa.Array:
        """Texts (n,) that clusters are named after: caption and label in one string, or the source id."""
        captions = texts(table, self.caption or "")
        joined = pc.binary_join_element_wise(
            captions, self.labels(table), " ", null_handling="replace", null_replacement=""
        )
        joined = pc.utf8_trim_whitespace(joined)
        return pc.if_else(pc.equal(joined, ""), pc.fill_null(texts(table, "source_id"), ""), joined)


def scope_of(view: View, caption: str | None, label: str | None, labels: Path | None = None) -> Scope:
    """Without a `label`, it is what the dataset carries as `label`. `labels`: a file of keys and labels, instead."""
    columns = frozenset(view.columns())
    levels = 0
    while f"cluster_{levels + 1}" in columns:
        levels += 1
    order = list(view.stages)
    select = view.selected_by
    label = label if label is not None else _carried_label(view)
    embedding = next(
        (str(name) for one in view.stages.values() if (name := one.parameters.get("embedding"))), "embedding"
    )
    known = caption if caption is not None else next((name for name in CAPTIONS if name in columns), None)
    return Scope(
        columns=columns,
        levels=levels,
        select=select,
        earlier=tuple(order[: order.index(select)]) if select else (),
        caption=known if known in columns else None,
        label=label if label is not None and labels is None and label_column(label) in columns else None,
        known=None if labels is None else read_labels(labels),
        rates=None if labels is None else _rates(view),
        entries=entry_columns(view.stages[select], columns) if select else (),
        embedding=embedding if embedding in columns else None,
    )


def _rates(view: View) -> tuple[int, NDArray[np.float64]] | None:
    """None unless rows of a cluster are chosen without regard to what they show."""
    found = quotas_of(view)
    select = view.stages[view.selected_by] if view.selected_by else None
    if found is None or select is None or select.op != "select.hierarchical":
        return None
    if select.parameters.get("strategy", "random") != "random":
        return None
    return found.level, found.quota / np.maximum(found.count, 1)


def _carried_label(view: View) -> str | None:
    for manifest in view.stages.values():
        carry = manifest.parameters.get("carry") or {}
        named = carry if isinstance(carry, Mapping) else {name.removeprefix("meta."): name for name in carry}
        if "label" in named:
            return str(named["label"])
    return None
