"""Commands that ask what runs did: `status`, `explain`, `diff`. They read the records and compute nothing."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from curate.cli_common import Workspace, opened, out

runs = typer.Typer()

MOST_ITEMS, MOST_CHARACTERS = 100, 2000
"""Of a value that `curate explain` shows."""

RunId = Annotated[str | None, typer.Argument(help="Run id; the latest run when left out.")]


@runs.command()
def status(run_id: RunId = None, workspace: Workspace = "") -> None:
    """The runs of a workspace; of one run, its funnel and how far it is."""
    from curate.engine.record.events import read_events
    from curate.engine.record.funnel import funnel
    from curate.engine.record.runs import Run, list_runs

    storage = opened(workspace)
    if run_id is None:
        table = Table("run", "state", "engine", "seconds", "stages", "error", header_style="bold")
        for name in list_runs(storage):
            found = Run.load(storage, name)
            error = (found.result or {}).get("error") or ""
            done = f"{len(found.ledger())} of {len(found.record['stages'])}"
            table.add_row(name, found.state, found.record["engine"], f"{found.seconds:,.1f}", done, error)
        out.print(table)
        return
    found = Run.load(storage, run_id)
    out.print(f"{found.run_id}: {found.state}, {found.seconds:,.1f} s", highlight=False)
    out.print(funnel(found))
    events = read_events(storage, run_id)
    under_way = {event["stage"]: event for event in events if event["event"] == "progress"}
    for stage, event in under_way.items():
        if found.result is None and stage not in found.outputs:
            out.print(f"{stage}: {event['done']:.0%}, {event['text']}", highlight=False, markup=False)
    for event in events:
        if event["event"] in ("failure", "shard_set_aside", "poison"):
            out.print(json.dumps(event), soft_wrap=True)


@runs.command()
def explain(
    key: Annotated[str, typer.Argument(help="Key, start of a key, source id or name of a sample.")],
    workspace: Workspace = "",
    run_id: Annotated[str | None, typer.Option("--run", help="Run to look in; the latest if left out.")] = None,
) -> None:
    """Everything known about one sample: columns, rejects and reasons, cluster path, copies, where it went."""
    from curate.engine.record.explain import copies_of
    from curate.engine.record.explain import explain as everything
    from curate.engine.record.runs import latest

    found = latest(opened(workspace), run_id)
    said = everything(found, key)
    for stage, op, facts in said:
        table = Table(title=f"{stage} ({op})", title_justify="left", show_header=False, box=None, padding=(0, 2))
        for name, value in facts.items():
            if name == "reject" and facts.get("status"):
                continue  # unusable or in error: said already
            if name == "reject":
                name, value = ("rejected", f"[red]{escape(value)}[/red]") if value else ("rejected", "no")
                table.add_row(f"[dim]{name}[/dim]", value)
            else:
                table.add_row(f"[dim]{name}[/dim]", _cell(value))
        out.print(table)
    copies = copies_of(found, said[0][2]["key"])
    if copies:
        out.print(f"kept in place of {len(copies)} copies: {', '.join(copies[:10])}", soft_wrap=True)


def _cell(value: Any) -> str:
    """A value as a cell of a table; of very long ones the beginning."""
    if isinstance(value, list):
        more = [f"… and {len(value) - MOST_ITEMS:,} more"] if len(value) > MOST_ITEMS else []
        return "\n".join([*map(_cell, value[:MOST_ITEMS]), *more])
    text = str(value)
    if len(text) > MOST_CHARACTERS:
        text = f"{text[:MOST_CHARACTERS]} … ({len(text):,} characters)"
    return escape(text)


@runs.command()
def diff(first: str, second: str, workspace: Workspace = "") -> None:
    """What differs between two runs: parameters, counts, and the keys selected."""
    from curate.engine.record.diff import diff as compare
    from curate.engine.record.runs import Run

    storage = opened(workspace)
    one, two = Run.load(storage, first), Run.load(storage, second)
    table = Table("stage", "output", "parameters", header_style="bold")
    for name in (f"alive after {first}", f"alive after {second}"):
        table.add_column(name, justify="right")
    table.add_column("selected")
    for item in compare(one, two):
        parameters = "\n".join(f"{name}: {a!r} -> {b!r}" for name, (a, b) in sorted(item.parameters.items()))
        counts = [f"{entry.after:,}" if entry else "" for entry in (item.before, item.after)]
        keys = f"{item.keys[0]:,} left, {item.keys[1]:,} in both, {item.keys[2]:,} new" if item.keys else ""
        table.add_row(item.stage, item.state, escape(parameters), *counts, keys)
    out.print(table)
