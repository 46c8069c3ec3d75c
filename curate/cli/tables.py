"""Tables of a run: its funnel and its progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rich import box
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from curate.api import Entry, RunRecord, StageStatus, Status

NARROW = 120
"""Terminal width below which ops are left out."""
REASONS = 6
"""Reasons shown per stage; the rest are summed up."""


def funnel(run: RunRecord, width: int = NARROW) -> Table:
    """A run's ledger, with what the run computed at each stage."""
    return funnel_of(run.ledger(), run.ops(), width, lambda name, entry: _this_run(run, name, entry))


def funnel_of(
    ledger: Mapping[str, Entry],
    ops: Mapping[str, str],
    width: int = NARROW,
    this_run: Callable[[str, Entry], str] | None = None,
) -> Table:
    """A ledger, a line per stage, for a terminal `width` characters wide. The columns for unusable rows and errors are
    omitted if a run has none. What a source found has a line before its own."""
    failures = any(entry.unusable or entry.error for entry in ledger.values())
    losses = ("rejected", "unusable", "error") if failures else ("rejected",)
    table = _table("Funnel", width)
    for name in ("alive before", *losses, "alive after", "copies"):
        table.add_column(name, justify="right")
    table.add_column("reasons")
    if this_run is not None:
        table.add_column("this run")
    for name, entry in ledger.items():
        lost = [_count(getattr(entry, kind).total()) for kind in losses]
        first = [name, ops.get(name, "")][: 1 if width < NARROW else 2]
        cells = [f"{entry.before:,}", *lost, f"{entry.after:,}", _copies(entry)]
        if entry.skipped is not None:
            blank = [""] * (len(lost) + 2)
            table.add_row("found", *[""] * (len(first) - 1), f"{entry.found:,}", *blank, _skipped(entry))
        table.add_row(*first, *cells, _reasons(entry), *([] if this_run is None else [this_run(name, entry)]))
    return table


def _table(title: str, width: int) -> Table:
    """An empty table with the columns that name a stage."""
    narrow = {"padding": (0, 1, 0, 0), "pad_edge": False} if width < NARROW else {}
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, **narrow)  # type: ignore[arg-type]
    table.add_column("stage", no_wrap=True)
    if width >= NARROW:
        table.add_column("op", style="dim")
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
        shown.append(f"{entry.kept:,} of them pass with nulls")
    return ", ".join([*shown, f"other {rest:,}"] if rest else shown)


def _skipped(entry: Entry) -> str:
    from curate.api import told

    return f"skipped {escape(told(entry.skipped, REASONS))}" if entry.skipped else "skipped nothing"


def _this_run(run: RunRecord, name: str, entry: Entry) -> str:
    """Work of the run at a stage: rows computed and reused for a Map or a Derive; built or reused for other stages."""
    counts = run.counts().get(name, {})
    if not run.outputs.get(name, {}).get("path") and entry.children is None:
        return "reused" if run.reused().get(name) else "built"
    computed = counts.get("computed", 0)
    text = f"computed {computed:,}, reused {max(0, entry.before - computed):,}"
    return text + (f", repeated {counts['repeated']:,}" if counts.get("repeated") else "")


# --- progress -------------------------------------------------------------------------------------------------


def under_way(status: Status, width: int = NARROW) -> Table:
    """Unfinished stages, a line per stage and lane: rows, rates and time left."""
    table = _table("In progress", width)
    table.add_column("state")
    for name in ("rows", "lane", "rate", "bytes", "busy", "left"):
        table.add_column(name, justify="left" if name == "lane" else "right")
    for stage in status.stages:
        if stage.state not in ("done", "reused"):
            first = [escape(stage.stage), stage.op][: 1 if width < NARROW else 2]
            first.append(escape(stage.text) or stage.state)
            for number, rates in enumerate(_rates(stage)):
                table.add_row(*([""] * len(first) if number else first), *rates)
    return table


def _rates(stage: StageStatus) -> list[tuple[str, ...]]:
    """Cells for each lane of a stage: rows, lane, rows per second, bytes per second, busy share, time left."""
    from curate.api import duration, speed

    total = "" if stage.total is None else f" of {stage.total:,}"
    left = "" if stage.left_seconds is None else duration(stage.left_seconds)
    if not stage.lanes:
        return [(f"{stage.rows:,}{total}" if stage.rows or total else "", "", "", "", "", left)]
    lines: list[tuple[str, ...]] = []
    for rate in stage.lanes:
        size = speed(rate.bytes_per_s) if rate.bytes_per_s else ""
        busy = "" if rate.busy is None else f"{rate.busy:.0%}"
        rows = f"{rate.rows:,}{total}"
        lines.append((rows, rate.lane, f"{rate.rows_per_s:,.1f}/s", size, busy, left))
    return lines
