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
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from curate.cli_cluster import cluster
from curate.cli_text import text
from curate.core.errors import CurateError, DrainedError, RecipeError
from curate.core.storage import Storage, open_storage, open_workspace

if TYPE_CHECKING:
    from curate.core.pipeline import Pipeline
    from curate.engine.context import Options

app = typer.Typer(
    help="Curate image pools into balanced training sets.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
tombstone = typer.Typer(help="Samples that must never go on: by key, sha256 or URL.", no_args_is_help=True)
app.add_typer(tombstone, name="tombstone")
app.add_typer(cluster, name="cluster")
app.add_typer(text, name="text")
out = Console(width=None if sys.stdout.isatty() else 150)

MOST_ITEMS, MOST_CHARACTERS = 100, 2000
"""Of a value that `curate explain` shows."""

Recipe = Annotated[Path, typer.Argument(help="The recipe's YAML file.", readable=False)]
Workspace = Annotated[
    str, typer.Option("--workspace", "-w", envvar="CURATE_WORKSPACE", help="Folder or URL (s3://…) of all outputs.")
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="variable=value or stage.parameter=value; may be repeated.")
]
RunId = Annotated[str | None, typer.Argument(help="Run id; the latest run when left out.")]


def share(text: str) -> float:
    """A share of the pool: `0.1%` or `0.001`."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise RecipeError(f"--sample {text}: expected a share above 0 and up to 1, such as 0.1% or 0.001")
    return value


Sample = Annotated[str, typer.Option(help="Canary run through the whole DAG on this share of the pool, such as 0.1%.")]
Engine = Annotated[str, typer.Option(help="local (this process) or ray.")]


@app.command()
def run(
    recipe: Recipe,
    workspace: Workspace = "",
    set_: Sets = None,
    engine: Engine = "local",
    address: Annotated[
        str | None, typer.Option(help="Ray cluster to join (auto, ray://…); a local one if left out.")
    ] = None,
    cpus: Annotated[int | None, typer.Option(help="CPUs of a local Ray; all if left out.")] = None,
    sample: Sample = "1",
    run_id: Annotated[str | None, typer.Option(help="Name of this run; made up if left out.")] = None,
    failure_budget: Annotated[float, typer.Option(help="Share of rows that may be lost to failures.")] = 0.01,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write run id, outputs and ledger to this file.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the funnel.")] = False,
) -> None:
    """Run a recipe. What is there already is reused; a run that was killed goes on by the same command."""
    from curate.engine.context import Options
    from curate.engine.funnel import funnel
    from curate.engine.run import LazyBackend, make_backend
    from curate.engine.run import run as carry_out

    if not 0 <= failure_budget <= 1:
        raise RecipeError(f"--failure-budget {failure_budget:g}: expected a share from 0 to 1, such as 0.01")
    if cpus is not None and cpus < 1:
        raise RecipeError(f"--cpus {cpus}: expected at least 1; leave it out for all there are")
    options = Options(failure_budget=failure_budget, sample=share(sample))
    if json_file is not None and not (json_file.parent.is_dir() and os.access(json_file.parent, os.W_OK)):
        raise RecipeError(f"--json {json_file}: its folder is not there or not writable; choose another")
    pipeline, place = _load(recipe, set_, workspace)
    backend = make_backend(engine, address, cpus)
    try:
        result = carry_out(
            pipeline, place, engine=backend, options=options, run_id=run_id, console=None if quiet else out
        )
    except KeyboardInterrupt:
        print("curate: interrupted; the same command goes on from there", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        if isinstance(backend, LazyBackend):
            backend.close()
    out.print(funnel(result.ledger, result.ops, result.reused))
    for base in result.outputs.values():
        if "/datasets/" in base:
            out.print(f"dataset  {base}", soft_wrap=True, highlight=False)
        if "/artifacts/report." in base:
            out.print(f"report   {base}/index.html", soft_wrap=True, highlight=False)
    out.print(f"run      {result.run_id} in {result.seconds:.1f} s", highlight=False)
    if json_file is not None:
        ledger = {name: entry.to_json() for name, entry in result.ledger.items()}
        value = {"run_id": result.run_id, "outputs": result.outputs, "ledger": ledger, "seconds": result.seconds}
        json_file.write_text(json.dumps(value, indent=1))


@app.command()
def plan(recipe: Recipe, workspace: Workspace = "", set_: Sets = None, sample: Sample = "1") -> None:
    """What a run would do: shards, passes, rows; time and storage by the rates of earlier runs. Computes nothing."""
    from curate.engine import plan as planning
    from curate.engine.context import Options
    from curate.engine.local import LocalBackend
    from curate.engine.preflight import preflight
    from curate.engine.run import scaled

    options: Options = Options(sample=share(sample))
    pipeline, place = _load(recipe, set_, workspace)
    pipeline = scaled(pipeline, options.sample) if options.sample < 1 else pipeline
    storage = open_storage(place)
    if storage.exists("format.json"):
        storage = open_workspace(place)
    portions = preflight(pipeline, storage, options.sample)
    out.print(planning.table(planning.plan(pipeline, storage, options, LocalBackend(), portions)))


@app.command()
def status(run_id: RunId = None, workspace: Workspace = "") -> None:
    """The runs of a workspace; of one run, its funnel and how far it is."""
    from curate.engine.events import read_events
    from curate.engine.funnel import funnel
    from curate.engine.record import Run, list_runs

    storage = _open(workspace)
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
    out.print(funnel(found.ledger(), found.ops(), (found.result or {}).get("reused")))
    events = read_events(storage, run_id)
    under_way = {event["stage"]: event for event in events if event["event"] == "progress"}
    for stage, event in under_way.items():
        if found.result is None and stage not in found.outputs:
            out.print(f"{stage}: {event['done']:.0%}, {event['text']}", highlight=False, markup=False)
    for event in events:
        if event["event"] in ("failure", "shard_set_aside", "poison"):
            out.print(json.dumps(event), soft_wrap=True)


@app.command()
def explain(
    key: Annotated[str, typer.Argument(help="Key, start of a key, source id or name of a sample.")],
    workspace: Workspace = "",
    run_id: Annotated[str | None, typer.Option("--run", help="Run to look in; the latest if left out.")] = None,
) -> None:
    """Everything known about one sample: columns, rejects and reasons, cluster path, copies, where it went."""
    from curate.engine.explain import copies_of
    from curate.engine.explain import explain as everything
    from curate.engine.record import latest

    found = latest(_open(workspace), run_id)
    said = everything(found, key)
    for stage, op, facts in said:
        table = Table(title=f"{stage} ({op})", title_justify="left", show_header=False, box=None, padding=(0, 2))
        for name, value in facts.items():
            if name == "reject":
                name, value = ("refused", f"[red]{value}[/red]") if value else ("refused", "no")
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
    return text if text.startswith("[red]") else escape(text)


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
def gc(
    workspace: Workspace = "",
    keep: Annotated[int | None, typer.Option(help="Keep the last N runs; all if left out.")] = None,
    drop: Annotated[list[str] | None, typer.Option(help="Run id not to keep; may be repeated.")] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Remove; without it, only say what would go.")] = False,
) -> None:
    """Remove what no kept run reaches. A dry run unless --delete is given."""
    from curate.engine.gc import collect, unreachable

    storage = _open(workspace)
    garbage, runs = unreachable(storage, keep, drop or [])
    for path, size in sorted(garbage.items()):
        out.print(f"{size:>15,}  {path}", highlight=False, soft_wrap=True)
    total = f"{len(garbage):,} outputs, {sum(garbage.values()):,} bytes, {len(runs)} runs"
    if delete:
        collect(storage, garbage, runs)
        out.print(f"removed {total}")
    else:
        out.print(f"would remove {total}; add --delete to do it")


@app.command()
def pin(
    name: str, run_id: Annotated[str, typer.Argument(metavar="RUN")], stage: str, workspace: Workspace = ""
) -> None:
    """Keep a stage's artifact under a name: a port may then say pin:NAME, also when the pool has grown."""
    from curate.engine import pins as pinning
    from curate.engine.record import Run

    storage = _open(workspace)
    made = pinning.create(storage, name, Run.load(storage, run_id), stage)
    out.print(f"pin:{made.name} is {made.kind} {made.fingerprint} ({made.op})", highlight=False)


@app.command()
def unpin(name: str, workspace: Workspace = "") -> None:
    """Forget a pin; its artifact stays until `curate gc` finds nobody who needs it."""
    from curate.engine import pins as pinning

    gone = pinning.remove(_open(workspace), name)
    out.print(f"pin:{gone.name} was {gone.kind} {gone.fingerprint} ({gone.op})", highlight=False)


@app.command()
def pins(workspace: Workspace = "") -> None:
    """The pinned artifacts of a workspace."""
    from curate.engine import pins as pinning

    table = Table("pin", "kind", "op", "fingerprint", "run", "stage", header_style="bold")
    for found in pinning.pins(_open(workspace)).values():
        table.add_row(found.name, found.kind, found.op, found.fingerprint, found.run, found.stage)
    out.print(table)


@app.command()
def diff(first: str, second: str, workspace: Workspace = "") -> None:
    """What differs between two runs: parameters, counts, and the keys selected."""
    from curate.engine.diff import diff as compare
    from curate.engine.record import Run

    storage = _open(workspace)
    one, two = Run.load(storage, first), Run.load(storage, second)
    table = Table(
        "stage",
        "output",
        "parameters",
        f"alive after {first}",
        f"alive after {second}",
        "selected",
        header_style="bold",
    )
    for item in compare(one, two):
        state = f"only in {item.only_in}" if item.only_in else ("same" if item.same else "differs")
        parameters = "\n".join(f"{name}: {a!r} -> {b!r}" for name, (a, b) in sorted(item.parameters.items()))
        counts = [f"{entry.after:,}" if entry else "" for entry in (item.before, item.after)]
        keys = f"{item.keys[0]:,} left, {item.keys[1]:,} in both, {item.keys[2]:,} new" if item.keys else ""
        table.add_row(item.stage, state, parameters, *counts, keys)
    out.print(table)


@app.command()
def schema() -> None:
    """JSON Schema of the recipe format, for editors."""
    from curate.core.recipe import json_schema

    typer.echo(json.dumps(json_schema(), indent=1))


@tombstone.command("add")
def tombstone_add(
    entries: Annotated[list[str], typer.Argument(help="Keys, sha256 digests, URLs, or @FILE with one a line.")],
    why: Annotated[str, typer.Option(help="Reason, kept with the list.")],
    workspace: Workspace = "",
) -> None:
    """Bury samples; names the datasets that hold them."""
    from curate.core import tombstones
    from curate.engine.affected import affected_datasets

    storage = _open(workspace)
    lines: list[str] = []
    for entry in entries:
        lines += _lines(entry[1:]) if entry.startswith("@") else [entry]
    count = tombstones.bury(storage, lines, why)
    out.print(f"{count:,} entries buried; every select and pack from now on leaves them out")
    for base, found in affected_datasets(storage, tombstones.load(storage)).items():
        out.print(f"affected: {storage.url_of(base)} holds {found:,} of the buried samples", soft_wrap=True)


@tombstone.command("list")
def tombstone_list(workspace: Workspace = "") -> None:
    """Everything buried, and the datasets that still hold some of it."""
    from curate.core import tombstones
    from curate.engine.affected import affected_datasets

    storage = _open(workspace)
    buried = tombstones.load(storage)
    for kind, values in buried.values.items():
        for value in values:
            out.print(f"{kind}  {value}", highlight=False, soft_wrap=True)
    for base, found in affected_datasets(storage, buried).items():
        out.print(f"affected: {storage.url_of(base)} holds {found:,} of the buried samples", soft_wrap=True)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"@{path}: cannot be read ({error}); give a text file with one entry a line") from None


def _load(recipe: Path, sets: list[str] | None, workspace: str) -> tuple[Pipeline, str]:
    from curate.core.recipe import load

    pipeline = load(recipe, sets or [])
    place = workspace or pipeline.source.get("workspace")
    if not place:
        raise RecipeError("--workspace is missing; give a folder or URL, or set CURATE_WORKSPACE")
    return pipeline, str(place)


def _open(workspace: str) -> Storage:
    if not workspace:
        raise RecipeError("--workspace is missing; give a folder or URL, or set CURATE_WORKSPACE")
    return open_workspace(workspace, create=False)


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
