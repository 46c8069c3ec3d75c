"""The whole real pipeline, local and on Ray: all files are equal except for the times in the report."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from curate.core.recipe.load import load
from curate.engine.run import run
from tests.e2e import image_files
from tests.e2e.recipes import write_recipe
from tests.engine.workspaces import assert_same, files

COUNT = 150

pytestmark = pytest.mark.long


def test_all_data_is_identical_on_local_and_on_ray(tmp_path: Path, on_ray: Any) -> None:
    root = image_files.write_good(tmp_path / "images", COUNT)
    for name, (data, _) in image_files.BAD.items():
        (root / name).write_bytes(data)
    source = {"op": "acquire.folder", "path": root, "shard_rows": 25}
    changes = {"tree": {"levels": [20, 4], "threads": 1}, "sample": {"target": 60}, "dataset": {"shard_rows": 16}}
    pipeline = load(write_recipe(tmp_path / "recipe.yaml", source, **changes))
    here = run(pipeline, str(tmp_path / "local"))
    there = run(pipeline, str(tmp_path / "ray"), engine=on_ray)
    again = run(pipeline, str(tmp_path / "local"), engine=on_ray)
    assert set(again.reused.values()) == {True}
    for report in tmp_path.glob("*/artifacts/report.html"):
        shutil.rmtree(report)
    assert_same(tmp_path / "local", tmp_path / "ray")
    assert {name: entry.to_json() for name, entry in here.ledger.items()} == {
        name: entry.to_json() for name, entry in there.ledger.items()
    }
    made = files(tmp_path / "ray", "datasets")
    assert sum(name.endswith(".tar") for name in made) == 4 and here.ledger["dataset"].copies == 60
