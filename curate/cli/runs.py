"""Commands for runs: `status`, `logs` and `stop` while they run, `explain` and `diff` afterwards."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from curate.cli.common import WorkspaceUrl, opened, out
from curate.cli.tables import funnel, under_way
from curate.core.errors import CurateError, DrainedError

if TYPE_CHECKING:
    from curate.api import Run

runs = typer.Typer()

MOST_ITEMS, MOST_CHARACTERS = 100, 2000
"""Limits of a value that `curate explain` shows."""
STOP_SECONDS = 30.0
"""Time that `curate stop` waits."""
WAIT_SECONDS = 5.0
LEVEL_STYLES = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red", "DEBUG": "dim"}

OneRun = Annotated[str, typer.Argument(metavar="RUN", help="Run id.")]


@runs.command()
def status(
    run_id: Annotated[str | None, typer.Argument(help="Run id (default: list all runs).")] = None,
    workspace: WorkspaceUrl = "",
) -> None:
    """List the runs of a workspace; for one run, show its progress and funnel."""
    place = opened(workspace)
    if run_id is None:
        table = Table("run", "state", "engine", "seconds", "stages", "error", header_style="bold")
        for found in place.runs():
            done = f"{found.done} of {len(found.stages)}" if found.stages else ""
            seconds = f"{found.seconds:,.1f}" if found.stages else ""
            table.add_row(found.run_id, found.state, found.engine, seconds, done, escape(found.error))
        out.print(table)
        return
    run = place.run(run_id)
    now = run.status()
    line = f"{now.run_id}: {now.state}" + (f", {now.seconds:,.1f} s" if now.stages else "")
    stopping = now.stop is not None and not now.ended
    out.print(line + (", stop requested" if stopping else ""), highlight=False)
    if now.error:
        out.print(now.error, highlight=False, markup=False, soft_wrap=True)
    if not now.stages:
        return
    if not all(stage.state in ("done", "reused") for stage in now.stages):
        out.print(under_way(now, out.width))
    record = run.record
    out.print(funnel(record, out.width))
    for event in record.events:
        if event["event"] in ("failure", "shard_set_aside", "poison"):
            out.print(json.dumps(event), soft_wrap=True)


@runs.command()
def stop(run_id: OneRun, workspace: WorkspaceUrl = "") -> None:
    """Stop a run, from any machine. Finished work is committed, and the same command resumes from there."""
    run = opened(workspace).run(run_id)
    run.stop()
    out.print(f"run {run_id}: stop requested", highlight=False)
    began = time.monotonic()
    while time.monotonic() - began < STOP_SECONDS:
        try:
            run.wait(timeout=WAIT_SECONDS)
            out.print(f"run {run_id}: done before it saw the request", highlight=False)
            return
        except TimeoutError:
            out.print(f"  {time.monotonic() - began:.0f} s: {_draining(run)}", highlight=False, markup=False)
        except DrainedError:
            out.print(f"run {run_id}: stopped; the same command resumes from there", highlight=False)
            return
    raise CurateError(
        f"run {run_id}: still draining after {STOP_SECONDS:.0f} s; `curate status {run_id}` shows when it has ended"
    )


def _draining(run: Run) -> str:
    """The stages that a draining run still works on."""
    names = [stage.stage for stage in run.status().stages if stage.state == "running"]
    return f"draining {', '.join(names)}" if names else "draining"


@runs.command()
def logs(
    run_id: OneRun,
    workspace: WorkspaceUrl = "",
    stage: Annotated[str | None, typer.Option(help="Only records of this stage.")] = None,
    level: Annotated[str, typer.Option(help="Minimum level: debug, info, warning or error.")] = "info",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print records as they arrive, until the run ends.")
    ] = False,
) -> None:
    """Print the log of a run: records of all workers by time, with tracebacks. Times are from each worker's clock."""
    run = opened(workspace).run(run_id)
    count = 0
    for count, record in enumerate(run.logs(stage, level, follow), 1):  # noqa: B007 - counted
        out.print(_line(record), soft_wrap=True)
        if record.get("traceback"):
            out.print(Text("    " + str(record["traceback"]).rstrip().replace("\n", "\n    "), "dim"), soft_wrap=True)
    if not count:
        what = f" at level {level} or above" + (f" for stage {stage}" if stage else "")
        print(f"curate: run {run_id}: no log records{what}", file=sys.stderr)


def _line(record: dict[str, Any]) -> Text:
    """2026-11-22 15:13:21 WARNING  embed unit 12 on gpu-3 at node-7: message."""
    then = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(record["time"]))
    level = str(record.get("level", "info")).upper()
    where = [str(record["stage"])] if record.get("stage") else []
    where += [f"unit {record['unit']}"] if record.get("unit") not in (None, "") else []
    where += [f"on {record['worker']}"] if record.get("worker") else []
    where += [f"at {record['node']}"] if record.get("node") else []
    message = " ".join(str(record.get("message", "")).split())
    style = LEVEL_STYLES.get(level, "")
    return Text.assemble((f"{then} ", "dim"), (f"{level:<8}", style), (" ".join(where) + ": ", "dim"), (message, style))


@runs.command()
def explain(
    key: Annotated[str, typer.Argument(help="Key, start of a key, source id or name of a sample.")],
    workspace: WorkspaceUrl = "",
    run_id: Annotated[str | None, typer.Option("--run", help="Run id (default: the latest run).")] = None,
) -> None:
    """Show everything known about one sample: columns, rejects with reasons, cluster path, copies, dataset."""
    run = opened(workspace).run(run_id)
    found = run.explain(key, lambda text: print(f"curate: {text}", file=sys.stderr))
    for stage, op, facts in found:
        table = Table(title=f"{stage} ({op})", title_justify="left", show_header=False, box=None, padding=(0, 2))
        for name, value in facts.items():
            if name == "reject" and facts.get("status"):
                continue  # unusable or in error: shown as status
            if name == "reject":
                name, value = ("rejected", f"[red]{escape(value)}[/red]") if value else ("rejected", "no")
                table.add_row(f"[dim]{name}[/dim]", value)
            else:
                table.add_row(f"[dim]{name}[/dim]", _cell(value))
        out.print(table)
    copies = run.copies_of(found[0][2]["key"])
    if copies:
        out.print(f"kept in place of {len(copies)} copies: {', '.join(copies[:10])}", soft_wrap=True)


def _cell(value: Any) -> str:
    """A value as a table cell; long values are truncated."""
    if isinstance(value, list):
        more = [f"… and {len(value) - MOST_ITEMS:,} more"] if len(value) > MOST_ITEMS else []
        return "\n".join([*map(_cell, value[:MOST_ITEMS]), *more])
    text = str(value)
    if len(text) > MOST_CHARACTERS:
        text = f"{text[:MOST_CHARACTERS]} … ({len(text):,} characters)"
    return escape(text)


@runs.command()
def diff(
    first: Annotated[str, typer.Argument(help="Run id.")],
    second: Annotated[str, typer.Argument(help="Run id to compare with it.")],
    workspace: WorkspaceUrl = "",
) -> None:
    """Compare two runs: parameters, counts and selected keys."""
    table = Table("stage", "output", "parameters", header_style="bold")
    for name in (f"alive after {first}", f"alive after {second}"):
        table.add_column(name, justify="right")
    table.add_column("selected")
    for item in opened(workspace).diff(first, second):
        parameters = "\n".join(f"{name}: {a!r} -> {b!r}" for name, (a, b) in sorted(item.parameters.items()))
        counts = [f"{entry.after:,}" if entry else "" for entry in (item.before, item.after)]
        keys = f"{item.keys[0]:,} removed, {item.keys[1]:,} in both, {item.keys[2]:,} new" if item.keys else ""
        table.add_row(item.stage, item.state, escape(parameters), *counts, keys)
    out.print(table)
