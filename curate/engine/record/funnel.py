"""The funnel: a run's ledger as a table for people."""

from __future__ import annotations

from rich.table import Table

from curate.core.ledger import Entry
from curate.engine.record.runs import Run

REASONS = 6
"""Reasons shown per stage; the rest are added up."""


def funnel(run: Run) -> Table:
    """A line per stage. The columns of rows that could not be computed are left out where there are none."""
    ledger, ops = run.ledger(), run.ops()
    failures = any(entry.unusable or entry.error for entry in ledger.values())
    losses = ("rejected", "unusable", "error") if failures else ("rejected",)
    table = Table(title="Funnel", title_justify="left", header_style="bold")
    table.add_column("stage")
    table.add_column("op", style="dim")
    for name in ("alive before", *losses, "alive after", "copies"):
        table.add_column(name, justify="right")
    table.add_column("reasons")
    table.add_column("this run")
    for name, entry in ledger.items():
        lost = [_count(getattr(entry, kind).total()) for kind in losses]
        cells = [name, ops.get(name, ""), f"{entry.before:,}", *lost, f"{entry.after:,}", _copies(entry)]
        table.add_row(*cells, _reasons(entry), _this_run(run, name, entry))
    return table


def _count(number: int) -> str:
    return f"{number:,}" if number else ""


def _copies(entry: Entry) -> str:
    copies = "" if entry.copies is None else f"{entry.copies:,}"
    if entry.items is not None:
        return f"{copies} of {entry.items:,} items"
    return copies if entry.children is None else f"{entry.children:,} children"


def _reasons(entry: Entry) -> str:
    common = entry.lost.most_common()
    shown = [f"{reason} {count:,}" for reason, count in common[:REASONS]]
    rest = sum(count for _, count in common[REASONS:])
    if entry.kept:
        shown.append(f"{entry.kept:,} of them go on with nulls")
    return ", ".join([*shown, f"others {rest:,}"] if rest else shown)


def _this_run(run: Run, name: str, entry: Entry) -> str:
    """What the run did there: rows computed and reused at a Map or a Derive, whether other stages built anything."""
    counts = run.counts().get(name, {})
    if not run.outputs.get(name, {}).get("path") and entry.children is None:
        return "reused" if run.reused().get(name) else "built"
    computed = counts.get("computed", 0)
    said = f"computed {computed:,}, reused {max(0, entry.before - computed):,}"
    return said + (f", repeated {counts['repeated']:,}" if counts.get("repeated") else "")
