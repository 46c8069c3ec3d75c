"""`curate`: submit pipelines, and ask what they did. Every error a user can cause is one line on stderr."""

from __future__ import annotations

import inspect
import json
import os
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer
from rich.markup import escape
from rich.table import Table

from curate.cli_cluster import cluster
from curate.cli_common import Workspace, missing, opened, out, show_outputs
from curate.cli_data import data
from curate.cli_runs import runs
from curate.cli_text import text
from curate.core.errors import CurateError, DrainedError, RecipeError
from curate.core.storage import open_storage, open_workspace

if TYPE_CHECKING:
    from curate.core.pipeline import Pipeline

app = typer.Typer(
    help="Curate image pools into balanced training sets.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Recipe = Annotated[Path, typer.Argument(help="The recipe's YAML file.", readable=False)]
Sets = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="variable=value or stage.parameter=value; may be repeated.")
]
Sample = Annotated[str, typer.Option(help="Canary run through the whole DAG on this share of the pool, such as 0.1%.")]
Engine = Annotated[str, typer.Option(help="local (this process) or ray.")]
Address = Annotated[str | None, typer.Option(help="Ray cluster to join (auto, ray://…); a local one if left out.")]
Cpus = Annotated[int | None, typer.Option(help="CPUs of a local Ray; all if left out.")]
NewRunId = Annotated[str | None, typer.Option("--run-id", help="Name of this run; made up if left out.")]
Budget = Annotated[float, typer.Option(help="Share of rows that may be lost to failures.")]
JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Write run id, outputs, ledger and counts by stage to this file.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the funnel.")]


@app.command()
def run(
    recipe: Recipe,
    workspace: Workspace = "",
    set_: Sets = None,
    engine: Engine = "local",
    address: Address = None,
    cpus: Cpus = None,
    sample: Sample = "1",
    run_id: NewRunId = None,
    failure_budget: Budget = 0.01,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Run a recipe. What is there already is reused; the same command resumes a run that was killed."""
    options = {"failure_budget": failure_budget, "sample": share(sample)}
    _submit(recipe, workspace, set_, engine, address, cpus, run_id, json_file, quiet, options)


@app.command()
def retry(
    recipe: Recipe,
    stage: Annotated[str, typer.Argument(help="Stage whose failed rows are tried again.")],
    workspace: Workspace = "",
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
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Run a recipe, and in it compute the rows again that are in error at one stage."""
    if status != "error":
        raise RecipeError(f"--status {status}: expected error; done and unusable rows are never computed again")
    options = {"failure_budget": failure_budget, "retry": {stage: tuple(reason or ())}}
    _submit(recipe, workspace, set_, engine, address, cpus, run_id, json_file, quiet, options)


def _submit(
    recipe: Path,
    workspace: str,
    sets: list[str] | None,
    engine: str,
    address: str | None,
    cpus: int | None,
    run_id: str | None,
    json_file: Path | None,
    quiet: bool,
    options: dict[str, Any],
) -> None:
    """Run a recipe and show what came of it; `options` are the engine's."""
    from curate.engine.context import Options
    from curate.engine.record.funnel import funnel
    from curate.engine.record.runs import Run
    from curate.engine.run import LazyBackend, make_backend
    from curate.engine.run import run as carry_out

    budget = options["failure_budget"]
    if not 0 <= budget <= 1:
        raise RecipeError(f"--failure-budget {budget:g}: expected a share from 0 to 1, such as 0.01")
    if cpus is not None and cpus < 1:
        raise RecipeError(f"--cpus {cpus}: expected at least 1; leave it out for all there are")
    if json_file is not None and not (json_file.parent.is_dir() and os.access(json_file.parent, os.W_OK)):
        raise RecipeError(f"--json {json_file}: its folder is missing or not writable; choose another")
    pipeline, place = _load(recipe, sets, workspace)
    for stage in options.get("retry", ()):
        _check_retry(pipeline, stage)
        opened(place)  # where nothing has been computed, nothing is in error
    backend = make_backend(engine, address, cpus)
    console = None if quiet else out
    try:
        result = carry_out(pipeline, place, engine=backend, options=Options(**options), run_id=run_id, console=console)
    except KeyboardInterrupt:
        print("curate: interrupted; the same command resumes from there", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        if isinstance(backend, LazyBackend):
            backend.close()
    found = Run.load(open_workspace(place), result.run_id)
    out.print(funnel(found))
    show_outputs(found)
    out.print(f"run      {result.run_id} in {result.seconds:.1f} s", highlight=False)
    if json_file is not None:
        ledger = {name: entry.to_json() for name, entry in result.ledger.items()}
        value = {"run_id": result.run_id, "outputs": result.outputs, "ledger": ledger, "seconds": result.seconds}
        json_file.write_text(json.dumps(value | {"stages": result.stages()}, indent=1))


def _check_retry(pipeline: Pipeline, stage: str) -> None:
    """Whether the stage has rows that may be in error."""
    from curate.core.contracts import Derive, Map

    able = [name for name, node in pipeline.nodes.items() if isinstance(node.stage, (Map, Derive))]
    if stage not in pipeline.nodes:
        raise RecipeError(
            f"retry {stage}: no such stage in the recipe; its rows in error can be retried at {', '.join(able)}"
        )
    if stage not in able:
        kind = _contract(type(pipeline.nodes[stage].stage))
        raise RecipeError(
            f"retry {stage}: a {kind} computes no facts; Maps and Derives do: {', '.join(able) or 'none'}"
        )


def share(text: str) -> float:
    """A share of the pool: `0.1%` or `0.001`."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise RecipeError(f"--sample {text}: expected a share above 0 and up to 1, such as 0.1% or 0.001")
    return value


@app.command()
def plan(
    recipe: Recipe,
    workspace: Workspace = "",
    set_: Sets = None,
    sample: Sample = "1",
    exact: Annotated[bool, typer.Option("--exact", help="Fold the masks of all shards instead of a sample.")] = False,
) -> None:
    """What a run would do: rows done, needed and to compute; time and storage by the rates of earlier runs. Computes
    nothing."""
    from curate.engine import plan as planning
    from curate.engine.backends.local import LocalBackend
    from curate.engine.context import Options
    from curate.engine.preflight import preflight
    from curate.engine.run import scaled

    pipeline, place = _load(recipe, set_, workspace)
    # a plan loses nothing: what earlier runs have lost, at every stage, does not end it
    options = Options(sample=share(sample), failure_budget=float(len(pipeline.nodes)))
    pipeline = scaled(pipeline, options.sample) if options.sample < 1 else pipeline
    storage = open_storage(place)
    if storage.exists("format.json"):
        storage = open_workspace(place)
    portions = preflight(pipeline, storage, options.sample)
    out.print(planning.table(planning.plan(pipeline, storage, options, LocalBackend(), portions, exact)))


@app.command()
def ops(name: Annotated[str | None, typer.Argument(help="One op, with its parameters.")] = None) -> None:
    """The stages there are, with their parameters and docs."""
    from curate.core import registry

    if name is None:
        table = Table("op", "contract", "what it does", header_style="bold")
        for op in registry.names():
            cls = registry.resolve(op)
            table.add_row(op, _contract(cls), _first_line(cls))
        out.print(table)
        return
    cls = registry.resolve(name)
    out.print(f"[bold]{name}[/bold] ({_contract(cls)}, version {cls.version})")
    out.print(inspect.cleandoc(cls.__doc__ or ""), highlight=False, markup=False)
    from curate.core.contracts import kind_of

    table = Table("parameter", "type", "default", "", "description", header_style="bold")
    for field, info in cls.model_fields.items():
        value = info.get_default(call_default_factory=True)
        default = "required" if info.is_required() else json.dumps(value, default=str)  # of a secret, its reference
        kind = kind_of(info)
        cells = (field, _kind(info.annotation), default, "" if kind == "semantic" else kind)
        table.add_row(*(escape(cell) for cell in (*cells, info.description or "")))
    for port, artifact in cls.ports.items():
        default = "none" if port in cls.optional_ports else "required"
        table.add_row(port, "input", default, "", f"name of the stage that makes the {artifact}")
    out.print(table)


def _kind(annotation: Any) -> str:
    """A parameter's type as a recipe's author thinks of it: `int | null`, `list[str]`, `random | closest`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(arguments[0])
    if origin is Literal:
        return " | ".join(str(value) for value in arguments)
    if origin in (Union, types.UnionType):
        return " | ".join(_kind(part) for part in arguments)
    if origin is not None:
        return f"{origin.__name__}[{', '.join(_kind(part) for part in arguments)}]"
    names = {type(None): "null", Ellipsis: "…", Any: "any"}
    return names.get(annotation) or str(annotation.__name__)


def _contract(cls: type) -> str:
    return next(base.__name__ for base in cls.__mro__ if base.__module__.startswith("curate.core.contracts."))


def _first_line(cls: type) -> str:
    return ((cls.__doc__ or "").strip().splitlines() or [""])[0]


@app.command()
def schema() -> None:
    """JSON Schema of the recipe format, for editors."""
    from curate.core.recipe import json_schema

    typer.echo(json.dumps(json_schema(), indent=1))


def _load(recipe: Path, sets: list[str] | None, workspace: str) -> tuple[Pipeline, str]:
    from curate.core.recipe import load

    pipeline = load(recipe, sets or [])
    place = workspace or pipeline.source.get("workspace")
    if not place:
        raise missing()
    return pipeline, str(place)


app.add_typer(data)
app.add_typer(runs)
app.add_typer(cluster, name="cluster")
app.add_typer(text, name="text")


def main() -> None:
    try:
        app()
    except DrainedError as error:
        print(f"curate: {error}", file=sys.stderr)
        sys.exit(143)
    except CurateError as error:
        print(f"curate: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
