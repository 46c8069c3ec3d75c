"""`curate cluster` over runs as the engine writes them down, with artifacts as the stages make them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.cluster.profile.drift import Drift
from curate.cluster.profile.profile import Profile
from curate.core.contracts import Artifact
from curate.core.hashing import make_key
from curate.core.nouns.artifacts import save_artifact
from curate.core.nouns.manifest import Manifest
from curate.core.store.storage import Storage, open_workspace
from tests.e2e.commands import curate

PARENTS = np.array([0, 0, 1, 1, 1])
LEAF = np.repeat(np.arange(5), [40, 30, 20, 8, 0])


def tree() -> Artifact:
    sizes = np.bincount(LEAF, minlength=5)
    facts = [{"clusters": 5, "entropy": 0.75, "gini": 0.42}, {"clusters": 2, "entropy": 0.86, "gini": 0.21}]
    return {
        "parents_1": PARENTS,
        "sizes_1": sizes,
        "sizes_2": np.array([70, 28]),
        "distance_quantiles": np.linspace(0, 1, 101),
        "shards": pa.table({"shard": ["a"]}),
        "levels": {"variance": 1.0, "levels": facts},
    }


def rows(leaf: np.ndarray, shard: str) -> pa.Table:
    printed = ["a red apple", "a green pear", "one fire engine", "[b]old truck", "none"]
    columns = {
        "key": [make_key(shard, str(row)) for row in range(len(leaf))],
        "cluster_1": leaf,
        "centroid_distance": np.where(leaf == 2, 0.99, 0.2).astype(np.float32),
        "caption": [printed[number] for number in leaf],
        "url": [f"https://{'one' if number == 1 else f'site{row % 7}'}.org/x" for row, number in enumerate(leaf)],
    }
    return pa.table(columns).replace_schema_metadata({b"shard": shard.encode()})


def fitted(stage: Any, tables: list[pa.Table]) -> Artifact:
    stage.setup({"tree": tree()})
    return stage.finish(stage.merge(stage.partial(table.select(["key", *stage.reads()])) for table in tables))


def write_run(
    storage: Storage,
    run_id: str,
    started: float,
    pins: dict[str, Any] | None = None,
    **artifacts: tuple[str, Artifact],
) -> None:
    """A run that has ended, with the artifacts (op, parts) of its stages."""
    outputs = {}
    for name, (op, parts) in artifacts.items():
        base = f"artifacts/{op}/{run_id}-{name}"
        save_artifact(storage, base, parts)
        Manifest("artifact", op, 1, f"{run_id}-{name}").commit(storage, base)
        outputs[name] = {"stage": name, "base": base}
    kinds = {"cluster.fit": "cluster_tree", "cluster.profile": Profile.kind, "cluster.drift": Drift.kind}
    stages = {name: {"op": op, "from": [], "kind": kinds.get(op, "other")} for name, (op, _) in artifacts.items()}
    record = {"run_id": run_id, "started": started, "stages": stages, "engine": "local"}
    storage.create_json(f"runs/{run_id}/run.json", record)
    result = {"error": None, "seconds": 1.0, "outputs": outputs, "pins": pins or {}}
    storage.create_json(f"runs/{run_id}/result.json", result)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs: `bare` with a tree alone, `none` without clusters, `full` with profile and drift, the latest."""
    folder = tmp_path_factory.mktemp("workspace")
    storage = open_workspace(str(folder))
    grown = [rows(LEAF, "a"), rows(np.full(200, 3), "b")]
    write_run(storage, "bare", 2.0, tree=("cluster.fit", tree()))
    write_run(storage, "two", 1.0, one=("cluster.fit", tree()), other=("cluster.fit", tree()))
    pins = {"pin:old": {"base": "artifacts/cluster.fit/two-one"}, "pin:gone": {"base": "artifacts/cluster.fit/gone"}}
    write_run(storage, "pinned", 1.5, pins)
    write_run(storage, "none", 0.0, sets=("duplicates.find", {"facts": {}}), odd=("gone.package:Stage", {"facts": {}}))
    profile, drift = fitted(Profile(), grown[:1]), fitted(Drift(), grown)
    write_run(
        storage,
        "full",
        3.0,
        tree=("cluster.fit", tree()),
        look=("cluster.profile", profile),
        grown=("cluster.drift", drift),
    )
    return folder


def test_show_lists_levels_and_the_coarsest_clusters(workspace: Path) -> None:
    printed = curate("cluster", "show", "-w", workspace)
    assert (printed.code, printed.err) == (0, "")
    assert "2 2 98 70 0.863 0.214 0 0 0 0" in printed.words and "1 5 98 40" in printed.words
    assert "level 2, by rows" in printed.words
    assert printed.words.index("green pear") < printed.words.index("fire engine")
    assert "grown: refit recommended: level 1: new rows spread over its 5 clusters in another way" in printed.words


def test_show_sorts_a_level_by_the_given_column(workspace: Path) -> None:
    printed = curate("cluster", "show", "full", "-w", workspace, "--level", "1", "--sort", "distance", "--limit", "2")
    listed = printed.words.split("level 1, by distance")[1]
    assert listed.index("fire engine") < listed.index("apple") and "noise" in listed
    assert "3 more; raise --limit to list them" in listed and "[b]old" not in listed
    flagged = curate("cluster", "show", "-w", workspace, "--level", "1").words
    assert "one.org 100%" in flagged and "single source" in flagged and "empty" in flagged
    assert "old truck" in flagged


def test_show_opens_one_cluster(workspace: Path) -> None:
    words = curate("cluster", "show", "-w", workspace, "--level", "2", "--cluster", "1").words
    assert "level 2, cluster 1" in words and "level 1, its children, by rows" in words
    assert "fire engine" in words and "green pear" not in words
    assert "a leaf" in curate("cluster", "show", "-w", workspace, "--level", "1", "--cluster", "3").words


def test_a_tree_without_a_profile_shows_sizes(workspace: Path) -> None:
    words = curate("cluster", "show", "bare", "-w", workspace, "--level", "1").words
    assert "1 5 98 40 0.750 0.420" in words and "0 0 40 40.82% 1" in words
    assert "explained" not in words


def test_a_pinned_tree_is_shown_if_the_run_fitted_none(workspace: Path) -> None:
    assert "1 5 98 40 0.750 0.420" in curate("cluster", "show", "pinned", "-w", workspace).words
    assert "--stage pin:gone" in curate("cluster", "show", "pinned", "-w", workspace, "--stage", "pin:gone").error


def test_export_writes_every_cluster(workspace: Path, tmp_path: Path) -> None:
    printed = curate("cluster", "export", tmp_path / "tree.parquet", "-w", workspace)
    assert "7 clusters of look (with its profile)" in printed.words
    table = pq.read_table(tmp_path / "tree.parquet")
    assert table.column("parent").to_pylist() == [0, 0, 1, 1, 1, None, None]
    assert {"rows", "leaves", "mean_distance", "explained", "name", "flags"} <= set(table.column_names)
    curate("cluster", "export", tmp_path / "tree.parquet", "-w", workspace, "--run", "bare")
    assert pq.read_table(tmp_path / "tree.parquet").to_pydict() == {
        "level": [1, 1, 1, 1, 1, 2, 2],
        "cluster": [0, 1, 2, 3, 4, 0, 1],
        "parent": [0, 0, 1, 1, 1, None, None],
        "rows": [40, 30, 20, 8, 0, 70, 28],
        "leaves": [1, 1, 1, 1, 1, 2, 3],
    }
    assert [path.name for path in tmp_path.iterdir()] == ["tree.parquet"]


def test_a_stage_can_be_named(workspace: Path) -> None:
    assert "explained" not in curate("cluster", "show", "-w", workspace, "--stage", "tree").words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "-w", "W", "--level", "3"], ["--level 3", "1 (finest) to 2"]),
        (["show", "-w", "W", "--level", "0"], ["--level 0"]),
        (["show", "-w", "W", "--cluster", "2"], ["--cluster 2", "expected 0 to 1 at level 2"]),
        (["show", "-w", "W", "--sort", "size"], ["--sort size", "expected one of rows, distance"]),
        (["show", "bare", "-w", "W", "--sort", "distance"], ["--sort distance", "cluster.profile"]),
        (["show", "-w", "W", "--limit", "0"], ["--limit 0"]),
        (["show", "-w", "W", "--stage", "grown"], ["--stage grown", "look, tree"]),
        (["show", "none", "-w", "W"], ["run none", "no cluster tree"]),
        (["show", "two", "-w", "W"], ["run two", "several cluster stages (one, other)", "--stage"]),
        (["show", "last", "-w", "W"], ["'last'", "the latest runs are pinned, bare, full"]),
        (["show"], ["--workspace is missing"]),
        (["show", "-w", "/nowhere/at/all"], ["/nowhere/at/all"]),
        (["export", "/nowhere/x.parquet", "-w", "W"], ["cannot write /nowhere/x.parquet ("]),
        (["export", "W", "-w", "W"], ["cannot write ", "choose another path"]),
    ],
)
def test_a_wrong_word_is_one_line(words: list[str], message: list[str], workspace: Path) -> None:
    error = curate("cluster", *(str(workspace) if word == "W" else word for word in words)).error
    for part in message:
        assert part in error, error
