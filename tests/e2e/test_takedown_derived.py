"""Takedowns of animations whose frames are samples, of a frame alone, and of samples that are in no dataset."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from tests.codec.make_images import encoded
from tests.e2e import image_files
from tests.e2e.commands import CommandResult, curate


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a dataset of the frames of three animations, and of two stills of which one is a near copy that
    the recipe drops."""
    folder = tmp_path_factory.mktemp("derived")
    images = folder / "images"
    images.mkdir()
    for number in range(3):
        frames = [image_files.blocks(100 * number + place) for place in range(3)]
        frames[0].save(images / f"{number}.gif", save_all=True, append_images=frames[1:])
    still = image_files.blocks(900, 96)
    (images / "still.png").write_bytes(encoded(still, "png"))
    (images / "worse.jpg").write_bytes(encoded(still, "jpeg", quality=60))
    stages: dict[str, Any] = {
        "pool": {"op": "acquire.folder", "path": str(images), "namespace": "e2e"},
        "inspect": {"op": "image.inspect", "from": "pool", "threads": 1},
        "prints": {"op": "image.fingerprint", "from": "inspect", "threads": 1},
        "sets": {"op": "duplicates.find", "from": "prints"},
        "members": {"op": "duplicates.members", "from": "prints", "sets": "sets"},
        "unique": {"op": "duplicates.drop", "from": "members"},
        "frames": {"op": "image.frames", "from": "unique", "namespace": "frames"},
        "all": {"op": "select.all", "from": "frames"},
        "dataset": {"op": "pack.webdataset", "from": "all", "name": "frames", "shard_rows": 4},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"stages": stages}, sort_keys=False))
    ran(folder)
    return folder


@pytest.fixture
def work(once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(once, tmp_path / "work"))


def ran(folder: Path) -> list[dict[str, Any]]:
    """The index of the dataset that the recipe makes."""
    printed = curate("run", folder / "recipe.yaml", "-w", folder / "workspace", "-q", "--json", folder / "said.json")
    assert (printed.code, printed.err) == (0, ""), printed
    made = json.loads((folder / "said.json").read_text())["outputs"]["dataset"]
    return list(pq.read_table(Path(made) / "index.parquet").to_pylist())


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    """Rows of all pools, by source id."""
    tables = [pq.read_table(path) for path in (folder / "workspace/pools").rglob("*.parquet")]
    lines = [row for table in tables if "source_id" in table.column_names for row in table.to_pylist()]
    return {row["source_id"]: row for row in lines}


def taken(work: Path, key: str, how: str) -> tuple[dict[str, Any], CommandResult]:
    """The receipt of a takedown, and what `verify` prints."""
    printed = curate("takedown", key, "-w", work / "workspace", "--why", "asked for", how, "--json")
    assert (printed.code, printed.err) == (0, ""), printed
    receipt = json.loads(printed.out)
    return receipt, curate("takedown", "verify", work / "workspace" / receipt["receipt"])


@pytest.mark.long
def test_an_animation_goes_with_its_frames(work: Path) -> None:
    movie = rows(work)["1.gif"]["key"]
    frames = {row["key"] for row in rows(work).values() if row["parent"] == movie}
    receipt, verified = taken(work, movie, "--erase")
    assert set(receipt["found"]["keys"]) == {movie, *frames} and len(frames) == 3
    assert receipt["left"]["parents"] == [] and verified.words.endswith("files has the bytes")
    assert not frames & {row["key"] for row in ran(work)}


def test_a_frame_alone_is_still_in_its_animation(work: Path) -> None:
    movie = rows(work)["1.gif"]["key"]
    frame, *others = sorted(row["key"] for row in rows(work).values() if row["parent"] == movie)
    receipt, verified = taken(work, frame, "--erase")
    assert receipt["found"]["keys"] == [frame] and receipt["left"]["parents"] == [movie]
    assert verified.words.endswith("files has the bytes")
    kept = {row["key"] for row in ran(work)}
    assert frame not in kept and kept >= set(others)
    printed = curate("takedown", frame, "-w", work / "workspace", "--why", "asked for", "--apply")
    assert f"left: {movie}, of which it was made, still has it; take that down too" in printed.words


def test_a_near_copy_that_the_recipe_drops_is_named(work: Path) -> None:
    pair = {rows(work)[name]["key"] for name in ("still.png", "worse.jpg")}
    index = {row["key"] for row in ran(work)}
    roots = {row["key"]: row["parent"] for row in rows(work).values() if row["parent"]}
    [kept] = pair & {roots.get(key, key) for key in index}
    [dropped] = pair - {kept}
    receipt, _ = taken(work, kept, "--apply")
    assert [line["key"] for line in receipt["left"]["near"]] == [dropped]
    words = curate("takedown", kept, "-w", work / "workspace").words
    assert f"near copy, to be decided: {dropped} (of the set of {kept})" in words


def test_without_a_dataset_there_is_nothing_to_verify(work: Path) -> None:
    shutil.rmtree(work / "workspace/datasets")
    receipt, verified = taken(work, rows(work)["still.png"]["key"], "--apply")
    assert receipt["datasets"] == {} and verified.code == 0
    assert "nothing was verified: no file that it covers had a sample; `--erase` covers all files" in verified.words
