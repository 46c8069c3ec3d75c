"""Commands for the contents of a workspace: bytes, datasets, pins, tombstones, and garbage collection."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from curate.cli.common import Columns, Known, OneRun, WorkspaceUrl, end_unknown, listed, opened, out
from curate.core.errors import RecipeError

if TYPE_CHECKING:
    from curate.api import Workspace

KEY, IMAGE_NAME = (
    re.compile(r"[0-9a-f]{32}|\w+://.*"),
    re.compile(r"\S.*\.(jpe?g|png|webp|gif|bmp|tiff?|avif|heic)", re.I),
)
"""How a sample is named, and a file."""
data = typer.Typer()
tombstone = typer.Typer(help="Samples to exclude from every run, each with a reason.", no_args_is_help=True)
data.add_typer(tombstone, name="tombstone")


@data.command()
def du(workspace: WorkspaceUrl = "") -> None:
    """Show bytes by noun and stage, and the bytes that `curate gc --delete --now` would free."""
    table = Table("noun", "op or name", "stages", header_style="bold")
    for name in ("files", "bytes", "gc would free"):
        table.add_column(name, justify="right")
    found = opened(workspace).usage()
    for line in found:
        free = f"{line.garbage:,}" if line.garbage else ""
        table.add_row(line.noun, line.name, ", ".join(line.stages), f"{line.files:,}", f"{line.bytes:,}", free)
    table.add_section()
    sums = [f"{sum(getattr(line, name) for line in found):,}" for name in ("files", "bytes", "garbage")]
    table.add_row("all", "", "", *sums)
    out.print(table)


@data.command()
def datasets(workspace: WorkspaceUrl = "") -> None:
    """List the complete datasets of a workspace, oldest first."""
    table = Table("name", "fingerprint", "runs", "predecessor", header_style="bold")
    for name in ("rows", "tars", "bytes"):
        table.add_column(name, justify="right")
    table.add_column("pinned")
    for found in opened(workspace).datasets():
        counts = [f"{count:,}" for count in (found.rows, found.tars, found.bytes)]
        before = found.predecessor.rpartition("/")[2][:12]
        table.add_row(found.name, found.fingerprint, ", ".join(found.runs), before, *counts, ", ".join(found.pins))
    out.print(table)


@data.command()
def export(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="Folder or URL of a dataset.")],
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="New or empty folder.")],
    to: Annotated[str, typer.Option(metavar="FORMAT", help="mds, litdata, imagefolder or parquet.")],
) -> None:
    """Write a dataset in the container of another reader. The folder has all samples, or does not appear."""
    from curate.api import export

    out.print(f"{export(dataset, to, folder):,} samples in {folder}", highlight=False, soft_wrap=True)


@data.command()
def gc(
    workspace: WorkspaceUrl = "",
    keep: Annotated[
        int | None,
        typer.Option(help="Keep the last N successful runs of each recipe (stages, namespaces, dataset names)."),
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(help="Run id to drop; may be repeated.")] = None,
    costly: Annotated[
        bool, typer.Option("--costly", help="Also remove answers of costly stages that no kept run reads.")
    ] = False,
    now: Annotated[
        bool, typer.Option("--now", help="Also remove temporary files of the last day; an error while a run is alive.")
    ] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete; otherwise only list what would be deleted.")
    ] = False,
) -> None:
    """Remove outputs that no kept run needs. A dry run unless --delete is given.

    By default, all runs are kept. With --keep, a recipe's latest run, which can be resumed, and runs of pins stay too.
    """
    if keep is not None and keep < 0:
        raise RecipeError(f"--keep {keep}: expected 0 or more; leave it out to keep all runs")
    place = opened(workspace)
    garbage, gone = place.gc(keep, drop or [], costly, delete, now)
    for line in [] if delete else place.described(garbage):
        out.print(line, highlight=False, soft_wrap=True)
    total = f"{len(garbage):,} outputs, {sum(garbage.values()):,} bytes, {len(gone)} runs"
    out.print(f"removed {total}" if delete else f"would remove {total}; add --delete to do it")


@data.command()
def table(
    run_id: OneRun,
    stage: Annotated[str, typer.Argument(help="Stage whose rows to write: those that pass it.")],
    to: Annotated[str, typer.Option(help="File or URL that ends in .parquet, .arrow or .csv.")],
    columns: Columns = None,
    where: Annotated[str | None, typer.Option(help="Only rows for which this is true, as in `filter.where`.")] = None,
    workspace: WorkspaceUrl = "",
) -> None:
    """Write columns of the rows that are alive at a stage, shard by shard."""
    from curate.api import write_table

    count = write_table(opened(workspace).batches(run_id, stage, listed(columns), where), to)
    out.print(f"{count:,} rows of {stage} in {to}", highlight=False, soft_wrap=True, markup=False)


@data.command()
def search(
    query: Annotated[str, typer.Argument(help="Words, an image's file, or a sample: its key, or its URL.")],
    workspace: WorkspaceUrl = "",
    run_id: Annotated[str | None, typer.Option("--run", help="Run id (default: the latest run).")] = None,
    limit: Annotated[int, typer.Option(help="Most rows to list, the nearest first.")] = 10,
    columns: Columns = None,
    where: Annotated[str | None, typer.Option(help="Only rows for which this is true, as in `filter.where`.")] = None,
    stage: Annotated[str | None, typer.Option(help="Stage that built the index, if the run has several.")] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Encoder of the vectors, if it is not where the recipe had it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Search the rows of a run by a text, an image, or a sample. The recipe needs `search.fit`, or for words that name
    what images show, `image.concepts`."""
    names, asked = listed(columns), _asked(query)
    found = (
        opened(workspace)
        .run(run_id)
        .search(**asked, limit=limit, columns=names, where=where, stage=stage, encoder=encoder)
    )
    if as_json:
        print(json.dumps(dataclasses.asdict(found), ensure_ascii=False))
        return
    if found.said:
        out.print(found.said, highlight=False, markup=False)
    table = Table("probability" if found.said else "score", "key", "caption", "url", *names, header_style="bold")
    for hit in found.hits:
        cells = (hit.caption or "", hit.url or "", *(str(hit.columns[name]) for name in names))
        table.add_row(f"{hit.score:.4f}", hit.key, *map(escape, cells))
    out.print(table)
    if len(found.hits) < limit and not found.said:
        out.print(f"{len(found.hits)} of the nearest {found.judged:,} of {found.rows:,} rows", highlight=False)


def _asked(query: str) -> dict[str, Any]:
    """A file is an image; 32 hex digits and URLs are of a sample; all else is a text."""
    if os.path.isfile(query):  # False for a text that is too long for a path
        try:
            return {"image": Path(query).read_bytes()}
        except OSError as error:
            raise RecipeError(f"cannot read {query} ({error}); give an image's file") from None
    if os.path.isdir(query):
        raise RecipeError(f"{query}: a folder; give an image in it, a key, or other words")
    if IMAGE_NAME.fullmatch(query) and "://" not in query:
        raise RecipeError(f"{query}: no such file; give an image that exists, or words without the ending of a file")
    return {"key" if KEY.fullmatch(query) else "text": query}


# --- pins ---


@data.command()
def pin(
    name: Annotated[str, typer.Argument(help="Name of the new pin.")],
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Run id.")],
    stage: Annotated[str, typer.Argument(help="Stage that built the artifact or dataset.")],
    workspace: WorkspaceUrl = "",
) -> None:
    """Keep a stage's artifact or dataset under a name; ports take a pinned artifact as pin:NAME."""
    made = opened(workspace).pin(name, run_id, stage)
    out.print(f"pin:{made.name} is {made.kind} {made.fingerprint} ({made.op})", highlight=False)


@data.command()
def unpin(name: Annotated[str, typer.Argument(help="Name of the pin.")], workspace: WorkspaceUrl = "") -> None:
    """Remove a pin; its output stays until `curate gc` removes it."""
    removed = opened(workspace).unpin(name)
    out.print(f"pin:{removed.name} was {removed.kind} {removed.fingerprint} ({removed.op})", highlight=False)


@data.command()
def pins(workspace: WorkspaceUrl = "") -> None:
    """List the pinned artifacts and datasets of a workspace."""
    table = Table("pin", "kind", "op", "fingerprint", "run", "stage", header_style="bold")
    for found in opened(workspace).pins.values():
        table.add_row(found.name, found.kind, found.op, found.fingerprint, found.run, found.stage)
    out.print(table)


# --- tombstones ---


Entries = Annotated[
    list[str], typer.Argument(help="Keys, sha256 digests, URLs, source ids, or @FILE with one per line.")
]
Why = Annotated[str, typer.Option(help="Reason, kept with the list.")]


@tombstone.command("add")
def tombstone_add(entries: Entries, why: Why, known: Known = False, workspace: WorkspaceUrl = "") -> None:
    """Exclude samples from every run; lists the datasets that contain them."""
    place, given = opened(workspace), _given(entries)
    count = place.add_tombstones(given, why)
    out.print(f"{count:,} {'entry' if count == 1 else 'entries'} tombstoned; later selects and packs leave them out")
    _affected(place)
    end_unknown(place.unknown_samples(given), known)


@tombstone.command("remove")
def tombstone_remove(entries: Entries, why: Why, workspace: WorkspaceUrl = "") -> None:
    """Take tombstones back: later runs may select the samples again. The list keeps both entries."""
    count = opened(workspace).remove_tombstones(_given(entries), why)
    out.print(f"{count:,} {'tombstone' if count == 1 else 'tombstones'} removed; later selects see the samples again")


@tombstone.command("list")
def tombstone_list(workspace: WorkspaceUrl = "") -> None:
    """List what was tombstoned and what was removed again, oldest first, and the datasets that contain tombstoned
    samples."""
    place = opened(workspace)
    for kind, value, why, removed in place.tombstone_history():
        what = "removed" if removed else "added"
        out.print(f"{what}  {kind}  {value}  {why}", markup=False, highlight=False, soft_wrap=True)
    _affected(place)


def _affected(place: Workspace) -> None:
    for url, found in place.affected_datasets().items():
        out.print(f"affected: {url} contains {found:,} tombstoned samples", soft_wrap=True)


def _given(entries: list[str]) -> list[str]:
    """The entries, with those of each @FILE in its place."""
    lines: list[str] = []
    for entry in entries:
        try:
            lines += Path(entry[1:]).read_text().splitlines() if entry.startswith("@") else [entry]
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"cannot read {entry} ({error}); give a text file with one entry per line") from None
    return lines
