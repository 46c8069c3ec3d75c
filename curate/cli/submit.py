"""Commands that take a recipe: `run`, `retry`, `plan`."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from curate.cli.common import WorkspaceUrl, opened, out, show_outputs
from curate.cli.tables import funnel
from curate.core.errors import RESUMES, CurateError, DrainedError, RecipeError

if TYPE_CHECKING:
    from curate.api import Pipeline, Result, Run, RunSpend, Workspace

submit = typer.Typer()

Recipe = Annotated[Path, typer.Argument(help="The recipe's YAML file.", readable=False)]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", help="variable=value, stage.parameter=value or stage={op: …}; may be repeated."),
]
Sample = Annotated[
    str,
    typer.Option(
        help="Canary run on this share of the pool, such as 0.1%, or on a number of rows, approximately: 20rows."
    ),
]
To = Annotated[str | None, typer.Option(help="Last stage: only it and the stages that it depends on.")]
ENGINE = ("failure_budget", "deadline", "cpus", "gpus", "max_tokens", "max_dollars")
"""Fields of Launch that are options of the engine."""


@dataclass(frozen=True)
class Launch:
    """Options of every command that starts a run."""

    workspace: WorkspaceUrl = ""
    set_: Sets = None
    engine: Annotated[str, typer.Option(help="local (this process) or ray.")] = "local"
    address: Annotated[
        str | None, typer.Option(help="Ray cluster to join: auto or host:port (default: start a local one).")
    ] = None
    cpus: Annotated[int | None, typer.Option(help="CPUs that the run may take of a Ray cluster (default: all).")] = None
    gpus: Annotated[int | None, typer.Option(help="GPUs that it may take (default: all).")] = None
    run_id: Annotated[str | None, typer.Option(help="Name of this run, used once (default: generated).")] = None
    failure_budget: Annotated[float, typer.Option(help="Share of rows that may be lost to failures.")] = 0.01
    deadline: Annotated[
        float | None,
        typer.Option(
            help="Seconds without a finished batch after which a unit is ended (default: ten times its stage's median "
            "batch, at least 10 minutes)."
        ),
    ] = None
    max_tokens: Annotated[
        int | None, typer.Option(help="Stop before this run uses more tokens at endpoints; it can be resumed.")
    ] = None
    max_dollars: Annotated[
        float | None, typer.Option(help="Stop before this run spends more at endpoints; it can be resumed.")
    ] = None
    detach: Annotated[
        bool, typer.Option("--detach", help="Run as a job of the Ray cluster; print the run id and return.")
    ] = False
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write run id, outputs, ledger and counts by stage to this file.")
    ] = None
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, only the funnel.")] = False

    def check(self) -> None:
        """Raises RecipeError for a value out of range."""
        if not 0 <= self.failure_budget <= 1:
            raise RecipeError(f"--failure-budget {self.failure_budget:g}: expected a share from 0 to 1, such as 0.01")
        if self.cpus is not None and self.cpus < 1:
            raise RecipeError(f"--cpus {self.cpus}: expected at least 1; leave it out to use all")
        if self.gpus is not None and self.gpus < 0:
            raise RecipeError(f"--gpus {self.gpus}: expected 0 or more; leave it out to use all")
        if self.deadline is not None and not self.deadline > 0:
            raise RecipeError(f"--deadline {self.deadline:g}: expected seconds above 0; leave it out for the default")
        if self.json_file is None:
            return
        if self.detach:
            raise RecipeError("--json: a detached run has no result yet; leave it out and use `curate status` later")
        if not (self.json_file.parent.is_dir() and os.access(self.json_file.parent, os.W_OK)):
            raise RecipeError(f"--json {self.json_file}: its folder is missing or not writable; choose another")

    def start(self, recipe: Path, **options: Any) -> None:
        """Run a recipe and show the result; `options` are further fields of the engine's Options."""
        from curate.api import Options, new_run_id

        self.check()
        pipeline, place = _load(recipe, self.set_, self.workspace)
        chosen = Options(**{name: getattr(self, name) for name in ENGINE}, **options)
        where: dict[str, Any] = {"engine": self.engine, "address": self.address}
        if self.detach:
            begun = place.submit(pipeline, options=chosen, run_id=self.run_id, detach=True, **where)
            if place.local:
                note = f"{place.root} is a folder: every node of the cluster must see it at this path"
                print(f"curate: note: {note}", file=sys.stderr)
            out.print(begun.id, highlight=False)
            return
        run_id = new_run_id() if self.run_id is None else self.run_id
        console = None if self.quiet else out
        with guarded(place, run_id):
            finish(place.submit(pipeline, options=chosen, run_id=run_id, console=console, **where), self.json_file)


def launches(command: Callable[..., None]) -> Callable[..., None]:
    """Add the fields of Launch as options to a command, which receives them as its argument `launch`."""
    hints = get_type_hints(Launch, include_extras=True)
    own = get_type_hints(command, include_extras=True)
    parameters = [p for p in inspect.signature(command).parameters.values() if p.name != "launch"]
    parameters = [p.replace(kind=p.KEYWORD_ONLY, annotation=own[p.name]) for p in parameters]
    shared = [inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default) for f in fields(Launch)]
    parameters += [p.replace(annotation=hints[p.name]) for p in shared]

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        launch = Launch(**{field.name: given.pop(field.name) for field in fields(Launch)})
        command(launch=launch, **given)

    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


@submit.command()
@launches
def run(
    launch: Launch,
    recipe: Annotated[Path | None, typer.Argument(help="The recipe's YAML file.", readable=False)] = None,
    sample: Sample = "1",
    to: To = None,
    submission: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run a recipe. Existing outputs are reused, those of a run that was killed too."""
    if submission is not None:
        with guarded(opened(launch.workspace), submission) as place:
            finish(place.submitted(submission, engine=launch.engine, address=launch.address, console=out), None)
        return
    if recipe is None:
        raise typer.BadParameter("missing; give a YAML file, such as pipelines/quickstart.yaml", param_hint="RECIPE")
    launch.start(recipe, to=to, **part(sample))


@submit.command()
@launches
def retry(
    launch: Launch,
    recipe: Recipe,
    stage: Annotated[str, typer.Argument(help="Stage whose rows in error are computed again.")],
    status: Annotated[
        str, typer.Option(help="error; or unusable, with --reason, for URLs that failed because of wrong settings.")
    ] = "error",
    reason: Annotated[
        list[str] | None, typer.Option(help="Only rows with this reason; may be repeated (default: all reasons).")
    ] = None,
) -> None:
    """Run a recipe and recompute the rows in error at one stage."""
    if status not in ("error", "unusable"):
        raise RecipeError(f"--status {status}: expected error or unusable; rows that are done are never computed again")
    launch.start(recipe, retry={stage: tuple(reason or ())}, retry_status=status)


@submit.command()
def plan(
    recipe: Recipe,
    workspace: WorkspaceUrl = "",
    set_: Sets = None,
    sample: Sample = "1",
    to: To = None,
    exact: Annotated[bool, typer.Option("--exact", help="Count the rows of all shards instead of a sample.")] = False,
    labels: Annotated[
        str | None,
        typer.Option(
            help="Also say what each selection would do to the balance of these labels: a column, meta.FIELD, or a "
            ".csv or .parquet file with the columns key and label. A few hundred rows, drawn at random, are enough."
        ),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the plan to this file, too.")] = None,
) -> None:
    """Show what a run would do and cost, at the rates of earlier runs. Computes nothing."""
    from curate.api import Options, plan_json, plan_table

    pipeline, place = _load(recipe, set_, workspace)
    lines = place.plan(pipeline, Options(to=to, **part(sample)), exact)
    out.print(plan_table(lines))
    if labels is not None:
        found = place.expected_balance(pipeline, labels)
        for one in found:
            out.print(one.text(), highlight=False)
        if not found:
            out.print("balance: unknown; the recipe has no selection over clusters", highlight=False)
    if json_file is not None:
        json_file.write_text(json.dumps(plan_json(lines), indent=1))


@contextlib.contextmanager
def guarded(place: Workspace, run_id: str) -> Iterator[Workspace]:
    """Turn an unexpected exception into one line; its traceback is in the run's log."""
    try:
        yield place
    except (CurateError, typer.Exit):
        raise
    except Exception as bug:  # any bug becomes one line
        if not place.has(run_id):
            raise  # without a record, only the traceback describes it
        text = " ".join(f"{type(bug).__name__}: {bug}".split())[:500]
        raise CurateError(
            f"run {run_id}: {text}; this is a bug in curate or in a stage; `curate logs {run_id}` has the traceback"
        ) from bug


def finish(begun: Run, json_file: Path | None) -> None:
    """Wait for a run of this process and show its result. SIGTERM and Ctrl-C stop it, a second Ctrl-C ends it."""
    before = signal.signal(signal.SIGTERM, lambda *_: begun.stop())
    try:
        result = _wait(begun)
    except (CurateError, typer.Exit):
        with contextlib.suppress(CurateError, OSError, ValueError):  # it may have no record, and then spent nothing
            _show_spent(begun.status().spend)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    out.print(funnel(begun.record, out.width))
    show_outputs(begun)
    _show_spent(result.spend)
    out.print(f"run      {begun.id} in {result.seconds:.1f} s", highlight=False)
    if json_file is not None:
        json_file.write_text(json.dumps(_summary(result), indent=1))


def _show_spent(spend: RunSpend) -> None:
    from curate.api import spend_words

    if spend.stages:
        out.print(f"spent    {spend_words(spend.total)}", highlight=False)


def _wait(begun: Run) -> Result:
    try:
        return begun.wait()
    except KeyboardInterrupt:
        print("curate: stopping; press Ctrl-C again to end at once", file=sys.stderr)
    begun.stop()
    try:
        return begun.wait()
    except DrainedError:
        print(f"curate: interrupted; {RESUMES}", file=sys.stderr)
        raise typer.Exit(130) from None
    except KeyboardInterrupt:
        os._exit(130)


def _summary(result: Result) -> dict[str, Any]:
    ledger = {name: entry.to_json() for name, entry in result.ledger.items()}
    value = {"run_id": result.run_id, "outputs": result.outputs, "ledger": ledger, "seconds": result.seconds}
    return value | {"stages": result.stages(), "spend": result.spend.to_json()}


def part(text: str) -> dict[str, Any]:
    """Options for a part of the pool: `0.1%`, `0.001` or `20rows`."""
    rows = text.removesuffix("rows")
    try:
        if rows != text and int(rows) > 0:
            return {"sample_rows": int(rows)}
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise RecipeError(
            f"--sample {text}: expected a share above 0 and up to 1, such as 0.1% or 0.001, or rows, such as 20rows"
        )
    return {"sample": value}


def _load(recipe: Path, sets: list[str] | None, workspace: str) -> tuple[Pipeline, Workspace]:
    from curate.api import load_recipe

    pipeline = load_recipe(recipe, sets or [])
    return pipeline, opened(workspace or str(pipeline.source.get("workspace") or ""))
