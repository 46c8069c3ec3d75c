"""Commands for releases: what may be published of a dataset, and the pool of a release."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from curate.cli.common import WorkspaceUrl, listed, opened, out

release = typer.Typer()
Networks = Annotated[
    list[str] | None,
    typer.Option("--allow-network", help="Network such as 10.1.0.0/16 that counts as public; may be repeated."),
]
Source = Annotated[str, typer.Argument(metavar="RELEASE", help="Folder or URL of the release.")]


@release.command("release")
def write(
    dataset: Annotated[str, typer.Argument(help="NAME (the newest), NAME/FINGERPRINT, a fingerprint or a pin.")],
    to: Annotated[str, typer.Option(help="New folder or URL.")],
    columns: Annotated[
        list[str] | None,
        typer.Option(
            help="Further columns, separated by commas: COLUMN, STAGE.COLUMN, meta.FIELD or NAME=any of them."
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the card (default: the dataset's name).")] = None,
    license: Annotated[str, typer.Option(help="Licence of the release, as the Hub names it: cc-by-4.0.")] = "unknown",
    predecessor: Annotated[str | None, typer.Option(help="Earlier release: what changed since is listed.")] = None,
    allow_network: Networks = None,
    workspace: WorkspaceUrl = "",
) -> None:
    """Write what may be published of a dataset: rows without pixels, a card, croissant.json, checksums."""
    about = opened(workspace).release(
        dataset, to, columns=listed(columns), title=title, license=license, predecessor=predecessor,
        allow_networks=allow_network or [],
    )  # fmt: skip
    show(about, to)


@release.command()
def fetch(
    source: Source,
    contact: Annotated[str, typer.Option(help="Your e-mail address or URL, which every host receives.")],
    namespace: Annotated[str | None, typer.Option(help="Namespace of the pool (default: the release's).")] = None,
    removed: Annotated[
        list[str] | None, typer.Option(help="Later removed.parquet, file or URL; may be repeated.")
    ] = None,
    allow_network: Networks = None,
    allow_port: Annotated[list[int] | None, typer.Option(help="Port; may be repeated (default: 80, 443).")] = None,
    host_rate: Annotated[float | None, typer.Option(help="Requests per second to one host.")] = None,
    recipe: Annotated[
        Path | None, typer.Option(help="Write the recipe to this file, for `curate run` or `submit`; download nothing.")
    ] = None,
    run_id: Annotated[str | None, typer.Option(help="Name of this run, used once (default: generated).")] = None,
    engine: Annotated[str, typer.Option(help="local (this process) or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="Ray cluster to join.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    workspace: WorkspaceUrl = "",
) -> None:
    """Download the sources of a release into a pool, compare each with its digest, and say what is gone and why. The
    same command resumes it."""
    settings: dict[str, Any] = {
        "namespace": namespace, "removed": removed or [], "allow_networks": allow_network, "allow_ports": allow_port,
        "host_rate": host_rate,
    }  # fmt: skip
    place = opened(workspace)
    if recipe is not None:
        place.write_fetch_recipe(source, contact, recipe, **settings)
        out.print(f"{recipe}: `curate run {recipe}` downloads the release", highlight=False, soft_wrap=True)
        return
    found = place.fetch(
        source, contact, run_id=run_id, engine=engine, address=address, console=None if quiet else out, **settings
    )
    table = Table("rows of the release", header_style="bold")
    table.add_column(f"{found.rows:,}", justify="right")
    table.add_row("fetched", f"{found.fetched:,}")
    for reason, count in sorted(found.gone.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(reason, f"{count:,}")
    if found.repeated:
        table.add_row("repeated URL and caption", f"{found.repeated:,}")
    out.print(table)
    without = found.rows - found.digests
    checked = f"; {without:,} rows have no digest of the source's bytes to compare" if without else ""
    out.print(f"run {found.run_id}{checked}", highlight=False)


@release.command()
def push(
    source: Annotated[str, typer.Argument(metavar="RELEASE", help="Folder of the release.")],
    to: Annotated[str, typer.Argument(help="hf://datasets/OWNER/NAME, which must be free.")],
    token: Annotated[
        str | None, typer.Option(help="env:NAME or file:PATH of a token that may write (default: HF_TOKEN).")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Create it as a private dataset.")] = False,
    update: Annotated[bool, typer.Option("--update", help="Replace what an existing dataset has.")] = False,
) -> None:
    """Publish a release on the Hugging Face Hub."""
    from curate.api import push_release

    url = push_release(source, to, token, private=private, update=update)
    out.print(url, highlight=False, soft_wrap=True, markup=False)


def show(about: dict[str, Any], to: str) -> None:
    """What a release has, in some lines."""
    out.print(f"{about['rows']:,} rows of {about['name']} in {to}", highlight=False, soft_wrap=True, markup=False)
    if "predecessor" in about:
        out.print(f"{about['added']:,} keys added, {about['removed']:,} removed", highlight=False)
    for column, reasons in about["withheld"].items():
        why = ", ".join(f"{reason} {count:,}" for reason, count in reasons.items())
        out.print(f"not published, null in {column}: {why}", highlight=False, markup=False)
    if about["tombstoned"]:
        out.print(f"{about['tombstoned']:,} tombstoned samples left out", highlight=False)
