"""What a slice shows, as a file: rows as CSV or Parquet, keys for a recipe, a notebook."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from fastapi import Query, Response

from curate.api import Slice, plain
from curate.core.errors import InputError
from curate.service.kept import QUESTION
from curate.service.problems import InvalidProblem
from curate.service.rest.routing import Router, Served, Who, Workspace
from curate.service.samples.find import LONGEST
from curate.service.samples.looking import SAMPLE, Looked, RunName, looked
from curate.service.samples.slices import Columns, Reason, Stage, Where, listed, slice_of
from curate.service.service import Service

router = Router(tags=["data"])
MOST_ROWS = 100_000
MOST_KEYS = 10_000
"""The limit of one order of tombstones."""
MOST_BYTES = 64 << 20
"""Limit on columns in memory, such as vectors, which are up to 10 times as long in CSV."""
SECONDS = 20.0
AT_ONCE = 1000
FILTERED = 200
"""Keys in one `filter.where`, whose expression has at most 10,000 characters."""
FILTERS = 50
MOST = {"rows": MOST_ROWS, "keys": FILTERED * FILTERS, "notebook": AT_ONCE}
"""Limits that pages name."""
FORMULA = "^([=+\\-@\t\r\uff1d\uff0b\uff0d\uff20])"
MORE = "X-Curate-More"
"""Header of an export that has only the first rows."""
Text = Annotated[str | None, Query(max_length=LONGEST, description="Only rows with this text in a column of texts.")]


Format = Literal["csv", "parquet", "recipe", "notebook"]
TYPES = {
    "csv": ("csv", "text/csv"), "parquet": ("parquet", "application/vnd.apache.parquet"),
    "recipe": ("yaml", "text/plain"), "notebook": ("ipynb", "application/x-ipynb+json"),
}  # fmt: skip
"""Format -> (ending, media type)."""
FILES: dict[int | str, dict[str, Any]] = {200: {"content": {kind: {} for _, kind in TYPES.values()}}}


@router.get("/runs/{run}/export", responses=SAMPLE | FILES, response_class=Response)
def export(
    service: Served,
    who: Who,
    run: RunName,
    stage: Stage,
    format: Format,
    rejected: Reason = None,
    where: Where = None,
    text: Text = None,
    columns: Columns = "",
    workspace: Workspace = None,
) -> Response:
    """The first 100,000 rows, or 64 MiB, of a slice that 20 seconds find. In CSV, a text that spreadsheets take for a
    formula begins with an apostrophe. `recipe`: stages that leave these keys out; `notebook`:
    one that reads the slice. The header X-Curate-More says whether there are more."""
    seen = looked(service, who, run, workspace)
    which = sliced(seen, stage, rejected, where, text)
    suffix, kind = TYPES[format]
    headers = {"Content-Disposition": f'attachment; filename="samples.{suffix}"', "Cache-Control": "no-store"}
    if format == "notebook":
        return Response(notebook(seen, which, text, listed(columns)), headers=headers, media_type=kind)
    most = FILTERED * FILTERS if format == "recipe" else MOST_ROWS
    with service.kept.turn(who, QUESTION, f"export of {stage}"):
        table, more = collected(seen, which, listed(columns), most)
        data = WRITERS[format](table, stage)
    return Response(data, headers=headers | {MORE: "yes" if more else "no"}, media_type=kind)


def sliced(seen: Looked, stage: str, rejected: str | None, where: str | None, text: str | None) -> Slice:
    """From what an address says. Raises InvalidProblem."""
    which = slice_of(stage, rejected, where)
    try:
        return which if not text else Slice(stage, which.rejected, which.where, seen.run.containing(stage, text))
    except InputError as error:
        raise InvalidProblem(str(error)) from None


def collected(seen: Looked, which: Slice, columns: Sequence[str], most: int) -> tuple[pa.Table, bool]:
    """The first rows, and whether there are more, also in shards that cannot be read. Raises InvalidProblem."""
    tables, cursor, until, lost = list[pa.Table](), "", time.monotonic() + SECONDS, False
    try:
        while True:
            left = most - sum(map(len, tables))
            seconds = until - time.monotonic()
            page = seen.run.slice(which, columns, cursor=cursor, limit=min(AT_ONCE, left), seconds=seconds)
            tables.append(page.table)
            cursor, lost = page.next, lost or bool(page.lost)
            full = left <= len(page.table) or sum(table.nbytes for table in tables) >= MOST_BYTES
            if not cursor or full or time.monotonic() >= until:
                return pa.concat_tables(tables), lost or bool(cursor)
    except InputError as error:
        raise InvalidProblem(str(error)) from None


def keys_of(service: Service, seen: Looked, stage: str, rejected: str, where: str, text: str) -> list[str]:
    """The keys of a whole slice, for one order of tombstones. Raises InvalidProblem for too many."""
    with service.kept.turn(seen.one.who, QUESTION, f"keys of {stage}"):
        table, more = collected(seen, sliced(seen, stage, rejected, where, text), (), MOST_KEYS)
    if more:
        raise InvalidProblem(
            f"more than {MOST_KEYS:,} samples, or lost shards; add the export's filter to the recipe instead"
        )
    return [str(key) for key in table.column("key").to_pylist()]


# --- files ------------------------------------------------------------------------------------------------------------


def _csv(table: pa.Table, _: str) -> bytes:
    """Lists and bytes as JSON."""
    for place, field in enumerate(table.schema):
        if (
            pa.types.is_nested(field.type)
            or pa.types.is_binary(field.type)
            or pa.types.is_fixed_size_binary(field.type)
        ):
            values = (one.as_py() for one in table.column(place))
            texts = [None if one is None else json.dumps(plain(one)) for one in values]
            table = table.set_column(place, field.name, pa.array(texts, pa.string()))
        elif pa.types.is_string(field.type):
            safe = pc.replace_substring_regex(table.column(place), FORMULA, r"'\1")
            table = table.set_column(place, field.name, safe)
    held = io.BytesIO()
    pa_csv.write_csv(table, held)
    return held.getvalue()


def _parquet(table: pa.Table, _: str) -> bytes:
    held = io.BytesIO()
    pq.write_table(table, held, compression="zstd")
    return held.getvalue()


def _recipe(table: pa.Table, stage: str) -> bytes:
    """Keys are hexadecimal digits, so that nothing is quoted."""
    keys = [str(key) for key in table.column("key").to_pylist()]
    lines = [f"# Put these stages after {stage}, and let the next stage read the last of them.\n"]
    for number, start in enumerate(range(0, len(keys), FILTERED), 1):
        some = ", ".join(f"'{key}'" for key in keys[start : start + FILTERED])
        above = stage if number == 1 else f"without_{number - 1}"
        lines.append(f"  without_{number}:\n    op: filter.where\n    from: {json.dumps(above)}\n")
        lines.append(f'    keep: "key not in ({some})"\n    reason: left_out\n')
    return "".join(lines).encode()


WRITERS: dict[str, Callable[[pa.Table, str], bytes]] = {"csv": _csv, "parquet": _parquet, "recipe": _recipe}


def notebook(seen: Looked, which: Slice, text: str | None, columns: Sequence[str]) -> bytes:
    """Values of others are literals of Python (`repr`), so that no text becomes code."""
    within = f", within=run.containing({which.stage!r}, {text!r})" if text else ""
    cells = [
        "import polars as pl\nfrom curate.api import Slice, Workspace\n\n"
        f"workspace = Workspace({seen.run.workspace.root!r})\nrun = workspace.run({seen.one.attempt_id!r})\n"
        f"which = Slice({which.stage!r}, rejected={which.rejected!r}, where={which.where!r}{within})\n"
        f"page = run.slice(which, {list(columns)!r}, limit={AT_ONCE}, seconds=60.0)\npl.from_arrow(page.table)",
        "from IPython.display import Image, display\n\nfor row in page.table.slice(0, 12).to_pylist():\n"
        '    small = run.file(row["shard"], row["row"]).thumbnail(160)\n'
        '    display(row["key"], Image(small.data) if small.data else small.reason)',
    ]
    about: dict[str, Any] = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    made = [about | {"id": f"cell-{number}", "source": source} for number, source in enumerate(cells)]
    whole = {"cells": made, "metadata": {"language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1).encode()
