"""Train students from frozen teachers on curated datasets, and evaluate and export them.

For several processes: `torchrun --nproc-per-node N -m distill.cli train RECIPE`.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from rich.console import Console

from curate.core.errors import CurateError
from curate.core.version import __version__
from distill.commands.evaluate import evaluate
from distill.commands.train import train
from distill.recipe import load_recipe

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Override a recipe's value.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"distill {__version__}")
        raise typer.Exit


@app.callback(help=__doc__)
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, help="Show the version and exit.", callback=_show_version)
    ] = False,
) -> None:
    """Options of every command."""


@app.command("train")
def train_command(
    recipe: Annotated[str, typer.Argument(help="A YAML file, or `quickstart`.")],
    set_: Overrides = None,
    ray: Annotated[str | None, typer.Option("--ray", help="Workers on Ray: 8, or 4-8 for an elastic group.")] = None,
) -> None:
    """Train the student of a recipe, or resume from the last checkpoint; prints the run's folder."""
    loaded = load_recipe(recipe, set_ or [])
    if ray is None:
        train(loaded, Console())
    else:
        from distill.commands.train_on_ray import train_on_ray

        train_on_ray(loaded, ray, Console())


@app.command("plan")
def plan_command(
    recipe: Annotated[str, typer.Argument(help="A YAML file, or `amoe`.")], set_: Overrides = None
) -> None:
    """Print the steps, images and image tokens of a recipe's stages; reads neither data nor teachers."""
    from distill.commands.plan import plan

    plan(load_recipe(recipe, set_ or []), Console())


@app.command("targets")
def targets_command(
    recipe: Annotated[str, typer.Argument(help="A YAML file, or `quickstart`.")],
    images: Annotated[int, typer.Option("--images", min=2, help="Training images to look at.")] = 2000,
    to: Annotated[str | None, typer.Option("--to", help="Folder for targets.html and targets.json.")] = None,
    set_: Overrides = None,
) -> None:
    """Find teachers' features with several modes, and what PHI-S does to them; prints a table, writes a page."""
    from distill.commands.targets import targets

    targets(load_recipe(recipe, set_ or []), Console(), images=images, to=to)


@app.command("teach")
def teach_command(
    recipe: Annotated[str, typer.Argument(help="A YAML file, or `quickstart`.")], set_: Overrides = None
) -> None:
    """Compute the teachers' features of all images once and store them in run.teacher_cache for later trainings."""
    from distill.commands.teach import teach

    teach(load_recipe(recipe, set_ or []), Console())


@app.command("eval")
def evaluate_command(
    run: Annotated[str, typer.Argument(help="A folder printed by `distill train`, or an exported model's folder.")],
    dataset: Annotated[list[str] | None, typer.Option("--dataset", help="Evaluate on this dataset, too.")] = None,
    to: Annotated[str | None, typer.Option("--to", help="Folder for a model's evaluation.json and .html.")] = None,
    set_: Overrides = None,
) -> None:
    """Evaluate a student's features before and after training, next to its teachers'; prints tables, writes a page."""
    evaluate(run, set_ or [], Console(), dataset or [], to)


@app.command("export")
def export_command(
    run: Annotated[str, typer.Argument(help="The folder printed by `distill train`.")],
    to: Annotated[str | None, typer.Option("--to", help="The model's folder (default: RUN/model).")] = None,
    precision: Annotated[str, typer.Option("--precision", help="float32, float16 or bfloat16, on disk.")] = "float32",
) -> None:
    """Write a run's student to a folder for `distill.load` and curate's encoder `distill:FOLDER`; prints the folder."""
    from distill.export import export

    print(export(run, to, precision=precision))


Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@app.command("explain")
def explain_command(
    run: Annotated[str, typer.Argument(help="The folder printed by `distill train`.")],
    step: Annotated[int, typer.Option("--step", help="The step, from 1.")],
    rank: Annotated[int | None, typer.Option("--rank", help="Only the samples of this rank, from 0.")] = None,
    json: Json = False,
) -> None:
    """Print the samples of a step of a run: keys, sizes, captions drawn, and the losses around it."""
    from distill.commands.explain import explain

    explain(run, step, rank, Console(), as_json=json)


@app.command("replay")
def replay_command(
    run: Annotated[str, typer.Argument(help="The folder printed by `distill train`.")],
    step: Annotated[int | None, typer.Option("--step", help="One of the steps captured; the last if left out.")] = None,
) -> None:
    """Run a step again in which a loss or gradient was not finite, and show where it first was not."""
    from distill.commands.replay import replay

    replay(run, step, Console())


@app.command("where")
def where_command(
    run: Annotated[str, typer.Argument(help="The folder printed by `distill train`.")],
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Keys of samples.")],
    json: Json = False,
) -> None:
    """Print the steps of a run that saw samples."""
    from distill.commands.explain import where

    where(run, keys, Console(), as_json=json)


def main() -> None:
    try:
        app()
    except CurateError as error:
        if _reports_error():
            print(f"distill: {error}", file=sys.stderr)
        sys.exit(1)


def _reports_error() -> bool:
    """True on one rank only, so that a group prints its error once."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return True
    from distill.parallel import reports_error

    return reports_error()


if __name__ == "__main__":
    main()
