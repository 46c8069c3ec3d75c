"""Commands that take a recipe: `run`, `retry`, `plan`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from curate.cli.common import WorkspaceUrl, opened, out, show_outputs
from curate.cli.tables import funnel
from curate.core.errors import CurateError, DrainedError, RecipeError

if TYPE_CHECKING:
    from curate.api import Pipeline, Result, Run, Workspace

submit = typer.Typer()

Recipe = Annotated[Path, typer.Argument(help="The recipe's YAML file.", readable=False)]
Sets = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="variable=value or stage.parameter=value; may be repeated.")
]
Sample = Annotated[str, typer.Option(help="Canary run through the whole DAG on this share of the pool, such as 0.1%.")]
Engine = Annotated[str, typer.Option(help="local (this process) or ray.")]
Address = Annotated[
    str | None, typer.Option(help="Ray cluster to join (auto, host:port, ray://…); a local one if left out.")
]
Cpus = Annotated[int | None, typer.Option(help="CPUs of a local Ray; all if left out.")]
NewRunId = Annotated[str | None, typer.Option("--run-id", help="Name of this run; made up if left out.")]
Budget = Annotated[float, typer.Option(help="Share of rows that may be lost to failures.")]
Deadline = Annotated[
    float | None,
    typer.Option(
        help="Seconds after which a unit that has finished no batch is ended; ten times its stage's usual batch, and "
        "at least 10 minutes, if left out."
    ),
]
Detach = Annotated[bool, typer.Option("--detach", help="Leave the run to the Ray cluster, print its id and return.")]
JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Write run id, outputs, ledger and counts by stage to this file.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the funnel.")]


@submit.command()
def run(
    recipe: Annotated[Path | None, typer.Argument(help="The recipe's YAML file.", readable=False)] = None,
    workspace: WorkspaceUrl = "",
    set_: Sets = None,
    engine: Engine = "local",
    address: Address = None,
    cpus: Cpus = None,
    sample: Sample = "1",
    run_id: NewRunId = None,
    failure_budget: Budget = 0.01,
    deadline: Deadline = None,
    detach: Detach = False,
    json_file: JsonFile = None,
    quiet: Quiet = False,
    submission: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run a recipe. What is there already is reused; the same command resumes a run that was killed."""
    if submission is not None:
        with _guarded(opened(workspace), submission) as place:
            _finish(place.submitted(submission, engine=engine, address=address, console=out), None)
        return
    if recipe is None:
        raise typer.BadParameter("missing; give a YAML file, such as pipelines/quickstart.yaml", param_hint="RECIPE")
    options = {"failure_budget": failure_budget, "sample": share(sample)}
    where = {"engine": engine, "address": address, "cpus": cpus, "run_id": run_id, "detach": detach}
    _submit(recipe, workspace, set_, where, json_file, quiet, options, deadline)


@submit.command()
def retry(
    recipe: Recipe,
    stage: Annotated[str, typer.Argument(help="Stage whose failed rows are tried again.")],
    workspace: WorkspaceUrl = "",
    status: Annotated[str, typer.Option(help="Only error: rows that could not be computed that time.")] = "error",
    reason: Annotated[
        list[str] | None, typer.Option(help="Only rows with this reason; may be repeated, all if left out.")
    ] = None,
    set_: Sets = None,
    engine: Engine = "local",
    address: Address = None,
    cpus: Cpus = None,
    run_id: NewRunId = None,
    failure_budget: Budget = 0.01,
    deadline: Deadline = None,
    detach: Detach = False,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Run a recipe, and in it compute the rows again that are in error at one stage."""
    if status != "error":
        raise RecipeError(f"--status {status}: expected error; done and unusable rows are never computed again")
    options = {"failure_budget": failure_budget, "retry": {stage: tuple(reason or ())}}
    where = {"engine": engine, "address": address, "cpus": cpus, "run_id": run_id, "detach": detach}
    _submit(recipe, workspace, set_, where, json_file, quiet, options, deadline)


@submit.command()
def plan(
    recipe: Recipe,
    workspace: WorkspaceUrl = "",
    set_: Sets = None,
    sample: Sample = "1",
    exact: Annotated[bool, typer.Option("--exact", help="Fold the masks of all shards instead of a sample.")] = False,
) -> None:
    """What a run would do: rows done, needed and to compute; time and storage by the rates of earlier runs. Computes
    nothing."""
    from curate.api import plan_table

    pipeline, place = _load(recipe, set_, workspace)
    out.print(plan_table(place.plan(pipeline, share(sample), exact)))


def _submit(
    recipe: Path,
    workspace: str,
    sets: list[str] | None,
    where: dict[str, Any],
    json_file: Path | None,
    quiet: bool,
    options: dict[str, Any],
    deadline: float | None,
) -> None:
    """Run a recipe and show what came of it; `options` are the engine's, `where` says who carries it out."""
    from curate.api import Options, new_run_id

    budget, cpus = options["failure_budget"], where["cpus"]
    if not 0 <= budget <= 1:
        raise RecipeError(f"--failure-budget {budget:g}: expected a share from 0 to 1, such as 0.01")
    if cpus is not None and cpus < 1:
        raise RecipeError(f"--cpus {cpus}: expected at least 1; leave it out for all there are")
    if deadline is not None and not deadline > 0:
        raise RecipeError(f"--deadline {deadline:g}: expected seconds above 0; leave it out for the usual one")
    if json_file is not None and where["detach"]:
        raise RecipeError("--json: a detached run has no result yet; leave it out, and ask `curate status` later")
    if json_file is not None and not (json_file.parent.is_dir() and os.access(json_file.parent, os.W_OK)):
        raise RecipeError(f"--json {json_file}: its folder is missing or not writable; choose another")
    pipeline, place = _load(recipe, sets, workspace)
    chosen = Options(**options, deadline=deadline)
    if where["detach"]:
        begun = place.submit(pipeline, options=chosen, **where)
        if place.local:
            note = f"{place.root} is a folder: every node of the cluster must see it under this path"
            print(f"curate: note: {note}", file=sys.stderr)
        out.print(begun.id, highlight=False)
        return
    where["run_id"] = new_run_id() if where["run_id"] is None else where["run_id"]
    with _guarded(place, where["run_id"]):
        _finish(place.submit(pipeline, options=chosen, console=None if quiet else out, **where), json_file)


@contextlib.contextmanager
def _guarded(place: Workspace, run_id: str) -> Iterator[Workspace]:
    """Turn an unexpected exception into one line; its traceback is in the run's log."""
    try:
        yield place
    except (CurateError, typer.Exit):
        raise
    except Exception as bug:  # a bug of any kind, told in one line
        if not place.has(run_id):
            raise  # nothing but its traceback tells of it
        text = " ".join(f"{type(bug).__name__}: {bug}".split())[:500]
        raise CurateError(
            f"run {run_id}: {text}; this is a bug of curate or of a stage: `curate logs {run_id}` has the traceback"
        ) from bug


def _finish(begun: Run, json_file: Path | None) -> None:
    """Wait for a run of this process, and show what came of it. SIGTERM and Ctrl-C stop it; Ctrl-C again ends it."""
    before = signal.signal(signal.SIGTERM, lambda *_: begun.stop())
    try:
        result = _waited(begun)
    finally:
        signal.signal(signal.SIGTERM, before)
    out.print(funnel(begun.record, out.width))
    show_outputs(begun)
    out.print(f"run      {begun.id} in {result.seconds:.1f} s", highlight=False)
    if json_file is not None:
        json_file.write_text(json.dumps(_written(result), indent=1))


def _waited(begun: Run) -> Result:
    try:
        return begun.wait()
    except KeyboardInterrupt:
        print("curate: stopping; press Ctrl-C again to end at once", file=sys.stderr)
    begun.stop()
    try:
        return begun.wait()
    except DrainedError:
        print("curate: interrupted; the same command resumes from there", file=sys.stderr)
        raise typer.Exit(130) from None
    except KeyboardInterrupt:
        os._exit(130)


def _written(result: Result) -> dict[str, Any]:
    ledger = {name: entry.to_json() for name, entry in result.ledger.items()}
    value = {"run_id": result.run_id, "outputs": result.outputs, "ledger": ledger, "seconds": result.seconds}
    return value | {"stages": result.stages()}


def share(text: str) -> float:
    """A share of the pool: `0.1%` or `0.001`."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise RecipeError(f"--sample {text}: expected a share above 0 and up to 1, such as 0.1% or 0.001")
    return value


def _load(recipe: Path, sets: list[str] | None, workspace: str) -> tuple[Pipeline, Workspace]:
    from curate.api import load_recipe

    pipeline = load_recipe(recipe, sets or [])
    return pipeline, opened(workspace or str(pipeline.source.get("workspace") or ""))
