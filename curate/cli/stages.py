"""Commands that describe stages: `ops` and `schema`."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from curate.cli.common import out

stages = typer.Typer()


@stages.command()
def ops(name: Annotated[str | None, typer.Argument(help="Op to describe (default: list all).")] = None) -> None:
    """List all ops; for one op, show its documentation and parameters."""
    from curate import api

    if name is None:
        table = Table("op", "contract", "summary", header_style="bold")
        for op in api.ops():
            table.add_row(op.name, op.contract, op.summary)
        out.print(table)
        return
    op = api.describe(name)
    out.print(f"[bold]{name}[/bold] ({op.contract}, version {op.version})")
    out.print(op.doc, highlight=False, markup=False)
    table = Table("parameter", "type", "default", "", "description", header_style="bold")
    for part in op.parameters:
        kind = part.kind if part.kind in ("runtime", "secret") else ""
        cells = (part.name, part.type, part.default, kind, part.description)
        table.add_row(*(escape(cell) for cell in cells))
    out.print(table)


@stages.command()
def schema() -> None:
    """Print the JSON Schema of the recipe format, for editors."""
    from curate import api

    typer.echo(json.dumps(api.json_schema(), indent=1))
