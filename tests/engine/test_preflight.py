"""Fields of `meta` that a recipe names, and that no row or few rows have."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

from curate.core.errors import RecipeError
from curate.core.recipe import registry
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_workspace
from curate.engine.run import run
from curate.engine.units import fields

ROWS = 40


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """40 images; all have a `kind`, the last has a `rare`, and only those below 8 px have a `small`."""
    folder = tmp_path / "images"
    folder.mkdir()
    lines = []
    for number in range(ROWS):
        side = 4 if number % 2 else 16
        Image.new("RGB", (side, side), (number, 0, 0)).save(folder / f"{number:02}.png")
        line = {"file_name": f"{number:02}.png", "text": "a #stone", "kind": "square", "none": None}
        lines.append(line | ({"rare": "x"} if number == ROWS - 1 else {}) | ({"small": "yes"} if side == 4 else {}))
    (folder / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def built(images: Path, tmp_path: Path, op: str, **parameters: Any) -> str:
    """Lines that a run with this stage at its end prints."""
    pipeline = Pipeline()
    for name, of, above, given in [
        ("pool", "acquire.folder", (), {"namespace": "n", "path": str(images), "shard_rows": 10}),
        ("inspect", "image.inspect", "pool", {}),
        ("large", "filter.where", "inspect", {"keep": "width >= 8", "reason": "small"}),
        ("all", "select.all", "large", {}),
        ("last", op, "all" if op == "pack.webdataset" else "inspect", parameters),
    ]:
        pipeline.add(name, registry.resolve(of)(**given), above)
    console = Console(file=io.StringIO(), width=200)
    run(pipeline.check(), str(tmp_path / "workspace"), console=console)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("op", "parameters"),
    [
        ("pack.webdataset", {"name": "d", "carry": {"label": "meta.kindd"}}),
        ("report.html", {"label": "meta.kindd"}),
        ("text.tags", {"fields": ["meta.kindd"]}),
        ("caption.check", {"column": "caption", "outcomes": False, "context": ["meta.kindd"]}),
    ],
)
def test_a_field_that_no_row_has_is_an_error_before_anything_is_computed(images, tmp_path, op, parameters):
    with pytest.raises(
        RecipeError, match=r"last: none of the 40 rows of 'pool' has 'meta.kindd'; did you mean 'meta.kind'"
    ):
        built(images, tmp_path, op, **parameters)
    assert not open_workspace(str(tmp_path / "workspace")).list("facts")


def test_a_null_does_not_count(images, tmp_path):
    with pytest.raises(RecipeError, match=r"has 'meta.none'; did you mean"):
        built(images, tmp_path, "report.html", label="meta.none")


@pytest.mark.parametrize("sampled", [1, 64])
def test_a_field_that_few_rows_have_is_a_warning_with_the_share(images, tmp_path, monkeypatch, sampled):
    monkeypatch.setattr(fields, "SAMPLED", sampled)  # 1: the row is in a shard that is not read first
    said = built(images, tmp_path, "report.html", label="meta.rare")
    assert "warning: last: only 1 of 40 rows of 'pool' have meta.rare (2.50%)" in said
    assert "warning: last" not in built(images, tmp_path, "report.html", label="meta.kind")


def test_a_field_of_rejected_rows_only_is_an_error_of_the_pack(images, tmp_path):
    with pytest.raises(RecipeError, match=r"last: none of the 20 rows of 'all' has 'meta.small'"):
        built(images, tmp_path, "pack.webdataset", name="d", carry=["meta.small"])


def test_default_fields_of_tags_may_be_missing(images, tmp_path):
    assert "warning" not in built(images, tmp_path, "text.tags")
