"""`curate encoders`: compare encoders on your own images."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from curate.cli.common import out

encoders = typer.Typer(help="Compare encoders on your own images.", no_args_is_help=True)


@encoders.command()
def compare(
    images: Annotated[str, typer.Argument(help="Folder of images: path or URL.")],
    encoder: Annotated[
        list[str] | None,
        typer.Option(
            help="Encoder; may be repeated. The first is chosen if none is better (default: lite1, tiny, descriptor)."
        ),
    ] = None,
    sample: Annotated[int, typer.Option(min=2, help="Number of images to look at, about.")] = 500,
    json_: Annotated[Path | None, typer.Option("--json", help="Write the result to this file, too.")] = None,
) -> None:
    """Say which encoder separates labels best; without labels in metadata, folders; otherwise altered copies."""
    from curate.api.encoders import compare_encoders

    found = compare_encoders(images, encoder or ["lite1", "tiny", "descriptor"], sample)
    table = Table("encoder", f"right, by {found.by}", header_style="bold")
    for spec, share in found.accuracy.items():
        table.add_row(spec, f"{share:.1%}")
    out.print(table)
    out.print(f"{found.verdict} ({found.images:,} images)", highlight=False, soft_wrap=True)
    if json_ is not None:
        json_.write_text(json.dumps(asdict(found)))
