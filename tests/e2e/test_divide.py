"""A tree fitted by cells, from a recipe: the same on both engines, and rows assigned as brute force assigns them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from curate.cluster.assign import leaf_centroids
from curate.cluster.divide.probe import LeafIndex
from curate.core.nouns.artifacts import StoredArtifact
from curate.core.recipe.load import load
from curate.core.store.storage import open_storage
from curate.core.vectors import from_binary
from curate.engine.run import run
from curate.kernels.nearest.search import nearest
from tests.e2e.commands import curate
from tests.e2e.image_files import write_good
from tests.e2e.recipes import stages
from tests.engine.workspaces import assert_same

LEAVES, CELLS = 20, 4


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    made = stages({"op": "acquire.folder", "path": str(write_good(tmp_path / "images", 70)), "shard_rows": 20})
    made["tree"] |= {"levels": [LEAVES, 4, 2], "cells": CELLS}
    made["clusters"] |= {"levels": 3, "probe": CELLS}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({"stages": made}, sort_keys=False))
    return path


def column(workspace: Path, op: str, name: str) -> pa.ChunkedArray:
    """A column of all rows with facts of the stage, by shard and row."""
    files = sorted((workspace / "facts" / op).glob("*/*/*/0*.parquet"))
    assert all(file.stem == "000001" for file in files)
    return pa.concat_tables([pq.read_table(file, columns=[name]) for file in files])[name]


def rows(workspace: Path, op: str) -> list[tuple[str, int]]:
    """(shard, row) of each of them."""
    files = sorted((workspace / "facts" / op).glob("*/*/*/0*.parquet"))
    return [(file.parent.name, row) for file in files for row in pq.read_table(file)["_row"].to_pylist()]


@pytest.mark.long
def test_on_both_engines(recipe: Path, tmp_path: Path, on_ray: Any) -> None:
    made = yaml.safe_load(recipe.read_text())
    made["stages"]["tree"]["cells"] = [CELLS, 2]  # the level above by cells too
    recipe.write_text(yaml.safe_dump(made, sort_keys=False))
    pipeline = load(recipe)
    here = run(pipeline, str(tmp_path / "local"), run_id="one")
    run(pipeline, str(tmp_path / "ray"), engine=on_ray)
    for report in tmp_path.glob("*/artifacts/report.html"):
        shutil.rmtree(report)
    assert_same(tmp_path / "local", tmp_path / "ray")

    tree = StoredArtifact(open_storage(here.outputs["tree"]), "")
    leaves = leaf_centroids(tree)
    assert isinstance(leaves, LeafIndex) and "centroids_1" not in tree
    joined = np.concatenate([leaves.leaves(cell) for cell in range(CELLS)])
    assert len(joined) == LEAVES == len(tree["parents_1"])
    assert tree["sizes_1"].sum() == here.ledger["unique"].after
    above = np.concatenate([tree.part("centroids_2", cell)["vectors"] for cell in tree.parts("centroids_2")])
    assert "centroids_2" not in tree and len(above) == tree["offsets_2"][-1] == 4
    np.testing.assert_array_equal(tree["parents_1"], nearest(joined, unit(above))[0])  # both cells are looked into
    parents = [np.asarray(tree[f"parents_{level}"]) for level in (1, 2)]

    work = tmp_path / "local"
    found = column(work, "cluster.assign", "cluster_1").to_numpy().astype(np.int64)
    place = {row: number for number, row in enumerate(rows(work, "image.embed"))}
    embedded = pa.array([place[row] for row in rows(work, "cluster.assign")])
    vectors = unit(from_binary(column(work, "image.embed", "embedding").take(embedded)))
    np.testing.assert_array_equal(found, nearest(vectors, joined)[0])
    for level, path in ((2, parents[0][found]), (3, parents[1][parents[0][found]])):
        above = column(work, "cluster.assign", f"cluster_{level}").to_numpy()
        np.testing.assert_array_equal(above, path)


def test_semantic_duplicates_need_a_level_in_one_piece(recipe: Path, tmp_path: Path) -> None:
    stages = yaml.safe_load(recipe.read_text())["stages"]
    kept = {name: stages[name] for name in list(stages)[: list(stages).index("tree") + 1]}
    kept["same"] = {"op": "duplicates.semantic", "from": ["unique", "embed"], "tree": "tree", "level": 1}
    recipe.write_text(yaml.safe_dump({"stages": kept}, sort_keys=False))
    printed = curate("run", recipe, "-w", tmp_path / "work")
    assert "duplicates.semantic.level: 1" in printed.error and "write a level from 2 to 3" in printed.error


def unit(vectors: np.ndarray) -> np.ndarray:
    vectors = vectors.astype(np.float32)
    return vectors / np.sqrt(np.einsum("nd,nd->n", vectors, vectors))[:, None]
