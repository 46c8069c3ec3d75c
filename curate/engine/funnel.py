"""The funnel: the ledger as a table for people."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from curate.core.ledger import Entry

REASONS = 6
"""Reasons shown per stage; the rest are added up."""


def funnel(ledger: Mapping[str, Entry], ops: Mapping[str, str], reused: Mapping[str, bool] | None = None) -> Table:
    table = Table(title="Funnel", title_justify="left", header_style="bold")
    table.add_column("stage")
    table.add_column("op", style="dim")
    for name in ("alive before", "refused", "alive after", "copies"):
        table.add_column(name, justify="right")
    table.add_column("reasons")
    if reused is not None:
        table.add_column("this run")
    for name, entry in ledger.items():
        refused = sum(entry.rejected.values())
        cells = [name, ops.get(name, ""), f"{entry.before:,}", f"{refused:,}" if refused else "", f"{entry.after:,}"]
        copies = "" if entry.copies is None else f"{entry.copies:,}"
        cells += [copies if entry.items is None else f"{copies} of {entry.items:,} items", _reasons(entry)]
        if reused is not None:
            cells.append("reused" if reused.get(name) else "built")
        table.add_row(*cells)
    return table


def _reasons(entry: Entry) -> str:
    common = entry.rejected.most_common()
    shown = [f"{reason} {count:,}" for reason, count in common[:REASONS]]
    rest = sum(count for _, count in common[REASONS:])
    return ", ".join([*shown, f"others {rest:,}"] if rest else shown)
