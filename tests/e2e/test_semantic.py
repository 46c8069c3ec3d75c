"""Semantic duplicates from a recipe: the same sets in this process and on Ray, each dropped one names its keeper."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from curate.core.nouns.artifacts import StoredArtifact
from curate.core.recipe.load import load
from curate.core.store.storage import open_storage
from curate.engine.run import Result, run
from tests.codec.make_images import encoded
from tests.core.stored import members
from tests.e2e.commands import curate
from tests.e2e.image_files import blocks, write_good
from tests.e2e.recipes import stages
from tests.engine.workspaces import assert_same

COUNT, COPIES = 60, 12


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """Images, some with a cropped copy: too different for the hash, close for the encoder."""
    root = write_good(tmp_path / "images", COUNT)
    for number in range(COPIES):
        size = 96
        image = blocks(number, size).crop((2, 2, size - 2, size - 2))
        (root / f"cut-{number}.png").write_bytes(encoded(image, "png"))
    made = stages({"op": "acquire.folder", "path": str(root), "shard_rows": 20})
    made["tree"] |= {"levels": [8, 2]}
    semantic = {"op": "duplicates.semantic", "from": ["unique", "embed"], "tree": "tree", "level": 1, "eps": 0.15}
    members = {"op": "duplicates.members", "from": "unique", "sets": "meanings", "column": "semantic"}
    drop = {"op": "duplicates.drop", "from": "alike", "reject": "semantic", "column": "semantic"}
    kept = list(made)[: list(made).index("tree") + 1]
    path = tmp_path / "recipe.yaml"
    report = {"op": "report.html", "from": ["apart", "embed"]}
    whole = {name: made[name] for name in kept} | {
        "meanings": semantic,
        "alike": members,
        "apart": drop,
        "report": report,
    }
    path.write_text(yaml.safe_dump({"stages": whole}, sort_keys=False))
    return path


def artifact(result: Result, stage: str) -> StoredArtifact:
    storage = open_storage(result.outputs[stage])
    return StoredArtifact(storage, "")


@pytest.mark.long
def test_on_both_engines(recipe: Path, tmp_path: Path, on_ray: Any) -> None:
    pipeline = load(recipe)
    here = run(pipeline, str(tmp_path / "local"), run_id="one")
    run(pipeline, str(tmp_path / "ray"), engine=on_ray)
    for report in tmp_path.glob("*/artifacts/report.html"):
        shutil.rmtree(report)
    assert_same(tmp_path / "local", tmp_path / "ray")
    rows = members(artifact(here, "meanings"))
    dropped = {row["key"]: row["keeper"] for row in rows if row["kind"] == "semantic"}
    assert len(dropped) >= COPIES / 2 and not set(dropped) & set(dropped.values())
    assert here.ledger["apart"].rejected == {"semantic_duplicate": len(dropped)}
    key, keeper = next(iter(dropped.items()))
    printed = curate("explain", key, "-w", tmp_path / "local", "--run", "one").out
    assert "semantic_duplicate" in printed and keeper in printed
