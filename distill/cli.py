"""`distill train RECIPE` and `distill eval RUN`. Alone, or under `torchrun --nproc-per-node N -m distill.cli …`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from rich.console import Console

from curate.core.errors import CurateError
from distill import commands
from distill.recipe import load_recipe

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change a recipe's value.")]


@app.command("train")
def train(
    recipe: Annotated[str, typer.Argument(help="A YAML file, or `quickstart`.")],
    set_: Overrides = None,
    ray: Annotated[str | None, typer.Option("--ray", help="Workers on Ray: 8, or 4-8 for an elastic group.")] = None,
) -> None:
    """Train the student of a recipe, or go on where it stopped; prints the run's folder."""
    loaded = load_recipe(recipe, set_ or [])
    if ray is None:
        commands.train(loaded, Console())
    else:
        from distill.training.launch_ray import train_on_ray

        train_on_ray(loaded, ray, Console())


@app.command("teach")
def teach(recipe: Annotated[str, typer.Argument(help="A YAML file, or `quickstart`.")], set_: Overrides = None) -> None:
    """Ask the teachers about all pictures once, and keep the answers in run.teacher_cache for later trainings."""
    commands.teach(load_recipe(recipe, set_ or []), Console())


@app.command("eval")
def evaluate(
    run: Annotated[str, typer.Argument(help="A folder that `distill train` printed, or an exported model's.")],
    dataset: Annotated[list[str] | None, typer.Option("--dataset", help="Judge on these pictures, too.")] = None,
    to: Annotated[str | None, typer.Option("--to", help="Folder for a model's evaluation.json and .html.")] = None,
    set_: Overrides = None,
) -> None:
    """What a student's features are good for, before and after training, beside its teachers': tables and a page."""
    commands.evaluate(run, set_ or [], Console(), dataset or [], to)


@app.command("export")
def export(
    run: Annotated[str, typer.Argument(help="The folder that `distill train` printed.")],
    to: Annotated[str | None, typer.Option("--to", help="The model's folder; RUN/model when left out.")] = None,
    precision: Annotated[str, typer.Option("--precision", help="float32, float16 or bfloat16, on disk.")] = "float32",
) -> None:
    """Write a run's student as a folder for `distill.load` and for curate's encoder `distill:FOLDER`; prints it."""
    from distill.export.write import export as export_run

    print(export_run(run, to, precision=precision))


def main() -> None:
    try:
        app()
    except CurateError as error:
        if _speaks():
            print(f"distill: {error}", file=sys.stderr)
        sys.exit(1)


def _speaks() -> bool:
    """Of several ranks that end, one says why."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return True
    from distill.training.parallel import speaks

    return speaks()


if __name__ == "__main__":
    main()
