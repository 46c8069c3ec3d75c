"""Pools of videos, alone and beside images: in folders and tars, copied and in place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import s3fs

from curate.acquire.folder import AcquireFolder
from curate.acquire.webdataset import AcquireWebDataset
from curate.codec import members, readers
from curate.core.contracts import Source
from curate.core.nouns import tombstones
from curate.core.nouns.pools import MEDIA_COLUMNS, POOL_SCHEMA, read_pool, read_shards
from curate.core.recipe import registry
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.engine.record import claims, gc
from curate.engine.record.explain import explain
from curate.engine.record.runs import latest
from curate.engine.run import Result, run
from tests.acquire.helpers import encoded_image, write, write_tar
from tests.codec.video.make_videos import video

BOTH = ("image", "video")
FILM, REEL, IMAGE = video("mp4 mpeg4", 12), video("webm vp9", 12), encoded_image(1)
FILES = {
    "a.mp4": FILM, "a.txt": b"a film", "b.png": IMAGE, "b.txt": b"an image", "c.png": REEL, "d.mp4": encoded_image(2),
    "e.mp4": b"a text", "f.mp4": b"",
}  # fmt: skip
"""Of c and d, the names are wrong."""


def pipeline(source: Source, **stages: tuple[str, Any, dict[str, Any]]) -> Pipeline:
    made = Pipeline().add("pool", source)
    for name, (op, above, parameters) in stages.items():
        made.add(name, registry.resolve(op)(**parameters), above)
    return made.check()


def rows(result: Result, name: str = "pool") -> dict[str, dict[str, Any]]:
    """Rows of a pool by source id."""
    url, base = result.outputs[name].split("/pools/")
    storage = open_storage(url)
    shards = read_shards(storage, f"pools/{base}")
    return {
        row["source_id"]: row
        for shard in shards
        for row in read_pool(storage, shard.table, POOL_SCHEMA.names).to_pylist()
    }


BRANCHES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "seen": ("image.inspect", "pool", {}),
    "look": ("video.look", "pool", {}),
    "films": ("filter.where", "pool", {"keep": "media = 'video'", "reason": "image"}),
}


def folder(path: Path, **more: Any) -> AcquireFolder:
    return AcquireFolder(**{"namespace": "mine", "path": str(path), "media": BOTH} | more)


def test_a_folder_of_images_and_videos(tmp_path: Path) -> None:
    write(tmp_path / "files", FILES)
    for in_place in (True, False):
        made = pipeline(folder(tmp_path / "files", in_place=in_place, shard_rows=4), **BRANCHES)
        workspace = str(tmp_path / f"{in_place}")
        result = run(made, workspace, run_id="one")
        found = rows(result)
        kinds = {name: (row["media"], row["format"], row["duration_ms"]) for name, row in found.items()}
        assert kinds == {
            "a.mp4": ("video", "mp4", 480), "b.png": (None, "png", None), "c.png": ("video", "matroska", 480),
            "d.mp4": (None, "png", None), "e.mp4": (None, None, None), "f.mp4": (None, None, None),
        }  # fmt: skip
        assert (found["a.mp4"]["width"], found["a.mp4"]["caption"]) == (96, "a film")
        assert found["a.mp4"]["fps"] == 25.0 and found["b.png"]["fps"] is None
        seen, look, films = (result.ledger[name] for name in ("seen", "look", "films"))
        assert (seen.after, dict(seen.unusable)) == (2, {"not_an_image": 3, "empty": 1})
        assert (look.after, dict(look.unusable)) == (2, {"not_a_video": 3, "empty": 1})
        assert (films.after, dict(films.rejected)) == (2, {"image_null": 4})
        record = latest(open_storage(workspace), "one")
        for name, place, reason in (("a.mp4", "seen", "not_an_image"), ("b.png", "look", "not_a_video")):
            told = {place: about for place, _, about in explain(record, name)}
            assert reason in str(told[place]), told


def test_images_alone_are_the_pool_that_they_were(tmp_path: Path) -> None:
    """With `media: [image]`, files with names of videos are not samples, and rows have no medium."""
    write(tmp_path / "files", FILES)
    result = run(pipeline(folder(tmp_path / "files", media=("image",)), seen=BRANCHES["seen"]), str(tmp_path / "w"))
    found = rows(result)
    assert list(found) == ["b.png", "c.png"]
    assert {found[name][column] for name in found for column in MEDIA_COLUMNS} == {None}
    [table] = (tmp_path / "w").glob("pools/mine/shards/*.parquet")
    assert not set(MEDIA_COLUMNS) & set(pq.read_schema(table).names)
    assert dict(result.ledger["seen"].unusable) == {"not_an_image": 1}


DERIVED: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "frames": ("video.frames", "pool", {"namespace": "frames", "frames": 1}),
    "seen": ("image.inspect", "frames", {}),
    "all": ("select.all", "seen", {}),
    "dataset": ("pack.webdataset", "all", {"name": "frames"}),
}


def test_added_videos_alone_are_computed_and_a_takedown_covers_their_frames(tmp_path: Path) -> None:
    files = {f"{number}.mp4": video("mp4 mpeg4", 10 + number) for number in range(3)}
    write(tmp_path / "files", files)
    limit = max(map(len, files.values()))  # a shard each

    def made() -> Pipeline:
        return pipeline(folder(tmp_path / "files", media=["video"], in_place=True, shard_bytes=limit), **DERIVED)

    storage = open_storage(str(tmp_path / "w"))
    first = run(made(), storage.url, run_id="first")
    assert len(rows(first)) == first.ledger["seen"].after == 3
    write(tmp_path / "files", {"9.mp4": video("mp4 mpeg4", 20)})
    second = run(made(), storage.url, run_id="second")
    assert second.counts["seen"].computed == 1 and second.ledger["seen"].after == 4

    taken = rows(second)["0.mp4"]["key"]
    tombstones.add(storage, [taken], "asked for")
    third = run(made(), storage.url)
    assert third.reused["frames"] and third.reused["seen"]
    index = open_storage(third.outputs["dataset"]).read_table("index.parquet")
    kept = {row["key"] for row in rows(third, "frames").values() if row["parent"] != taken}
    assert set(index.column("key").to_pylist()) == kept and len(kept) == 3
    with claims.exclusive(storage):
        garbage, runs = gc.unreachable(storage, None, ("first", "second"))
        gc.collect(storage, garbage, runs)
    assert garbage and all(run(made(), storage.url).reused.values())
    assert len(list((tmp_path / "files").iterdir())) == 4


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """File and bytes of each read of a large member."""
    asked: list[tuple[str, int]] = []
    real = readers.FileReader.read_at

    def counted(self: readers.FileReader, offset: int, size: int) -> bytes:
        data = real(self, offset, size)
        asked.append((self.path or self.root.root, len(data)))
        return data

    monkeypatch.setattr(readers.FileReader, "read_at", counted)
    return asked


def padded(size: int) -> bytes:
    """The head of a box that fills a file from here to `size` bytes."""
    return (1).to_bytes(4) + b"free" + (size - len(FILM)).to_bytes(8)


def test_a_large_video_in_place_is_read_in_parts(tmp_path: Path, read: list[tuple[str, int]]) -> None:
    size = 300 << 20
    write(tmp_path / "files", {"a.mp4": FILM + padded(size), "b.png": IMAGE})
    os.truncate(tmp_path / "files" / "a.mp4", size)
    result = run(pipeline(folder(tmp_path / "files", in_place=True), **BRANCHES), str(tmp_path / "w"))
    row = rows(result)["a.mp4"]
    assert (row["size"], row["media"], row["duration_ms"]) == (size, "video", 480)
    assert result.ledger["look"].after == result.ledger["seen"].after == 1
    assert 0 < sum(count for _, count in read) < 16 << 20 and max(count for _, count in read) <= 4 << 20


def test_a_large_video_in_a_tar_is_read_in_parts(tmp_path: Path, read: list[tuple[str, int]]) -> None:
    """The import reads all for its digest, in blocks; a stage reads ranges."""
    size = 70 << 20
    film = FILM + padded(size)
    write_tar(tmp_path / "0.tar", {"a.mp4": film + bytes(size - len(film)), "a.txt": "a film", "b.png": IMAGE})
    source = AcquireWebDataset(namespace="tars", path=str(tmp_path / "0.tar"), media=BOTH)
    imported = run(pipeline(source), str(tmp_path / "w"))
    assert (rows(imported)["a"]["media"], rows(imported)["a"]["caption"]) == ("video", "a film")
    assert max(count for _, count in read) <= 4 << 20
    read.clear()
    result = run(pipeline(source, **BRANCHES), str(tmp_path / "w"))
    assert result.ledger["look"].after == result.ledger["seen"].after == 1
    assert 0 < sum(count for _, count in read) < 4 << 20


@pytest.mark.long
def test_videos_in_a_tar_on_an_object_store_are_read_by_ranges(
    tmp_path: Path, object_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    object_store.create_bucket(Bucket="bucket")
    write_tar(tmp_path / "0.tar", {"a.mp4": FILM, "a.json": '{"caption": "a film"}', "b.webm": REEL, "c.png": IMAGE})
    s3fs.S3FileSystem().pipe_file("s3://bucket/tars/0.tar", (tmp_path / "0.tar").read_bytes())
    source = AcquireWebDataset(namespace="tars", path="s3://bucket/tars", media=BOTH)
    small = run(pipeline(source, **BRANCHES), str(tmp_path / "small"))
    for module in (members, readers):
        monkeypatch.setattr(module, "MEMORY_BYTES", 100)
    large = run(pipeline(source, **BRANCHES), str(tmp_path / "large"))
    assert large.ledger == small.ledger and rows(large) == rows(small)
    assert large.ledger["look"].after == 2 and large.ledger["seen"].after == 1
    assert rows(large)["a"]["caption"] == "a film"


def test_datasets_have_frames_of_videos_and_reports_show_them(tmp_path: Path) -> None:
    write(tmp_path / "files", {name: FILES[name] for name in ("a.mp4", "b.png")})
    stages = {
        "all": ("select.all", "pool", {}),
        "dataset": ("pack.webdataset", "all", {"name": "both"}),
        "small": ("pack.webdataset", "all", {"name": "small", "image": "resized"}),
        "report": ("report.html", "dataset", {}),
    }
    result = run(pipeline(folder(tmp_path / "files"), **stages), str(tmp_path / "w"))
    assert open_storage(result.outputs["report"]).read("index.html").count(b"data:image/webp") >= 2
    dataset = Path(result.outputs["dataset"])
    index = {row["ext"]: row for row in pq.read_table(dataset / "index.parquet").to_pylist()}
    assert set(index) == {"jpg", "png"} and index["jpg"]["width"] == 96 and index["jpg"]["frames"] == 8
    [tar] = dataset.glob("*.tar")
    assert tar.read_bytes()[index["png"]["offset"] :].startswith(IMAGE) and index["png"]["size"] == len(IMAGE)
    assert result.ledger["small"].after == 2
