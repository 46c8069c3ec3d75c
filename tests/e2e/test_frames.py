"""Frames of animations and pages of documents on their way into a dataset, beside still images."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

from curate.codec.frames import frames
from curate.core.store.storage import open_storage
from curate.engine.record.explain import explain
from curate.engine.record.runs import latest
from tests.e2e import image_files
from tests.e2e.commands import curate

COUNTS = {
    "dance.gif": 3,
    "walk.webp": 4,
    "jump.png": 2,
    "letter.tif": 3,
    "still.png": 1,
    "photo.jpg": 1,
    "small.gif": 5,
}
"""File -> its frames. The small one has sides of 40 pixels, the others of 64."""
LARGE = 14
"""Frames of the large files."""
OPTIONS: dict[str, dict[str, Any]] = {
    "gif": {"format": "GIF"},
    "webp": {"format": "WEBP", "lossless": True},
    "png": {"format": "PNG"},
    "tif": {"format": "TIFF"},
    "jpg": {"format": "JPEG"},
}


def movie(name: str, seed: int) -> bytes:
    side = 40 if name == "small.gif" else 64
    images = [image_files.blocks(seed + place, side) for place in range(COUNTS[name])]
    options = dict(OPTIONS[name.rpartition(".")[2]])
    if len(images) > 1:
        options |= {"save_all": True, "append_images": images[1:], "duration": 100}
    buffer = io.BytesIO()
    images[0].save(buffer, **options)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("movies")
    for number, name in enumerate(COUNTS):
        (made / name).write_bytes(movie(name, 100 * number))
        (made / name).with_suffix(".txt").write_text(f"the caption of {name}")
    whole = movie("walk.webp", 900)
    (made / "cut.webp").write_bytes(whole[: len(whole) // 2])
    return made


def stages(folder: Path, min_side: int = 64, target: int = 8) -> dict[str, Any]:
    made: dict[str, dict[str, Any]] = {
        "pool": {"op": "acquire.folder", "path": str(folder), "namespace": "movies", "shard_rows": 4},
        "inspect": {"op": "image.inspect", "from": "pool", "threads": 1},
        "size": {"op": "image.filter", "from": "inspect", "min_side": min_side},
        "frames": {"op": "image.frames", "from": "size", "namespace": "frames"},
        "look": {"op": "image.inspect", "from": "frames", "threads": 1},
        "embed": {"op": "image.embed", "from": "look", "threads": 1},
        "tree": {"op": "cluster.fit", "from": "embed", "levels": [3], "rounds": 2, "threads": 1},
        "clusters": {"op": "cluster.assign", "from": "embed", "tree": "tree", "levels": 1, "threads": 1},
        "sample": {"op": "select.hierarchical", "from": "clusters", "tree": "tree", "target": target},
        "dataset": {"op": "pack.webdataset", "from": "sample", "name": "movies", "shard_rows": 5},
        "report": {"op": "report.html", "from": "dataset", "threads": 1},
    }
    return {"stages": made}


def _run(place: Path, recipe: dict[str, Any], *words: str) -> dict[str, Any]:
    (place / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    printed = curate(
        "run", place / "recipe.yaml", "-w", place / "workspace", "-q", "--json", place / "said.json", *words
    )
    assert (printed.code, printed.err) == (0, ""), printed
    return dict(json.loads((place / "said.json").read_text()))


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> tuple[Path, dict[str, Any]]:
    """A place in which the recipe has run, as `first`; read only."""
    place = tmp_path_factory.mktemp("once")
    return place, _run(place, stages(folder), "--run-id", "first")


@pytest.fixture
def place(once: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """A copy of it to change."""
    return Path(shutil.copytree(once[0], tmp_path / "place"))


def rows(place: Path) -> list[dict[str, Any]]:
    found = [
        pq.read_table(path).to_pylist()
        for path in sorted((place / "workspace/pools/frames/derived").rglob("0*.parquet"))
    ]
    return [row for table in found for row in table]


def test_every_frame_and_page_is_a_sample(once: tuple[Path, dict[str, Any]], folder: Path) -> None:
    place, printed = once
    ledger = printed["ledger"]
    assert (ledger["frames"]["before"], ledger["frames"]["after"], ledger["frames"]["children"]) == (6, 6, LARGE)
    assert ledger["look"]["before"] == ledger["look"]["after"] == LARGE  # frames are plain images
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows(place):
        found.setdefault(row["source_id"].split("#")[0], []).append(row)
    assert {name: len(lines) for name, lines in found.items()} == {n: c for n, c in COUNTS.items() if n != "small.gif"}
    for name, lines in found.items():
        expected = list(frames((folder / name).read_bytes()))
        assert [json.loads(line["span"]) for line in lines] == [frame.span for frame in expected]
        assert [line["size"] for line in lines] == [len(frame.data) for frame in expected]
        assert {line["caption"] for line in lines} == {f"the caption of {name}"}
        assert {json.loads(line["meta"])["frames"] for line in lines} == {COUNTS[name]}
    assert {line["format"] for line in found["letter.tif"]} == {"png"} and found["photo.jpg"][0]["format"] == "jpeg"


def test_the_dataset_holds_frames(once: tuple[Path, dict[str, Any]]) -> None:
    place, printed = once
    assert printed["ledger"]["dataset"]["copies"] == 8
    dataset = open_storage(printed["outputs"]["dataset"])
    index = dataset.read_table("index.parquet").to_pylist()
    keys = {row["key"]: row for row in rows(place)}
    tars = sorted(name for name in dataset.list("") if name.endswith(".tar"))
    for line in index:
        data = dataset.read_range(tars[line["shard"]], line["offset"], line["offset"] + line["size"])
        with Image.open(io.BytesIO(data)) as image:
            assert (image.size, getattr(image, "n_frames", 1)) == ((64, 64), 1)
        assert keys[line["key"]]["width"] == 64
    report = open_storage(printed["outputs"]["report"]).read("index.html").decode()
    assert "image.frames" in report and "data:image" in report


def test_a_smaller_side_lets_in_the_frames_of_one_more(place: Path, folder: Path) -> None:
    before = {path: path.read_bytes() for path in (place / "workspace/pools/frames/derived").rglob("0*")}
    printed = _run(place, stages(folder, min_side=32))
    assert (
        printed["stages"]["frames"] | {"computed": 1, "reused": 6, "children": LARGE + 5} == printed["stages"]["frames"]
    )
    assert (printed["stages"]["embed"]["computed"], printed["stages"]["embed"]["reused"]) == (5, LARGE)
    after = {path: path.read_bytes() for path in (place / "workspace/pools/frames/derived").rglob("0*")}
    assert {path: after[path] for path in before} == before and len(after) > len(before)
    assert len({row["key"] for row in rows(place)}) == len(rows(place)) == LARGE + 5
    back = _run(place, stages(folder))
    assert sum(stage["computed"] for stage in back["stages"].values()) == 0
    assert back["outputs"]["dataset"] != printed["outputs"]["dataset"]
    assert back["stages"]["look"]["alive"] == LARGE
    first = json.loads((place / "workspace/runs/first/result.json").read_text())
    assert back["outputs"]["dataset"].endswith(first["outputs"]["dataset"]["base"])
    assert back["outputs"]["report"].endswith(first["outputs"]["report"]["base"])


def test_the_commands_show_children(place: Path, folder: Path) -> None:
    workspace = place / "workspace"
    assert f"{LARGE} children" in curate("status", "first", "-w", workspace).words
    row = next(row for row in rows(place) if row["source_id"].startswith("dance.gif#"))
    told = curate("explain", row["source_id"], "-w", workspace)
    assert told.code == 0 and "parent: pool" in told.words and '{"frame":' in told.words
    assert "frames" in curate("explain", "dance.gif", "-w", workspace).words
    cut = curate("explain", "cut.webp", "-w", workspace).words
    assert "truncated" in cut or "corrupt" in cut
    for words in (["plan", place / "recipe.yaml"], ["gc"], ["du"]):
        printed = curate(*words, "-w", workspace)
        assert (printed.code, printed.err) == (0, ""), printed
    assert pq.read_table(next(workspace.glob("pools/frames/versions/*/shards.parquet"))).num_rows == 2
    assert json.loads((place / "said.json").read_text())["stages"]["frames"]["children"] == LARGE


def test_a_tombstoned_animation_loses_its_frames(place: Path, folder: Path) -> None:
    workspace = place / "workspace"
    storage = open_storage(str(workspace))
    row = next(row for row in rows(place) if row["source_id"].startswith("walk.webp#"))
    story = {name: about for name, _, about in explain(latest(storage, None), row["key"])}
    printed = curate("tombstone", "add", story["parent: pool"]["sha256"], "--why", "asked for", "-w", workspace)
    assert printed.code == 0, printed
    again = _run(place, stages(folder))
    assert again["ledger"]["sample"]["rejected"]["tombstone"] == COUNTS["walk.webp"]
    assert again["stages"]["frames"]["computed"] == 0
