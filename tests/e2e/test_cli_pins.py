"""A pool grows under a pinned tree, as an operator does it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.commands import curate
from tests.e2e.image_files import good


def write(folder: Path, first: int, stop: int) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(first, stop):
        (folder / f"{number:03d}.png").write_bytes(good(number * 3))  # every third is a PNG


def recipe(place: Path, tree: str) -> Path:
    stages: dict[str, Any] = {
        "pool": {"op": "acquire.folder", "namespace": "pins", "path": str(place / "images"), "shard_rows": 8},
        "embed": {"op": "image.embed", "from": "pool"},
        "tree": {"op": "cluster.fit", "from": "embed", "levels": [4, 2], "rounds": 1, "threads": 1},
        "clusters": {"op": "cluster.assign", "from": "embed", "tree": tree, "levels": 2, "threads": 1},
        "sample": {"op": "select.hierarchical", "from": "clusters", "tree": tree, "target": 6},
        "dataset": {"op": "pack.webdataset", "from": "sample", "name": "small"},
        "report": {"op": "report.html", "from": "dataset"},
    }
    if tree != "tree":
        del stages["tree"]
    path = place / f"{tree.replace(':', '-')}.yaml"
    path.write_text(yaml.safe_dump({"stages": stages}, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over two shards, its tree pinned, and a folder that has grown by one."""
    place = tmp_path_factory.mktemp("pins")
    write(place / "images", 0, 16)
    assert curate("run", recipe(place, "tree"), "-w", place / "work", "--run-id", "first").code == 0
    assert curate("pin", "good", "first", "tree", "-w", place / "work").out.startswith("pin:good is cluster_tree ")
    write(place / "images", 16, 24)
    return place


@pytest.mark.long
def test_only_the_new_shard_is_assigned(place: Path) -> None:
    work = place / "work"
    before = {path: path.stat().st_mtime_ns for path in work.glob("facts/*/*/*/*/0*.parquet")}
    planned = curate("plan", recipe(place, "pin:good"), "-w", work)
    assert planned.code == 0
    printed = curate("run", recipe(place, "pin:good"), "-w", work, "--run-id", "grown")
    assert printed.code == 0, printed
    after = {path: path.stat().st_mtime_ns for path in work.glob("facts/*/*/*/*/0*.parquet")}
    assert {path: after[path] for path in before} == before and len(after) == len(before) // 2 * 3
    assert not list(work.glob("artifacts/cluster.fit/*/work")) and len(list(work.glob("artifacts/cluster.fit/*"))) <= 2
    result = json.loads((work / "runs/grown/result.json").read_text())
    assert "tree" not in result["outputs"] and list(result["pins"]) == ["pin:good"]
    assert result["ledger"]["clusters"]["before"] == 24
    assert curate("explain", "020.png", "-w", work).code == curate("status", "grown", "-w", work).code == 0
    assert curate("diff", "first", "grown", "-w", work).code == 0


def test_pins_are_listed_and_forgotten(place: Path) -> None:
    work = place / "work"
    listed = curate("pins", "-w", work).words
    assert "good" in listed and "cluster_tree" in listed and "first" in listed
    assert curate("pin", "other", "first", "tree", "-w", work).code == 0
    assert curate("unpin", "other", "-w", work).out.startswith("pin:other was cluster_tree ")
    assert "other" not in curate("pins", "-w", work).words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("pin", "x", "first", "clusters"),
            "pin x: 'clusters' built no artifact or dataset in run first; expected one of",
        ),
        (("pin", "x", "nobody", "tree"), "run 'nobody': not in "),
        (("unpin", "x"), "pin 'x': not a pin of "),
    ],
)
def test_a_mistake_is_one_line(place: Path, words: tuple[str, ...], message: str) -> None:
    assert message in curate(*words, "-w", place / "work").error


def test_a_recipe_names_a_missing_pin(place: Path) -> None:
    error = curate("run", recipe(place, "pin:bad"), "-w", place / "work").error
    assert "pin-bad.yaml:" in error and "clusters: tree: pin:bad: not a pin of " in error
    assert "expected one of good" in error
