"""Verbs that work on a workspace and, with --server, on a service: `submit`, `runs`, `watch`, `resume`."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from curate.cli import remote
from curate.cli.common import OneRun, ServerName, WorkspaceUrl, opened, out, show_outputs
from curate.cli.submit import ENGINE, Launch, Recipe, Sample, To, finish, guarded, launches, part
from curate.cli.tables import funnel, under_way
from curate.core.errors import CurateError, RecipeError

if TYPE_CHECKING:
    from curate.api import Run

verbs = typer.Typer()

LOOK_SECONDS = 2.0


@verbs.command()
@launches
def submit(
    launch: Launch,
    recipe: Recipe,
    server: ServerName = "",
    sample: Sample = "1",
    to: To = None,
    title: Annotated[str | None, typer.Option(help="Title of the run on the service's pages.")] = None,
    target: Annotated[str | None, typer.Option(help="Cluster of the service (default: the workspace's).")] = None,
    priority: Annotated[int | None, typer.Option(help="In the service's queue; larger ones start first.")] = None,
    retries: Annotated[int | None, typer.Option(help="How often the service resubmits it after it was lost.")] = None,
    drain_seconds: Annotated[float | None, typer.Option(help="Time to drain after a stop, on the service.")] = None,
) -> None:
    """Submit a recipe to a service, or with --address to a Ray cluster, and print the run id; or run it here."""
    remotely: dict[str, Any] = {"title": title, "target": target, "priority": priority, "retries": retries}
    remotely["drain_seconds"] = drain_seconds
    if server:
        _only_here(launch)
        launch.check()
        options = {name: getattr(launch, name) for name in ENGINE}
        options |= {"to": to, **part(sample)}
        options = {name: value for name, value in options.items() if value is not None}
        remote.submit(server, recipe, launch.workspace, launch.set_ or [], {**remotely, "options": options})
        return
    for name, value in remotely.items():
        if value is not None:
            raise RecipeError(f"--{name.replace('_', '-')}: needs --server (or CURATE_SERVER); leave it out")
    _detached(launch).start(recipe, to=to, **part(sample))


def _only_here(launch: Launch) -> None:
    """Raises RecipeError for an option that a service decides."""
    for field in dataclasses.fields(Launch):
        here = field.name in ("engine", "address", "run_id", "detach", "json_file", "quiet")
        if here and getattr(launch, field.name) != field.default:
            name = {"json_file": "json"}.get(field.name, field.name).replace("_", "-")
            raise RecipeError(f"--{name}: does not apply with --server (or CURATE_SERVER); leave it out")


def _detached(launch: Launch) -> Launch:
    """With an address, a job of the cluster there."""
    return dataclasses.replace(launch, engine="ray", detach=True) if launch.address is not None else launch


@verbs.command("runs")
def list_runs(
    workspace: WorkspaceUrl = "",
    server: ServerName = "",
    state: Annotated[str | None, typer.Option(help="Only runs in this state.")] = None,
    user: Annotated[str | None, typer.Option(help="Only runs of this user; needs --server.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most runs to list, the latest first.")] = 50,
) -> None:
    """List runs, the latest first."""
    if server:
        remote.runs(server, workspace, state, user, limit)
        return
    if user is not None:
        raise CurateError("--user: needs --server (or CURATE_SERVER); a workspace does not know who started a run")
    table = Table("run", "state", "engine", "seconds", "stages", "note", header_style="bold")
    listed = [found for found in reversed(opened(workspace).runs()) if state in (None, found.state)]
    for found in listed[:limit]:
        done = f"{found.done} of {len(found.stages)}" if found.stages else ""
        seconds = f"{found.seconds:,.0f}" if found.stages else ""
        table.add_row(found.run_id, found.state, found.engine, seconds, done, escape(found.error))
    out.print(table)


# --- watch ------------------------------------------------------------------------------------------------------------


@verbs.command()
def watch(run_id: OneRun, workspace: WorkspaceUrl = "", server: ServerName = "") -> None:
    """Show a run's progress until it ends. Ctrl-C ends watching, not the run. Fails if the run does."""
    try:
        if server:
            with remote.connect(server) as client:
                _watch(remote.Watched(client.run(run_id, remote.named(workspace))))
        else:
            _watch(_Local(opened(workspace).run(run_id)))
    except KeyboardInterrupt:
        print(f"curate: the run continues; `curate watch {run_id}` shows it again", file=sys.stderr)
        raise typer.Exit(130) from None


class _Local:
    """A run of a workspace, as `watch` shows it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.status = run.status()

    def look(self) -> None:
        time.sleep(LOOK_SECONDS)
        self.status = self.run.status()

    @property
    def state(self) -> str:
        return self.status.state

    @property
    def ended(self) -> bool:
        return self.status.ended

    @property
    def line(self) -> str:
        stopping = ", stop requested" if self.status.stop is not None and not self.ended else ""
        return f"{self.run.id}: {self.state}{stopping}, {self.status.seconds:,.0f} s"

    @property
    def error(self) -> str:
        return self.status.error

    @property
    def stages(self) -> Sequence[Any]:
        return self.status.stages


def _watch(run: _Local | remote.Watched) -> None:
    if out.is_terminal:
        with Live(_shown(run), console=out, auto_refresh=False, transient=True) as live:
            while not run.ended:
                run.look()
                live.update(_shown(run), refresh=True)
    else:
        _print_changes(run)
    out.print(run.line, highlight=False, markup=False, soft_wrap=True)
    if isinstance(run, _Local):
        if run.stages:
            out.print(funnel(run.run.record, out.width))
            show_outputs(run.run)
    else:
        for line in run.products():
            out.print(line, highlight=False, markup=False, soft_wrap=True)
    if run.state != "done":
        raise CurateError(f"run {run.run.id}: {run.state}" + (f": {run.error}" if run.error else ""))


def _shown(run: _Local | remote.Watched) -> Group:
    # tables of the service's stages have the fields of the engine's
    return Group(Text(run.line, overflow="fold"), under_way(run, out.width))  # type: ignore[arg-type]


def _print_changes(run: _Local | remote.Watched) -> None:
    """A line for each change of the run's state, and for each stage that is done."""
    state, known = "", set[str]()
    while True:
        if run.state != state and not run.ended:
            out.print(run.line, highlight=False, markup=False, soft_wrap=True)
        state = run.state
        for stage in run.stages:
            if stage.state in ("done", "reused") and stage.stage not in known:
                known.add(stage.stage)
                out.print(f"  {stage.stage}: {stage.state}, {stage.rows:,} rows", highlight=False, markup=False)
        if run.ended:
            return
        run.look()


# --- priority ---------------------------------------------------------------------------------------------------------


@verbs.command(context_settings={"ignore_unknown_options": True})  # -3 is a value
def priority(
    run_id: OneRun,
    value: Annotated[int, typer.Argument(metavar="PRIORITY", help="Larger ones start first; above 0 needs an admin.")],
    workspace: WorkspaceUrl = "",
    server: ServerName = "",
) -> None:
    """Change the priority of a run that waits in a service's queue."""
    if not server:
        raise CurateError("priority: needs --server (or CURATE_SERVER); runs of a workspace do not wait in a queue")
    remote.priority(server, run_id, workspace, value)


# --- resume -----------------------------------------------------------------------------------------------------------


@verbs.command()
def resume(
    run_id: OneRun,
    workspace: WorkspaceUrl = "",
    server: ServerName = "",
    engine: Annotated[str | None, typer.Option(help="local or ray (default: as the run); not with --server.")] = None,
    address: Annotated[
        str | None, typer.Option(help="Resume as a job of the Ray cluster there; not with --server.")
    ] = None,
) -> None:
    """Run a run's recipe again, with its options. What it had finished is reused."""
    if server:
        if engine is not None or address is not None:
            raise RecipeError("--engine, --address: do not apply with --server (or CURATE_SERVER); leave them out")
        remote.resume(server, run_id, workspace)
        return
    from curate.api import new_run_id, recorded

    place = opened(workspace)
    run = place.run(run_id)
    status = run.status()
    if not status.ended:
        raise CurateError(f"run {run_id}: {status.state}; only a run that has ended can be resumed")
    pipeline, options = recorded(run.record)
    next_id = new_run_id()
    if address is not None:
        place.submit(pipeline, options=options, run_id=next_id, engine="ray", address=address, detach=True)
        out.print(next_id, highlight=False)
        return
    with guarded(place, next_id):
        begun = place.submit(pipeline, options=options, run_id=next_id, engine=engine or status.engine, console=out)
        finish(begun, None)
