"""Commands for runs: `status`, `logs` and `stop` while they run, `explain` and `diff` afterwards."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from curate.cli import remote
from curate.cli.common import OneRun, ServerName, WorkspaceUrl, opened, out
from curate.cli.fetches import fetches
from curate.cli.spending import spending
from curate.cli.tables import funnel, under_way
from curate.core.errors import RESUMES, CurateError, DrainedError

if TYPE_CHECKING:
    from curate.api import Run

runs = typer.Typer()

MOST_ITEMS, MOST_CHARACTERS, MOST_COPIES = 100, 2000, 1000
"""Limits of a value that `curate explain` shows."""
LISTED = 50
"""Runs of a service that `curate status` lists."""
STOP_SECONDS = 30.0
"""Time that `curate stop` waits."""
WAIT_SECONDS = 5.0
LEVEL_STYLES = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red", "DEBUG": "dim"}


@runs.command()
def status(
    run_id: Annotated[str | None, typer.Argument(help="Run id (default: list all runs).")] = None,
    workspace: WorkspaceUrl = "",
    server: ServerName = "",
) -> None:
    """List the runs; for one run, show its progress and funnel."""
    if server:
        if run_id is None:
            remote.runs(server, workspace, None, None, LISTED)
        else:
            remote.status(server, run_id, workspace)
        return
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
    for block in (*fetches(now), *spending(now)):
        out.print(block)
    record = run.record
    out.print(funnel(record, out.width))
    for event in record.events:
        if event["event"] in ("failure", "shard_set_aside", "poison"):
            out.print(json.dumps(event), soft_wrap=True)


@runs.command()
def stop(
    run_id: OneRun,
    workspace: WorkspaceUrl = "",
    kill: Annotated[bool, typer.Option("--kill", help="End it at once, without committing what is under way.")] = False,
    server: ServerName = "",
) -> None:
    """Stop a run, from any machine. Finished work is committed, and another run of the recipe resumes from there."""
    if server:
        remote.stop(server, run_id, workspace, kill, STOP_SECONDS)
        return
    run = opened(workspace).run(run_id)
    if kill:
        _kill(run)
        return
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
            out.print(f"run {run_id}: stopped; {RESUMES}", highlight=False)
            return
    raise CurateError(
        f"run {run_id}: still draining after {STOP_SECONDS:.0f} s; `curate status {run_id}` shows when it has ended"
    )


def _kill(run: Run) -> None:
    """Kill a run, and wait until it has ended."""
    run.kill()
    out.print(f"run {run.id}: kill requested", highlight=False)
    began = time.monotonic()
    while time.monotonic() - began < STOP_SECONDS:
        state = run.status().state
        if state not in ("starting", "submitted", "running"):
            out.print(f"run {run.id}: {state}; {RESUMES}", highlight=False)
            return
        time.sleep(0.5)
    raise CurateError(f"run {run.id}: alive after {STOP_SECONDS:.0f} s; stop its Ray job, or end its process by hand")


@runs.command()
def limit(
    run_id: OneRun,
    requests_per_second: Annotated[
        str | None, typer.Option(help="Limit on downloads of the whole run, or `none`.")
    ] = None,
    bytes_per_second: Annotated[
        str | None, typer.Option(help="Limit on downloads of the whole run, such as 20MB, or `none`.")
    ] = None,
    max_tokens: Annotated[str | None, typer.Option(help="Ceiling of the run's tokens at endpoints, or `none`.")] = None,
    max_dollars: Annotated[str | None, typer.Option(help="Ceiling of what the run spends, or `none`.")] = None,
    endpoint: Annotated[str | None, typer.Option(help="Endpoint whose limits per minute change.")] = None,
    requests_per_minute: Annotated[str | None, typer.Option(help="Limit of --endpoint, or `none`.")] = None,
    tokens_per_minute: Annotated[str | None, typer.Option(help="Limit of --endpoint, or `none`.")] = None,
    workspace: WorkspaceUrl = "",
    server: ServerName = "",
) -> None:
    """Change how fast a running run downloads or asks, and how much it may spend. Workers follow within seconds."""
    whole = {"requests_per_second": requests_per_second, "bytes_per_second": bytes_per_second}
    whole |= {"max_tokens": max_tokens, "max_dollars": max_dollars}
    minute = {"requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute}
    wanted: dict[str, Any] = {name: _number(name, text) for name, text in whole.items() if text is not None}
    of_endpoint = {name: _number(name, text) for name, text in minute.items() if text is not None}
    if bool(of_endpoint) != (endpoint is not None):
        raise CurateError("limit: --endpoint needs --requests-per-minute or --tokens-per-minute, and they need it")
    if endpoint is not None:
        wanted["endpoints"] = {endpoint: of_endpoint}
    if not wanted:
        raise CurateError("limit: nothing to change; give --requests-per-second, --max-tokens or another limit")
    if server:
        now = remote.limit(server, run_id, workspace, wanted)
    else:
        now = opened(workspace).run(run_id).limit(wanted)
    out.print(f"run {run_id}: {', '.join(_changed(now))}", highlight=False)


def _changed(limits: dict[str, Any], of: str = "") -> Iterator[str]:
    for name, value in sorted(limits.items()):
        if name == "endpoints":
            for endpoint, inner in sorted(value.items()):
                yield from _changed(inner, f"{endpoint}: ")
        else:
            yield f"{of}{name} {'none' if value is None else f'{value:,.10g}'}"


def _number(name: str, text: str) -> float | None:
    """A number such as `20`, `0.5`, `20MB`, `1.5 GiB`, `2M`; None for `none`."""
    if text.lower() == "none":
        return None
    found = re.fullmatch(r"([0-9]*\.?[0-9]+) *(?:([kMGT])(i?)B?|B?)", text.strip())
    value = float(found[1]) * (1024 if found[3] else 1000) ** " kMGT".index(found[2] or " ") if found else 0.0
    if not value > 0:
        such = "20MB" if name == "bytes_per_second" else "2k"
        raise CurateError(
            f"--{name.replace('_', '-')} {text}: expected a number above 0, such as 50 or {such}, or none"
        )
    return value


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
    server: ServerName = "",
) -> None:
    """Print the log of a run: records of all workers by time, with tracebacks. Times are from each worker's clock."""
    if server:
        records: Iterator[Any] = remote.logs(server, run_id, workspace, stage, level, follow)
    else:
        records = opened(workspace).run(run_id).logs(stage, level, follow)
    count = 0
    for count, record in enumerate(records, 1):  # noqa: B007 - counted
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
    key: Annotated[str, typer.Argument(help="Key or its start, source id, URL or file name of a sample.")],
    workspace: WorkspaceUrl = "",
    run_id: Annotated[str | None, typer.Option("--run", help="Run id (default: the latest run).")] = None,
    server: ServerName = "",
) -> None:
    """Show everything known about one sample: columns, rejects with reasons, cluster path, copies, dataset."""
    if server:
        if run_id is None:
            raise CurateError("--run: needed with --server (or CURATE_SERVER); `curate runs` lists them")
        _show_facts(remote.explain(server, run_id, workspace, key))
        return
    run = opened(workspace).run(run_id)
    found = run.explain(key, lambda text: print(f"curate: {text}", file=sys.stderr))
    _show_facts(found)
    for which, page in run.copies_of(found[0][2]["key"], MOST_COPIES, seconds=60.0):
        if len(page.table) or page.next:
            where = f"{page.searched:,} of {page.shards:,} shards of {which.stage}" if page.next else which.stage
            keys = ", ".join(page.table["key"].slice(0, 10).to_pylist())
            out.print(f"copies of it in {where}: {len(page.table):,}: {keys}".removesuffix(": "), soft_wrap=True)


def _show_facts(found: Iterable[tuple[str, str, Mapping[str, Any]]]) -> None:
    """`found`: (stage, op, facts)."""
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
