"""`distill train RECIPE` and `distill eval RUN`. Alone, or under `torchrun --nproc-per-node N -m distill.cli …`."""

from __future__ import annotations

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
def train(recipe: Annotated[str, typer.Argument(help="A YAML file, or `quickstart`.")], set_: Overrides = None) -> None:
    """Train the student of a recipe, or go on where it stopped; prints the run's folder."""
    commands.train(load_recipe(recipe, set_ or []), Console())


@app.command("eval")
def evaluate(
    run: Annotated[str, typer.Argument(help="The folder that `distill train` printed.")], set_: Overrides = None
) -> None:
    """kNN accuracy of a run's student before and after training, beside its teachers'."""
    commands.evaluate(run, set_ or [], Console())


def main() -> None:
    try:
        app()
    except CurateError as error:
        print(f"distill: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
