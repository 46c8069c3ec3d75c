"""/runs/{id}/captions: texts beside their images, for spot checks."""

from __future__ import annotations

import secrets
from typing import Any

from fastapi import Response

from curate.api import Slice, plain
from curate.core.errors import InputError
from curate.service.pages.data.tabs import of_run, run_values
from curate.service.pages.data.tiles import tiles
from curate.service.pages.forms import Pages
from curate.service.pages.kit import Visiting, link, page
from curate.service.problems import InvalidProblem, NotFoundProblem
from curate.service.samples.slices import listed, read

router = Pages()
LIMIT = 24
DIGITS = "0123456789abcdef"
MANY = 2000
"""Rows from which on only keys that begin with one digit are drawn: keys are hashes, so that these are a fair part."""
OTHERS = ("source_id", "name", "url", "meta", "source")
"""Columns of texts that describe no image."""


@router.get("/runs/{run_id}/captions")
def captions(visit: Visiting, run_id: str) -> Response:
    seen, drawn = of_run(visit, run_id), visit.query("drawn")
    names = seen.made.with_rows
    if not names:
        raise NotFoundProblem(f"run {run_id}: no stage with rows is done yet; come back once one is")
    stage = visit.query("stage") or names[-1]
    if drawn and drawn not in DIGITS:
        raise InvalidProblem(f"drawn: {drawn[:20]!r} is not a hexadecimal digit; follow a link of this page")
    try:
        every = [name for name in seen.run.containing(stage, "").columns if name not in OTHERS]
    except InputError as error:
        raise InvalidProblem(str(error)) from None
    known = [name for name in every if not any(name.startswith(f"{one}_") for one in every)]  # of a text: its model, …
    chosen = listed(visit.query("columns")) or known
    entry, workspace = seen.made.ledger.get(stage), visit.query("workspace") or None
    digit = drawn or (secrets.choice(DIGITS) if entry is not None and entry.after >= MANY else "")
    query = {"stage": stage, "columns": visit.query("columns"), "workspace": workspace}
    which = Slice(stage, where=f"starts_with(key, '{digit}')" if digit else None)
    _, found = read(*visit.args, run_id, which, chosen, limit=LIMIT, workspace=workspace)
    lines: list[dict[str, Any]] = found.table.select(chosen).to_pylist() if chosen else []
    return page(
        visit, "captions", title="Captions", stages=[(name, name) for name in names], stage=stage, known=known,
        columns=", ".join(chosen), rows=list(zip(tiles(visit, seen, found), map(_texts, lines), strict=False)),
        others=link(visit.request.url.path, **query) if digit else "",
        **run_values(visit, seen, "/captions"),
    )  # fmt: skip


def _texts(line: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """(names of the columns, their texts) of a sample; columns with the same texts are together."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name, value in line.items():
        items = value if isinstance(value, list) else [value]
        if any(items):
            found.setdefault(tuple(str(plain(item))[:1000] for item in items[:8] if item), []).append(name)
    return [(", ".join(names), list(texts)) for texts, names in found.items()]
