"""The part of a dataset's page that says what it contains: samples, values, balance, costs, how to read it."""

from __future__ import annotations

import re
from typing import Any

from curate.api import Slice, Values
from curate.core.errors import CurateError
from curate.service.datasets import datasets as actions
from curate.service.datasets.datasets import DatasetShape
from curate.service.kept import QUESTION
from curate.service.pages.data.tiles import tiles
from curate.service.pages.kit import LONGEST_QUERY, Visit, link, part
from curate.service.runs.views import get_run
from curate.service.samples.looking import Looked, looked
from curate.service.samples.slices import read

SAMPLES = 18
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
"""A column, or meta.FIELD, that an expression names without quotes."""


def contents_of(visit: Visit, workspace: str, found: DatasetShape) -> dict[str, Any]:
    """For `dataset_contents.html`. What cannot be read is left out, and the page says why."""
    values: dict[str, Any] = {"contents": None, "missing": "", "grid": [], "balance": [], "costs": None, "stage": ""}
    try:
        values["contents"] = actions.get_contents(*visit.args, workspace, found.name, found.fingerprint)
        if found.run:
            values |= _of_run(visit, workspace, found)
    except CurateError as error:
        values["missing"] = str(error)
    if values["contents"] is not None:
        values["lines"] = _lines(found, values["contents"].tars)
    return values


def _of_run(visit: Visit, workspace: str, found: DatasetShape) -> dict[str, Any]:
    """What its run knows: the rows that were packed, how they compare with a random sample, what it cost."""
    seen = looked(*visit.args, found.run, workspace)

    def make() -> tuple[str, list[dict[str, Any]]]:
        pack = next((name for name, base in seen.made.bases.items() if base == found.base), None)
        above = seen.run.record.record["stages"][pack]["from"] if pack else []
        return (above or [""])[0], seen.run.balance(pack) if pack else []

    kept = ("packed", seen.one.place.id, seen.one.attempt_id, found.base)
    stage, balance = visit.service.kept.get(
        visit.who, kept, make, f"balance of run {found.run}", kind=QUESTION, seconds=seen.one.settled
    )
    run = get_run(*visit.args, found.run, workspace)
    values = {"balance": balance, "costs": run, "stage": stage, "pixels": seen.pixels, "place_name": workspace}
    if stage not in seen.made.with_rows:
        return values
    _, some = read(*visit.args, found.run, Slice(stage), limit=SAMPLES, workspace=workspace, spread=True)
    return values | {
        "grid": tiles(visit, seen, some), "stage": stage,
        "all": link(f"/runs/{part(found.run)}/samples", stage=stage, workspace=workspace),
        "filtered": lambda one, value: _filtered(seen, stage, one, value, workspace),
    }  # fmt: skip


def _filtered(seen: Looked, stage: str, one: Values, value: str, workspace: str) -> str:
    """The page of the samples with a value of a carried column; "" where an expression cannot say it."""
    name = one.source if _PLAIN_NAME.fullmatch(one.source) else '"{}"'.format(one.source.replace('"', '""'))
    text = value.lower() if one.boolean else "'{}'".format(value.replace("'", "''"))
    where = f"{name} = {text}"
    if one.listed or len(where) > LONGEST_QUERY:
        return ""
    path = f"/runs/{part(seen.one.id)}/samples"
    return link(path, stage=stage, where=where, columns=one.source, workspace=workspace)


def _lines(found: DatasetShape, tars: str) -> list[tuple[str, str]]:
    """(reader, what to type) for those who train on it."""
    url = f"{found.url}/{tars}"
    name = f"{found.name}/{found.fingerprint}"
    return [
        ("distill", f"distill train RECIPE.yaml --set data.sources.0.dataset={found.url}"),
        ("webdataset", f'wds.WebDataset("{url}", shardshuffle=100).shuffle(1000).decode("pil")'),
        (
            "open_clip",
            f"python -m open_clip_train.main --dataset-type webdataset --train-data '{url}' "
            f"--train-num-samples {found.rows}",
        ),
        ("Hugging Face", f'load_dataset("{found.url}", split="train", streaming=True)'),
        ("a release", f"curate release {name} --to FOLDER --license LICENSE"),
    ]
