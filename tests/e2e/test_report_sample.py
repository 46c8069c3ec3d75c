"""A report of a pool of more shards than it reads: counts of all shards, images of some, keepers of any."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from curate.core.recipe.load import load
from curate.engine.run import run
from curate.report.survey import scope
from tests.e2e.image_files import write_good
from tests.e2e.recipes import stages


@pytest.mark.long
def test_a_few_shards_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stages({"op": "acquire.folder", "path": str(write_good(tmp_path / "images", 70)), "shard_rows": 10})
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"stages": made}, sort_keys=False))
    monkeypatch.setattr(scope, "READ_SHARDS", 3)
    done = run(load(recipe), str(tmp_path / "work"))
    report = next(name for name in made if made[name]["op"] == "report.html")
    page = Path(done.outputs[report], "index.html").read_text()
    shards = -(-done.ledger["pool"].before // 10)
    assert f"3 of {shards} shards, chosen by hash (30 images)" in " ".join(page.split())
    assert "unaccounted" not in page and "does not add up" not in page
